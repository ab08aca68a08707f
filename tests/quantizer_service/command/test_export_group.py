"""`actorq export --group`: the policy of one group of agents alone."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import actorq
from actorq.process import main
from actorq.rundirectory import RunDirectory
from actorq.statefiles.lines import encode_line
from quantizer_service.command import export
from tests.builders.grouped import AGENTS, GROUPS, random_rows
from tests.builders.stored_policies import stored_run
from tests.quantizer_service.emission.test_groups import made, ruined

pytestmark = pytest.mark.usefixtures("operators_parsed_once")

Exit = Callable[..., tuple[int, str, str]]
POLICIES = {group.name: list(group.agents) for group in GROUPS}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of two groups with one evaluated version. The layers of the group "pair" are ruined by int8."""
    spec, graph, checkpoint = made("dqn", rows=random_rows(400, np.arange(400) % 2))
    root = tmp_path_factory.mktemp("stored") / "run"
    found = stored_run(root, graph.source, [ruined(checkpoint, "pair")], spec=spec, policies=POLICIES)
    evaluation = {
        **{"policy_version": 1, "scheme": "int8", "returns": [6.0, 9.0], "agents": AGENTS},
        "agent_returns": [1.0, 2.0, 3.0, 2.0, 3.0, 4.0],
    }
    with found.evaluations.open("ab") as log:
        log.write(encode_line({"evaluation": evaluation}))
    return found


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Exit:
    """Runs the command in its own folder. Returns the exit code, the output and the errors."""
    monkeypatch.chdir(tmp_path)

    def called(*arguments: str | Path) -> tuple[int, str, str]:
        code = main(lambda: export.run([str(each) for each in arguments]))
        return code, *capsys.readouterr()

    return called


@pytest.mark.parametrize("form", ["onnxruntime", "standard"])
def test_the_file_has_the_policy_of_one_group(run: RunDirectory, command: Exit, form: str) -> None:
    code, out, err = command(run.root, "--group", "solo", "--form", form)
    assert (code, err) == (0, "")
    assert out.startswith("policy.onnx: version 1, int8")
    described = json.loads(Path("policy.json").read_text())
    assert described["group"] == {"name": "solo", "agents": ["red"]}
    assert described["environment"]["observations"]["shape"] == [3]
    assert "groups" not in described["environment"]
    assert described["inputs"]["observations"]["shape"] == ["batch", 3]
    fidelity = described["fidelity"]
    assert (fidelity["passed"], fidelity["observations"]) == (True, 200)
    assert "groups" not in fidelity
    assert [layer["name"] for layer in fidelity["layers"] if layer["weights"] != "float32"] == ["torso.group_solo.2"]
    whole = actorq.load_policy(run.root)
    alone = actorq.load_policy(Path("policy.onnx"))
    rows = random_rows(64, 1, seed=5)
    agreement = (alone.predict(np.delete(rows, [1, 2], 1)) == whole.predict(rows)).mean()
    assert agreement > 0.95


def test_the_description_has_the_returns_of_the_group(run: RunDirectory, command: Exit) -> None:
    # The quantizer knows no return of this version, so the newest evaluation does not count.
    assert command(run.root, "--group", "solo")[0] == 0
    assert json.loads(Path("policy.json").read_text())["evaluation"] is None
    evaluation = {"returns": [6.0, 9.0], "agents": AGENTS, "agent_returns": [1.0, 2.0, 3.0, 2.0, 3.0, 4.0]}
    pair, solo = (export._of_group(evaluation, group) for group in GROUPS)
    assert pair is not None
    assert solo is not None
    assert pair["returns"] == [5.0, 7.0]
    assert solo["returns"] == [1.0, 2.0]


def test_the_gate_refuses_the_policy_of_a_bad_group(run: RunDirectory, command: Exit) -> None:
    code, out, err = command(run.root, "--group", "pair")
    assert (code, out) == (7, "")
    assert "the fidelity gate refused scheme int8" in err
    assert not Path("policy.onnx").exists()
    code, _, err = command(run.root, "--group", "pair", "--force")
    assert code == 0
    assert "written because of --force" in err
    described = json.loads(Path("policy.json").read_text())
    assert (described["group"]["name"], described["fidelity"]["passed"]) == ("pair", False)
    code, out, _ = command(run.root, "--group", "pair", "--scheme", "fp32", "--force")
    assert (code, "fp32" in out) == (0, True)


def test_the_whole_policy_keeps_its_groups(run: RunDirectory, command: Exit) -> None:
    assert command(run.root, "--scheme", "fp32")[0] == 0
    described = json.loads(Path("policy.json").read_text())
    assert [group["name"] for group in described["environment"]["groups"]] == ["pair", "solo"]
    assert [group["name"] for group in described["fidelity"]["groups"]] == ["pair", "solo"]
    assert "group" not in described
    loaded = actorq.load_policy(Path("policy.onnx"))
    assert loaded.environment.groups == GROUPS


def test_an_unknown_group_is_a_mistake(run: RunDirectory, command: Exit, tmp_path: Path) -> None:
    code, out, err = command(run.root, "--group", "other")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--group: expected a group of" in err
    assert "(pair, solo), got other" in err
    spec, graph, checkpoint = made("dqn")
    plain = stored_run(tmp_path / "plain", graph.source, [checkpoint], spec=spec.without_groups)
    code, out, err = command(plain.root, "--group", "pair")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is one for all, got pair; leave --group out" in err
