"""`actorq status` of a run that starts, and of one whose processes are gone."""

from pathlib import Path

import pytest

from actorq.cli.main import main
from actorq.config.run_config import RunConfig
from actorq.rundirectory import Addresses, RunDirectory


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """The newest run; nothing listens where its learner should be."""
    monkeypatch.chdir(tmp_path)
    directory = RunDirectory(Path("runs") / "mine")
    directory.create(RunConfig(environment="Acrobot-v1"))
    directory.write_addresses(Addresses("127.0.0.1:1", "127.0.0.1:1"))
    return directory


def test_a_run_whose_learner_does_not_answer_yet_is_starting(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    with run.locked(on_wait=pytest.fail):
        assert main(["status"]) == 0
    shown = capsys.readouterr().out
    for part in ("newest run: runs/mine", "Acrobot-v1", "starting"):
        assert part in shown


def test_a_run_without_processes_is_not_starting(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 2
    with run.locked(on_wait=pytest.fail):
        pass
    assert main(["status"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("no run is going on under runs/") == err.count("\n") == 2


def test_a_run_is_in_use_while_its_launcher_lives(run: RunDirectory) -> None:
    assert not run.is_in_use
    with run.locked(on_wait=pytest.fail):
        assert run.is_in_use
    assert not run.is_in_use
