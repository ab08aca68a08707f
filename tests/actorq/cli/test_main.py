from pathlib import Path

import pytest

from actorq import __version__, settings
from actorq.cli.main import main
from actorq.config import RunConfig
from actorq.rundirectory import RunDirectory


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a mistake gets."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("error: ").rstrip("\n")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"actorq {__version__}\n"


def test_help_shows_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in ("train", "evaluate", "status", "learner", "quantizer", "actor", "meter"):
        assert f"\n  {command} " in shown


def test_help_of_train_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    for leaf in settings.leaves(RunConfig):
        assert leaf.flag in shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "a command is missing; see actorq --help"),
        (["trian"], "unknown command 'trian'; did you mean train?"),
        (["train", "--sed", "1"], "unknown argument '--sed'; did you mean '--seed'?"),
        (["train", "--seed", "x"], "setting 'seed': "),
        (["train", "--config", "nope.yaml"], "--config: cannot read nope.yaml: No such file or directory"),
        (["train", "--resume"], "--resume needs --run-directory DIR"),
        (["train", "--resume", "--run-directory", "nope"], "run directory nope does not exist"),
        (["evaluate"], "the following arguments are required: RUN_DIR"),
        (["evaluate", "nope"], "run directory nope does not exist"),
        (["evaluate", "nope", "--episodes", "0"], "argument --episodes: expected a whole number from 1 on, got '0'"),
        (["status"], "no run under runs/: pass --learner HOST:PORT"),
        (["status", "--learner", "here"], "address: expected HOST:PORT"),
    ],
)
def test_a_mistake_gets_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    assert error_of(capsys, *arguments).startswith(expected)


def test_an_unknown_setting_in_the_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("dqn: {batchsize: 3}\n")
    assert error_of(capsys, "train", "--config", "run.yaml") == (
        "unknown setting 'dqn.batchsize'; did you mean 'dqn.batch_size'?"
    )


def test_an_unknown_variable_of_the_project_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTORQ_SEDE", "3")
    assert error_of(capsys, "train").startswith("environment variable ACTORQ_SEDE is no setting")


def test_resuming_with_another_environment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    RunDirectory(Path("run")).create(RunConfig())
    before = Path("run/config.yaml").read_text()
    message = error_of(capsys, "train", "--resume", "--run-directory", "run", "--environment", "Acrobot-v1")
    assert "are of environment CartPole-v1, got environment Acrobot-v1" in message
    assert Path("run/config.yaml").read_text() == before


def test_a_folder_that_is_no_run_is_not_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    assert "has no config.yaml" in error_of(capsys, "train", "--resume", "--run-directory", "run")


def test_a_run_without_policies_cannot_be_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    RunDirectory(Path("run")).create(RunConfig())
    assert error_of(capsys, "evaluate", "run").startswith("run/policies has no policies")


def test_a_learner_that_is_away_is_told_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--learner", "127.0.0.1:1"]) == 2
    message = capsys.readouterr().err
    assert "learner at 127.0.0.1:1 cannot be reached" in message
    assert "--learner HOST:PORT" in message
