"""Checks the code blocks of the documentation: commands, files and Python."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from actorq.config.run_config import RunConfig
from actorq.config.settings import leaves
from actorq.process import Sources, argument_parser
from actorq_apps.cli.train import TrainSettings
from sitegen.checks import Block
from sitegen.commands import help_of
from tests.builders.forked_commands import run
from tests.documentation.code_blocks import PAGES, ROOT, blocks, shell_lines

# External programs. Their commands need a cluster, a registry or a service.
OTHERS = {
    "cd",
    ".ci/pythons",
    "cffconvert",
    "curl",
    "docker",
    "done",
    "export",
    "for",
    "grpcurl",
    "helm",
    "kind",
    "kubectl",
    "lscpu",
    "minikube",
    "mkdir",
    "openssl",
    "sbatch",
    "scp",
    "ssh",
    "tensorboard",
    "twine",
    "umask",
    ".",
}
# Blocks that other tests run.
RUN_ELSEWHERE = {
    "README.md": "tests/integration/test_python_pages.py",
    "docs/how-to/clients.md": "tests/integration/test_api_examples.py",
    "docs/how-to/cluster-command.md": "tests/integration/test_mutual_tls.py",
    "docs/how-to/cluster-from-nothing.md": "tests/integration/test_mutual_tls.py",
    "docs/how-to/export.md": "tests/integration/test_export_page.py",
    "docs/how-to/from-stable-baselines3.md": "tests/integration/test_python_pages.py",
    "docs/how-to/python.md": "tests/integration/test_python_pages.py",
    "docs/how-to/quantize.md": "tests/integration/test_export_snippets.py",
    "docs/how-to/scheme.md": "tests/integration/test_outside_scheme.py",
    "docs/how-to/tls.md": "tests/integration/test_mutual_tls.py",
    "docs/tutorials/algorithm.md": "tests/learner_service/algorithms/test_algorithm_examples.py",
}
ENVIRONMENTS = "docs/tutorials/environment.md"
FINE_TUNING = "docs/tutorials/fine-tuning.md"
FOREIGN = "docs/tutorials/foreign-policy.md"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def flags_of(*command: str) -> set[str]:
    """All flags of a command."""
    found = set(re.findall(r"(?<![\w-])--?[a-z][\w.-]*", help_of(*command)))
    full = (
        set(re.findall(r"--[a-z][\w.-]*", help_of(*command, flag="--help-all")))
        if "--help-all" in str(found)
        else set()
    )
    return found | full


# Beginnings of the flags for single entries of mappings, such as "--policies.".
ENTRIES = tuple(f"{leaf.flag}." for leaf in leaves(RunConfig) if leaf.has_entries)


def test_every_block_is_closed_and_has_a_language() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("```") == 2 * len(blocks(page=str(page.relative_to(ROOT)))), page
    languages = {block.language for block in blocks()}
    assert languages <= {"cpp", "dockerfile", "json", "python", "sh", "text", "toml", "yaml"}


@pytest.mark.parametrize(("where", "line"), list(shell_lines()))
def test_commands_exist(where: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    # Variables before a command, and the next command of a line.
    while words and re.fullmatch(r"\w+=\S*", words[0]):
        words.pop(0)
    if not words or words[0] in OTHERS:
        if "-k" in words:
            assert (ROOT / words[words.index("-k") + 1]).is_dir()
        return
    program, *rest = words
    if program == "actorq":
        check_actorq(rest)
    elif program == "make":
        assert all(word in TARGETS or "=" in word for word in rest), line
    elif program == "pip":
        extras = re.findall(r"\[(.+?)\]", line)
        assert all(extra in EXTRAS for named in extras for extra in named.split(",")), line
    elif program == "python" and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]), line
    else:
        assert program == "python", line
        of_page = f"`{rest[0]}`" in (ROOT / where.partition(":")[0]).read_text(encoding="utf-8")
        assert of_page or (ROOT / rest[0]).is_file(), line


def check_actorq(words: list[str]) -> None:
    """Command and flags of an `actorq` line; the values of settings of `actorq train`."""
    command = words[:2] if words[0] == "cluster" else words[:1]
    rest = words[len(command) :]
    given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
    given = {flag for flag in given if not flag.startswith(ENTRIES)}
    if given != {"--help"}:
        assert given <= flags_of(*command), sorted(given - flags_of(*command))
    if command == ["train"] and rest and not rest[0].startswith("-"):
        rest = ["--environment", *rest]
    if command == ["train"] and not given & {"--help", "--config", "--network"}:
        models = (TrainSettings, RunConfig)
        Sources.read(models, argument_parser("actorq train", "", models).parse_args(rest)).resolve(RunConfig)


@pytest.mark.parametrize("block", [*blocks("yaml"), *blocks("toml"), *blocks("json")], ids=str)
def test_files_can_be_parsed(block: Block) -> None:
    readers: dict[str, Callable[[str], Any]] = {"yaml": yaml.safe_load, "toml": tomllib.loads, "json": json.loads}
    if not block.reason:
        readers[block.language](block.code)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_compiles_and_a_test_runs_it(block: Block) -> None:
    compile(block.code, str(block), "exec")
    elsewhere = RUN_ELSEWHERE.get(block.page)
    assert block.reason or elsewhere or block.page in {ENVIRONMENTS, FINE_TUNING, FOREIGN}, "no test runs this block"
    assert elsewhere is None or Path(block.page).name in (ROOT / elsewhere).read_text(encoding="utf-8")


def test_the_environments_of_the_tutorial_are_trained(tmp_path: Path) -> None:
    (code,) = (each.code for each in blocks("python", ENVIRONMENTS))
    (tmp_path / "my_environments.py").write_text(code, encoding="utf-8")
    commands = [each.code.replace("\\\n", " ") for each in blocks("sh", ENVIRONMENTS)]
    ends = ("--max-environment-steps", "600", "--evaluation.episodes", "1", "--no-energy.enabled")
    for command in commands:
        program, *words = shlex.split(command, comments=True)
        assert program == "actorq"
        trains = words[0] == "train"
        completed = run("actorq_apps.cli.main", *words, *(ends if trains else ()), cwd=tmp_path, timeout=120)
        assert completed.returncode in ((0, 3) if trains else (0,)), completed.stderr


def test_a_run_starts_with_the_networks_of_the_previous_run(tmp_path: Path) -> None:
    (code,) = (each.code for each in blocks("python", FINE_TUNING))
    (tmp_path / "my_physics.py").write_text(code, encoding="utf-8")
    commands = [each.code.replace("\\\n", " ") for each in blocks("sh", FINE_TUNING) if "s3://" not in each.code]
    assert len(commands) == 3
    for command in commands:
        _, *words = shlex.split(command, comments=True)
        ends = ("--max-environment-steps", "1500", "--evaluation.episodes", "1", "--no-energy.enabled")
        completed = run("actorq_apps.cli.main", *words, *ends, cwd=tmp_path, timeout=120)
        assert completed.returncode in (0, 3), completed.stderr
    for name in ("long-pole", "long-pole-2"):
        log = (tmp_path / "runs" / name / "logs" / "learner.log").read_text(encoding="utf-8")
        assert "begins with the networks of" in log


def test_the_policy_of_another_library_is_quantized_and_acts(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3", reason="stable-baselines3 is in no extra of the project")
    training, *rest = blocks("python", FOREIGN)
    quantize = [each.code.replace("\\\n", " ") for each in blocks("sh", FOREIGN) if each.code.startswith("actorq")]
    # Just beyond SAC's random steps, because the test needs no trained policy.
    python = [["-c", code] for code in (training.code.replace("2500", "110"), *(block.code for block in rest))]
    actorq = [["-m", "actorq_apps.cli.main", *shlex.split(command)[1:], "--force"] for command in quantize]
    for arguments in (*python[:2], *actorq, *python[2:]):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=environment, check=True, timeout=120)
