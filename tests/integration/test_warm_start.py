"""A run on a changed CartPole starts from another run, which may still be training."""

import hashlib
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.integration.training_run import ENDLESS, TrainingRun, actorq, trained

ROOT = Path(__file__).parents[2]
LONGER_POLE = ("--environment-wrappers", "[{changed_physics:Physics: {length: 1.5}}]")
SHORT = (
    "--max-environment-steps",
    "3000",
    "--no-energy.enabled",
    "--target-return",
    "501",
    "--evaluation.episodes",
    "1",
)


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "user_modules")]))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("runs") / "other"
    assert actorq("train", "--run-directory", str(folder), *SHORT).returncode == 3
    return folder


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def log(folder: Path) -> str:
    return (folder / "logs" / "learner.log").read_text()


@pytest.mark.timeout(240)
def test_a_run_starts_with_networks_and_replay_of_an_unchanged_run(other: Path, tmp_path: Path) -> None:
    before = digests(other)
    run = TrainingRun.start(tmp_path / "run", "--init-from", str(other), "--init-replay", *LONGER_POLE, *SHORT)
    code, printed = run.finish()
    assert code == 3, printed
    assert digests(other) == before
    assert "begins with the networks of" in log(run.directory)
    assert "transitions of" in log(run.directory)
    # Only its own steps count for the budget, and updates begin at once.
    assert 3000 <= run.summary()["environment_steps"] < 5000
    assert run.summary()["updates"] > 250
    assert actorq("verify", str(run.directory)).returncode == 0
    assert digests(other) == before


@pytest.mark.timeout(240)
def test_an_interrupted_run_resumes_from_its_own_checkpoint_without_the_other_run(other: Path, tmp_path: Path) -> None:
    source = shutil.copytree(other, tmp_path / "source")
    run = TrainingRun.start(tmp_path / "run", "--init-from", str(source), *LONGER_POLE, *ENDLESS)
    status = run.until(trained(100))
    run.signal(signal.SIGTERM)
    assert run.finish()[0] == 143
    shutil.rmtree(source)
    resumed = TrainingRun.start(tmp_path / "run", "--resume")
    again = resumed.until(trained(status.updates + 10))
    assert again.run_id == status.run_id
    assert again.environment_steps > status.environment_steps
    resumed.signal(signal.SIGTERM)
    assert resumed.finish()[0] == 143
    assert log(run.directory).count("begins with the networks of") == 1
    refused = actorq("train", "--resume", "--run-directory", str(tmp_path / "run"), "--init-from", str(other))
    assert refused.returncode == 2
    assert "expected init_from" in refused.stderr


@pytest.mark.timeout(240)
def test_a_run_starts_from_a_run_that_is_training(tmp_path: Path) -> None:
    first = TrainingRun.start(tmp_path / "first", "--checkpoint.period-s", "0.2", *ENDLESS)
    before = first.until(trained(200))
    code, printed = TrainingRun.start(
        tmp_path / "second", "--init-from", str(first.directory), "--init-replay", *SHORT
    ).finish()
    assert code == 3, printed
    after = first.until(trained(before.updates + 200))
    assert after.run_id == before.run_id
    first.signal(signal.SIGTERM)
    assert first.finish()[0] == 143
    assert actorq("verify", str(first.directory)).returncode == 0


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (("--init-from", "nowhere"), "init_from: expected the folder of a run"),
        (("--init-from", "OTHER", "--algorithm", "ppo"), "give --algorithm dqn"),
        (("--init-from", "OTHER", "--dqn.hidden-sizes", "8"), "give --dqn.hidden-sizes 64,64"),
        (("--init-from", "OTHER", "--environment", "Acrobot-v1"), "observations: expected float32[6]"),
        (("--init-from", "OTHER/logs"), "which has no checkpoints"),
        (("--init-replay",), "init_replay needs init_from"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_source_that_does_not_fit_is_refused_before_any_service_starts(
    flags: tuple[str, ...], fact: str, other: Path, tmp_path: Path
) -> None:
    given = [flag.replace("OTHER", str(other)) for flag in flags]
    result = actorq("train", *given, "--run-directory", "run", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert fact in result.stderr
    assert list(tmp_path.iterdir()) == []
