"""`actorq verify`: its findings for intact and damaged runs. It changes nothing."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from actorq.config.run_config import RunConfig
from actorq.domain.policy import Checkpoint
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import RunState
from actorq.domain.trajectory import Evaluation, PolicySpan, Segment
from actorq.rundirectory import Addresses, RunDirectory
from actorq.statefiles.documents import read_document, write_document
from actorq.statefiles.highwater import HighWaterMark
from actorq.statefiles.policies import retained_policies
from actorq_apps.cli.main import main
from learner_service.actors.members import Member
from learner_service.replay import ReplayStore, SegmentSource
from learner_service.run.evaluations import EvaluationLog
from learner_service.run.identity import RunClock
from learner_service.run.outcome import Outcome
from learner_service.training.checkpoint import Checkpoints, LearnerState
from quantizer_service.store.store import PolicyStore
from tests.builders.graphs import graph_of
from tests.builders.identities import claimed

SPEC = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), sizes=(2,))
GRAPH = graph_of(b"\xffa graph", ("observations",))


def fill(root: Path) -> None:
    """A small run that is over, with each kind of file."""
    run = RunDirectory(root)
    run.create(RunConfig())
    run.write_addresses(Addresses("127.0.0.1:1", "127.0.0.1:2"))
    write_document(run.summary, {"state": "solved"})
    run.log("learner").write_text("started\n")
    identity = claimed(root, resume=False)
    identity.write_environment(SPEC)
    RunClock(root, 100.0, lambda: 142.0).beat()
    Outcome.of(RunState.SOLVED, 42.0, RunConfig()).write(root)
    log = EvaluationLog(root / "evaluations.jsonl")
    for sequence in (1, 2):
        log.append(Member("judge", "evaluator", 0, 1), Evaluation(sequence, 1, 0, "int8", (9.0,), (9,), 0.5), 100, 1.0)
    log.close()
    for updates in (8, 16):
        Checkpoints(root / "checkpoints", 3).save(LearnerState(updates, {"weights": torch.zeros(4)}, {}))
    mark = HighWaterMark(root / "published.json", 0)
    mark.reserve(2)
    mark.close()
    write_document(root / "policy_graph.json", {"key": "", "model": ""})
    replay = ReplayStore.open(root / "replay", SPEC, 100)
    replay.insert(segment(), SegmentSource.from_name("actor-0", 1, 1))
    replay.close()
    store = PolicyStore(run.policies, 4, 1)
    store.claim(identity.run_id)
    store.add_graph(GRAPH)
    for version in (1, 2):
        batch = {"observations": np.zeros((2, 4), np.float32)}
        store.add_version(Checkpoint(version, 0, GRAPH.digest, {"w": np.zeros(3, np.float32)}, batch, 0.0), ())
    store.add_evaluation(2, 9.0)
    store.close()


def segment() -> Segment:
    steps = np.zeros((4, 1), np.bool_)
    return Segment(
        sequence=1,
        spans=(PolicySpan(0, 1, "int8"),),
        columns={
            "observations": np.ones((5, 1, 4), np.float32),
            "actions": np.zeros((4, 1), np.int64),
            "rewards": np.ones((4, 1), np.float32),
            "terminated": steps,
            "truncated": steps,
            "valid": ~steps,
            "ages": np.zeros(1, np.uint8),
        },
    )


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "run")
    return tmp_path / "run"


def found(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and the findings by path."""
    before = contents(root)
    code = main(["verify", str(root), "--json"])
    assert contents(root) == before
    return code, {each["path"]: each for each in json.loads(capsys.readouterr().out)}


