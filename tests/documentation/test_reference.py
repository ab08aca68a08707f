"""Pages of the reference, and tables made from code, are complete."""

import ast
import re
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from actorq import process, start
from actorq_apps.cli import main
from actorq_apps.operator.status.conditions import STATES
from sitegen import parts
from sitegen.pages import citation, expectations, sizes, tested, training_run
from tests.documentation.code_blocks import ROOT

REFERENCE = ROOT / "docs" / "reference"
PRODUCT = ("actorq", "actorq_apps", "learner_service", "quantizer_service", "actor_service")
# Reasons of a condition that come from the run's own state.
_OF_STATES = {"Starting", "Running"}


def text_of(page: str) -> str:
    return (REFERENCE / page).read_text(encoding="utf-8")


def sources() -> Iterator[Path]:
    for folder in PRODUCT:
        yield from (file for file in (ROOT / folder).rglob("*.py") if "v1" not in file.parts)


def literal_exits() -> Iterator[tuple[Path, int]]:
    """Each integer that code passes to `sys.exit`, `os._exit`, `SystemExit` or a service's start."""
    for file in sources():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                given = [*node.args] if name in ("exit", "_exit", "SystemExit") else []
                given += [each.value for each in node.keywords if name == "start" and each.arg == "sigterm"]
                constants = [each.value for each in given if isinstance(each, ast.Constant)]
                yield from ((file, value) for value in constants if isinstance(value, int))


def test_the_page_of_exit_codes_has_each_code_of_the_code_once() -> None:
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", text_of("exit-codes.md"), re.MULTILINE)]
    declared = {code for name, code in vars(process).items() if name.startswith("EXIT_") and isinstance(code, int)}
    of_signals = {start._INTERRUPTED, start._BROKEN_PIPE, 128 + signal.SIGTERM}
    assert listed == sorted(declared | of_signals)
    assert {(str(file), code) for file, code in literal_exits() if code not in listed} == set()


def test_the_page_of_exit_codes_has_each_service_and_each_code_of_the_help() -> None:
    page = text_of("exit-codes.md")
    assert {name for name in main._SERVICES if f"`actorq {name}`" not in page} == set()
    listed = set(re.findall(r"^\| (\d+) \|", page, re.MULTILINE))
    told = main._help().partition("exit codes:")[2]
    assert set(re.findall(r"\b\d+\b", told)) <= listed


def test_other_pages_have_no_table_of_exit_codes() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name != "exit-codes.md"]
    tables = re.compile(r"^\| (?:exit )?codes?\b.*\|$", re.MULTILINE)
    assert [page.name for page in pages if tables.search(page.read_text(encoding="utf-8"))] == []


def test_answers_of_the_faq_have_four_lines_at_most() -> None:
    page = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    answers = [part for part in page.split("\n\n") if part.startswith("**")]
    assert len(answers) > 15
    assert [answer for answer in answers if len(answer.strip().splitlines()) > 4] == []


def test_the_page_of_training_runs_has_each_field_once() -> None:
    made = training_run.specification()
    assert len(training_run.paths()) > 200
    for path in training_run.paths():
        name = path.rpartition(".")[2].removesuffix("[]")
        assert f"| `{name}` |" in made, path
    heads = re.findall(r"^### `(.+)` \{#(.+)\}$", made, re.MULTILINE)
    anchors = [anchor for _, anchor in heads]
    assert len(set(anchors)) == len(anchors)
    assert set(re.findall(r"\]\(#([\w-]+)\)", made)) <= set(anchors)
    assert re.search(
        r"^\| `environment` \| text \| .*characters \| required \| .*cannot be changed \|$", made, re.MULTILINE
    )
    assert re.search(r"^\| `storage` \| amount \|.*\| `10Gi` \| .*; cannot be changed \|$", made, re.MULTILINE)
    assert "`actors.pod`, `learner.pod`" in made


