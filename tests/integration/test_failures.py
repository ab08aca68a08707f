"""Any process may be killed at any time. The run continues, and no process or file is left behind."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from actorq.client import LearnerClient
from actorq.domain.status import RunStatus
from tests.integration.training_run import ENDLESS, TrainingRun, process_id, trained

ROOT = Path(__file__).parents[2]


def goes_on_without(name: str, ended: int, steps: int) -> Callable[[RunStatus], bool]:
    """True once another process has the name, and more steps are stored."""

    def holds(status: RunStatus) -> bool:
        processes = {process.name: process.pid for process in status.processes}
        return processes.get(name, ended) != ended and status.environment_steps > steps

    return holds


def test_a_run_survives_the_end_of_each_service(tmp_path: Path) -> None:
    # Unreachable: a solved run would end before its last service is killed.
    run = TrainingRun.start(tmp_path / "run", *ENDLESS, "--checkpoint.period-s", "1")
    status = run.until(trained(updates=100))
    ends = (
        ("actor-0", signal.SIGKILL),
        ("quantizer", signal.SIGKILL),
        ("learner", signal.SIGKILL),
        ("learner", signal.SIGTERM),
    )
    for victim, number in ends:
        ended = process_id(status, victim)
        os.kill(ended, number)
        before, status = status, run.until(goes_on_without(victim, ended, status.environment_steps))
        # The next learner has all acknowledged transitions.
        assert status.environment_steps > before.environment_steps
    with LearnerClient(run.addresses()["learner"]) as learner:
        learner.stop()
    code, printed = run.finish()
    assert code == 4, printed
    log = (run.directory / "logs" / "launcher.log").read_text()
    assert re.findall(r"launcher: (\S+) restarted", log) == [name for name, _ in ends]
    summary = run.summary()
    assert summary["state"] == "stopped"
    # The fidelity gate may pass a version only in fp32.
    assert "int8" in summary["transitions_by_scheme"]


def test_a_run_survives_another_process_with_an_actors_name(tmp_path: Path) -> None:
    run = TrainingRun.start(tmp_path / "run", *ENDLESS)
    status = run.until(trained(updates=100))
    with LearnerClient(run.addresses()["learner"]) as learner:
        learner.join("actor-0", 0, "actor", "1", nonce=7)
        run.until(goes_on_without("actor-0", process_id(status, "actor-0"), status.environment_steps))
        learner.stop()
    code, printed = run.finish()
    assert code == 4, printed
    log = (run.directory / "logs" / "actor-0.log").read_text()
    assert re.search("'actor-0': another process", log)
    assert "Traceback" not in log


def test_no_process_outlives_a_killed_launcher(tmp_path: Path) -> None:
    run = TrainingRun.start(tmp_path / "run", *ENDLESS)
    run.until(trained(updates=100))
    services = run.services()
    assert len(services) >= 5
    run.signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(services, timeout=60)
    assert not alive
    run.process.communicate()


def test_an_interrupt_drains_saves_and_leaves_no_process(tmp_path: Path) -> None:
    run = TrainingRun.start(tmp_path / "run", *ENDLESS)
    run.until(trained(updates=100))
    services = run.services()
    run.signal(signal.SIGINT)
    code, printed = run.finish()
    assert code == 130, printed
    assert "--resume" in printed
    _, alive = psutil.wait_procs(services, timeout=60)
    assert not alive
    assert any((run.directory / "checkpoints").iterdir())
    assert run.summary()["state"] == "interrupted"


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    run = TrainingRun.start(tmp_path / "run", *ENDLESS)
    status = run.until(trained(updates=100))
    services = run.services()
    # The process does not end before the second interrupt.
    os.kill(process_id(status, "learner"), signal.SIGSTOP)
    run.signal(signal.SIGINT)
    run.await_line("a second signal ends at once")
    run.signal(signal.SIGINT)
    code, printed = run.finish()
    assert code == 130
    assert "SIGINT again" in printed
    _, alive = psutil.wait_procs(services, timeout=60)
    assert not alive


def test_a_users_algorithm_that_fails_twice_in_a_row_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "user_modules")]))
    run = TrainingRun.start(tmp_path / "run", "--algorithm", "own_algorithms:ThatCannotUpdate")
    code, printed = run.finish()
    assert code == 2, printed
    log = run.directory / "logs" / "learner.log"
    assert re.fullmatch(f"error: .*twice .*ZeroDivisionError: losses / 0; .*{log}", printed.splitlines()[-1])
    assert "in update" in log.read_text()
    assert sum("learner restarted" in line for line in printed.splitlines()) == 1


def test_a_users_algorithm_that_fails_at_the_start_is_reported_with_its_line_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "user_modules")]))
    run = TrainingRun.start(tmp_path / "run", "--algorithm", "own_algorithms:ThatFails")
    code, printed = run.finish()
    assert code == 2
    last = printed.splitlines()[-1]
    assert re.match(
        r"error: .*own_algorithms:ThatFails .*ZeroDivisionError: batches / 0 .*own_algorithms\.py:\d+", last
    )
    assert not run.directory.exists()