def test_an_intact_run_has_no_faults(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, findings = found(root, capsys)
    assert code == 0
    assert {each["state"] for each in findings.values()} == {"whole", "unchecked"}
    assert {
        *("config.yaml", "config.copy.yaml", "summary.json", "addresses.json", "run.json", "run.copy.json"),
        *("environment.json", "environment.copy.json", "outcome.json", "outcome.copy.json", "clock.json"),
        *("evaluations.jsonl", "evaluations.count.json", "published.json", "policies/high_water.json"),
        *("policy_graph.json", "replay/meta.json", "replay/directory.bin", "replay/rewards.bin"),
        *("checkpoints/000000000008", "checkpoints/000000000016", "logs"),
        *("policies/run.json", "policies/run.copy.json", "policies/00000001", "policies/00000002"),
    } <= findings.keys()
    assert findings["policies/00000002"]["detail"] == "fp32 tensors, return 9.00"


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    flip_at(path, path.stat().st_size // 2)


def flip_at(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "config.yaml": (flip, "config.yaml", "other copy"),
    "run.copy.json": (empty, "run.copy.json", "other copy"),
    "environment.json": (flip, "environment.json", "other copy"),
    "outcome.json": (Path.unlink, "outcome.json", "other copy"),
    "clock.json": (empty, "clock.json", "newest checkpoint or evaluation"),
    "evaluations.jsonl": (flip, "evaluations.jsonl", "other lines are used"),
    "evaluations.count.json": (empty, "evaluations.count.json", "written again"),
    "published.json": (flip, "published.json", "far above"),
    "policy_graph.json": (flip, "policy_graph.json", "exported again"),
    "policies/high_water.json": (flip, "policies/high_water.json", "far above"),
    "replay/meta.json": (flip, "replay/meta.json", "other copy"),
    "replay/observations.bin": (lambda path: flip_at(path, 2), "replay", "others are kept"),
    "summary.json": (flip, "summary.json", "written again"),
    "checkpoints/000000000016/state.json": (flip, "checkpoints/000000000016", "whole checkpoint"),
    "checkpoints/000000000016/tensors.safetensors": (flip, "checkpoints/000000000016", "whole checkpoint"),
    "policies/run.json": (flip, "policies/run.json", "other copy"),
    "policies/00000002/checkpoint.json": (flip, "policies/00000002/checkpoint.json", "number is not used again"),
    "policies/00000002/evaluation.json": (flip, "policies/00000002/evaluation.json", "not evaluated"),
    f"policies/graphs/{GRAPH.digest.hex()}.onnx": (
        flip,
        f"policies/graphs/{GRAPH.digest.hex()[:16]}",
        "sends the graph again",
    ),
}


# Further losses because of the damaged graph.
GRAPHLESS = {"policies/00000001/checkpoint.json"}


@pytest.mark.parametrize("which", [0, 1], ids=["one half of them", "the other half"])
def test_a_damaged_file_is_named_with_what_a_resume_does(
    root: Path, which: int, capsys: pytest.CaptureFixture[str]
) -> None:
    damages = dict(list(DAMAGES.items())[which::2])
    for name, (damage, _, _) in damages.items():
        damage(root / name)
    code, findings = found(root, capsys)
    assert code == 1
    hit = {path for _, path, _ in damages.values()}
    assert hit == {path for path, each in findings.items() if each["state"] in {"damaged", "missing"}} - GRAPHLESS
    for _, path, on_resume in damages.values():
        assert on_resume in findings[path]["on_resume"]


def test_a_half_replaced_checkpoint_is_reported_as_restored_by_a_resume(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = root / "checkpoints" / "000000000016"
    newest.rename(newest.with_suffix(".replaced"))
    code, findings = found(root, capsys)
    replaced = findings["checkpoints/000000000016.replaced"]
    assert (code, replaced["state"]) == (0, "whole")
    assert re.match("16 updates.*puts it back", replaced["detail"])


def test_a_damaged_checkpoint_older_than_an_intact_one_stays(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(root / "checkpoints" / "000000000008" / "state.json")
    _, findings = found(root, capsys)
    assert "newer whole checkpoint" in findings["checkpoints/000000000008"]["on_resume"]
    Checkpoints(root / "checkpoints", 3).load_newest()
    assert (root / "checkpoints" / "000000000008").exists()


def test_reports_a_store_or_version_that_the_quantizer_refuses(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in root.glob("policies/run*.json"):
        write_document(path, {**read_document(path), "format": 2})
    checkpoint = root / "policies" / "00000001" / "checkpoint.json"
    write_document(checkpoint, {**read_document(checkpoint), "schemes": ["int8"]})
    code, findings = found(root, capsys)
    store, version = findings["policies/run.json"], findings["policies/00000001"]
    assert (code, store["state"], version["state"]) == (1, "damaged", "missing")
    assert "refused" in store["on_resume"]
    assert re.search("format 4.* 2 ", store["detail"])
    assert "['int8']" in version["detail"]
    assert [each.version for each in retained_policies(root / "policies")] == [2]


def test_without_an_intact_copy_it_reports_what_a_resume_loses(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run", "environment", "outcome"):
        for path in root.glob(f"{name}*.json"):
            empty(path)
    for path in root.glob("checkpoints/*/state.json"):
        flip(path)
    _, findings = found(root, capsys)
    assert "refused" in findings["run.json"]["on_resume"]
    assert "next actor" in findings["environment.json"]["on_resume"]
    assert "not over" in findings["outcome.copy.json"]["on_resume"]
    assert "refused without --checkpoint.new-networks" in findings["checkpoints/000000000008"]["on_resume"]


def test_reports_an_unreadable_file_as_unreadable(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = ["checkpoints/000000000016/tensors.safetensors", "outcome.json", "policies/00000001/checkpoint.json"]
    for path in paths:
        (root / path).unlink()
        (root / path).symlink_to(Path(path).name)
    code, findings = found(root, capsys)
    assert code == 1
    for name in ("checkpoints/000000000016", "outcome.json", "policies/00000001/checkpoint.json"):
        assert findings[name]["state"] == "unreadable", name
    assert "changes nothing" in findings["checkpoints/000000000016"]["on_resume"]
    assert "other copy" in findings["outcome.json"]["on_resume"]


def test_the_table_has_a_line_for_each_file_and_no_colour_or_control_character_in_a_pipe(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "checkpoints" / "evil\x1b[2Jname").mkdir()
    empty(root / "clock.json")
    assert main(["verify", str(root)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert any(line.startswith("run.json") and " whole " in line for line in lines)
    clock = next(number for number, line in enumerate(lines) if line.startswith("clock.json"))
    assert " damaged " in lines[clock]
    assert "on resume: the time " in lines[clock + 1]
    assert "1 damaged" in lines[-1]


def test_warns_that_an_active_run_may_have_incomplete_files(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty(root / "clock.json")
    assert main(["verify", str(root)]) == 1
    assert "the run is active" not in capsys.readouterr().out
    with RunDirectory(root).locked(on_wait=pytest.fail):
        assert main(["verify", str(root)]) == 1
    assert "the run is active" in capsys.readouterr().out.splitlines()[-1]


def test_a_folder_of_no_run_is_a_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, reason in ((tmp_path, "no run"), (tmp_path / "absent", "not exist")):
        assert main(["verify", str(name)]) == 2
        assert re.search(f"{name} .*{reason}", capsys.readouterr().err)
    assert not any(tmp_path.iterdir())


def test_the_learners_files_are_checked_without_pytorch() -> None:
    # Its import would take most of the command's time.
    script = "import sys, learner_service.verify; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