def test_the_page_of_training_runs_has_each_state_condition_and_reason() -> None:
    page = text_of("training-run.md")
    assert all(f"`{state}`" in training_run.states() for state in STATES)
    conditions = re.search(
        r'"conditions": \{.*?"description": "([\w, ]+)"', str(training_run._schema()["status"]).replace("'", '"')
    )
    assert conditions
    for condition in re.findall(r"[A-Z]\w+", conditions[1]):
        assert f"| `{condition}` |" in page
    text = "\n".join(
        file.read_text("utf-8") for file in sources() if "operator" in file.parts or "cluster" in file.parts
    )
    reasons = set(re.findall(r'reason="([A-Z]\w+)"', text)) - _OF_STATES
    assert reasons
    assert {reason for reason in reasons if f"`{reason}`" not in page} == set()


def test_all_packages_that_users_install_are_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    made = tested.packages()
    _, *rows = re.findall(r"^\| (\S.*?) \| (\S+) \| (\S+) \| ([\w.]+) \|$", made, re.MULTILINE)
    assert ("`learner`", "torch") in {row[:2] for row in rows}
    for extra, listed in project["optional-dependencies"].items():
        own = [each for each in listed if not each.startswith("actorq")]
        assert extra in ("docs", "dev") or sum(row[0] == f"`{extra}`" for row in rows) == len(own)
    pins = (ROOT / "constraints.txt").read_text("utf-8").lower().replace("_", "-")
    assert all(f"\n{name.lower()}=={version}\n" in pins for _, name, _, version in rows)


def test_tested_machines_count_every_result_once() -> None:
    counts = [int(each) for each in re.findall(r"\| (\d+) \|$", tested.machines(), re.MULTILINE)]
    assert sum(counts) == len(list((ROOT / "benchmarks" / "results").glob("*.json")))


def test_a_run_requests_the_sum_of_its_pods() -> None:
    rows = dict(re.findall(r"^\| (cores|memory in MiB) \| (.+) \|$", sizes.of_a_run(), re.MULTILINE))
    learner, quantizer, actor, evaluator = (
        yaml.safe_load_all((ROOT / "k8s" / "base" / f"{name}.yaml").read_text("utf-8"))
        for name in ("learner", "quantizer", "actor", "evaluator")
    )
    cpus = {
        each["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]
        for objects in (learner, quantizer, actor, evaluator)
        for each in objects
        if each and each["kind"] in ("Deployment", "StatefulSet")
    }
    # 1 + 0.25 + 0.25, and 0.25 for each actor.
    assert cpus == {"1", "250m"}
    assert rows["cores"] == "1.5 + 0.25 x actors"


def test_steps_to_expect_are_those_of_the_newest_result_with_targets_that_can_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(environment: str, steps: int, solved: bool = True, target: float = 475.0) -> dict[str, object]:
        of = {"environment": environment, "algorithm": "dqn", "target_return": target}
        return {**of, "environment_steps": steps, "solved": solved}

    results = {
        "later": ("2026-02-01", {"runs": [run("A-v0", 3_000), run("A-v0", 1_000), run("B-v0", 9_001, solved=False)]}),
        "earlier": ("2026-01-01", {"runs": [run("A-v0", 7_000)]}),
        "long": ("2026-03-01", {"runs": [run("A-v0", 8_000, target=1e9)]}),
        "other": ("2026-04-01", {"runs": 5}),
    }
    monkeypatch.setattr(expectations, "stored", lambda: sorted(results))
    monkeypatch.setattr(expectations, "load", lambda name: {"date": results[name][0]})
    monkeypatch.setattr(expectations, "figures", lambda name: results[name][1])
    _, _, first, second = expectations.steps_to_target().splitlines()
    assert first == "| `A-v0` | DQN | standard | 475 | 2 of 2 | 2,000 (1,000 to 3,000) |"
    assert second == "| `B-v0` | DQN | standard | 475 | 0 of 1 | more than 9,000 |"


def test_the_citation_equals_the_file() -> None:
    whole = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    made = citation.entries()
    assert whole["title"] in made
    assert f"version = {{{whole['version']}}}" in made
    assert all(author["family-names"] in made for author in whole["references"][0]["authors"])


@pytest.mark.parametrize("name", ["file of examples/act.py", "file of examples/slurm/train.sbatch"])
def test_a_file_of_the_project_is_a_code_block(name: str) -> None:
    made = parts.part(name)
    content = (ROOT / name.removeprefix("file of ")).read_text("utf-8")
    assert made.splitlines()[1:-1] == content.splitlines()
    assert made.startswith("```python" if name.endswith(".py") else "```sh")
