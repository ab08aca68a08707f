"""`actorq status` of starting runs, of runs without processes, and of services that do not match."""

import re
import sys
from pathlib import Path

import pytest

from actorq.config.run_config import RunConfig
from actorq.errors import UnavailableError
from actorq.rundirectory import Addresses, RunDirectory
from actorq.statefiles.documents import write_document
from actorq.transport.options import Certificates
from actorq_apps.cli.main import main
from tests.actorq.transport.certificate_authority import Authority
from tests.actorq.transport.staged_servicer import StagedLearner, serving


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """The newest run. Nothing listens at its learner's address."""
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
    assert err.count("runs/") == err.count("\n") == 2


def test_a_run_that_has_ended_shows_its_result_and_what_to_do(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    write_document(run.summary, {"state": "budget ended", "solved": False, "target_return": 0.95})
    assert main(["status", str(run.root)]) == 0
    verdict, *_, command, folder = capsys.readouterr().out.splitlines()
    assert verdict == "budget ended: no evaluation yet (target 0.95)"
    assert command.startswith("continue with: actorq train --resume --run-directory runs/mine")
    assert folder == "runs/mine"


def test_the_status_of_a_folder_is_that_of_its_active_run(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    other = RunDirectory(Path("runs") / "newer")
    other.create(RunConfig())
    other.write_addresses(Addresses("127.0.0.1:1", "127.0.0.1:1"))
    with run.locked(on_wait=pytest.fail), other.locked(on_wait=pytest.fail):
        assert main(["status", "runs/mine"]) == 0
    assert "runs/mine  Acrobot-v1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("status", "nowhere"), "nowhere "),
        (("status", "runs/mine", "--learner", "127.0.0.1:1"), "RUN_DIR or --learner"),
    ],
)
def test_reports_a_wrong_run_in_one_line(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], fact: str
) -> None:
    assert re.search(fact, error_of(capsys, *arguments))


def test_a_run_is_in_use_while_its_launcher_lives(run: RunDirectory) -> None:
    assert not run.is_in_use
    with run.locked(on_wait=pytest.fail):
        assert run.is_in_use
    assert not run.is_in_use


OF_ITS_RUN = "--certificates DIR"


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    return capsys.readouterr().err.removeprefix("error: ").rstrip("\n")


def test_does_not_report_an_answering_learner_as_absent(capsys: pytest.CaptureFixture[str]) -> None:
    async def restores() -> None:
        raise UnavailableError("the learner is restoring its run")

    with serving(StagedLearner(restores)) as stage:
        told = error_of(capsys, "status", "--learner", stage.address)
    assert told.endswith(f"{stage.address}: the learner is restoring its run")


@pytest.mark.parametrize("command", [("policies", "--quantizer"), ("reset-environment", "--learner")])
def test_does_not_report_another_service_as_absent(
    command: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(object(), add=lambda *_: None) as stage:
        told = error_of(capsys, *command, stage.address)
    assert re.search(f"{stage.address} .*address", told)


def test_a_service_with_tls_needs_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Certificates.load(Authority().issue(tmp_path, "server"))
    with serving(StagedLearner(), server) as stage:
        assert error_of(capsys, "status", "--learner", stage.address).endswith(OF_ITS_RUN)


def test_a_run_that_refuses_certificates_is_not_starting(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, stranger = (Authority().issue(tmp_path, name) for name in ("server", "stranger"))
    with serving(StagedLearner(), Certificates.load(server)) as stage, run.locked(on_wait=pytest.fail):
        run.write_addresses(Addresses(stage.address, stage.address))
        told = error_of(capsys, "status", "--certificates", str(stranger))
    assert "TLS" in told
    assert told.endswith(OF_ITS_RUN)


@pytest.mark.parametrize(("lines", "is_low"), [(24, True), (50, False)])
def test_a_terminal_with_few_lines_gets_the_panel_without_empty_lines(
    lines: int, is_low: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("LINES", str(lines))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    with serving(StagedLearner()) as stage:
        assert main(["status", "--learner", stage.address]) == 0
    shown = capsys.readouterr().out
    assert "evaluation return" in shown
    assert (f"│{' ' * 78}│" in shown) != is_low
