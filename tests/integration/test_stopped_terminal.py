"""A run in a terminal that is stopped with Ctrl-S continues, and a signal ends it."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from actorq.client import LearnerClient
from actorq.domain.status import RunStatus
from actorq.errors import ActorQError
from actorq.rundirectory import RunDirectory
from tests.integration.test_failures import goes_on_without
from tests.integration.training_run import ENDLESS, process_id, trained

_CTRL_S = b"\x13"


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_a_stopped_terminal_delays_neither_the_run_nor_its_end(tmp_path: Path, terminal: str) -> None:
    run = RunDirectory(tmp_path / "run")
    command = [sys.executable, "-m", "actorq_apps.cli.main", "train", "--run-directory", str(run.root), *ENDLESS]
    keyboard, screen = pty.openpty()
    process = subprocess.Popen(command, stdout=screen, env=os.environ | {"TERM": terminal})

    def until(condition: Callable[[RunStatus], bool]) -> RunStatus:
        with LearnerClient(run.read_addresses().learner) as learner:
            return next(status for status in learner.watch(period_s=0.05) if condition(status))

    def trained_status() -> RunStatus:
        while os.read(keyboard, 2**16):
            # The learner may not serve yet.
            with suppress(ActorQError):
                return until(trained(updates=100))
        raise AssertionError("the run ended too early")

    try:
        status = trained_status()
        os.write(keyboard, _CTRL_S)
        ended = process_id(status, "actor-0")
        os.kill(ended, signal.SIGKILL)
        until(goes_on_without("actor-0", ended, status.environment_steps))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        os.close(screen)
        os.close(keyboard)
