"""Runs `actorq` as a process, like a user."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from actorq.client import LearnerClient
from actorq.domain.status import RunStatus
from actorq.errors import UnavailableError
from actorq.transport.options import Certificates
from tests.builders.forked_commands import ForkedCommand, run

_PATIENCE_S = 150
# A run that no target or budget ends, even on a slow machine. It has no meter, because that starts slowly.
ENDLESS = ("--target-return", "501", "--max-environment-steps", "10000000", "--no-energy.enabled")


def actorq(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return run("actorq_apps.cli.main", *arguments, timeout=_PATIENCE_S, cwd=cwd)


@dataclass
class TrainingRun:
    """A running `actorq train`."""

    directory: Path
    process: ForkedCommand

    @classmethod
    def start(cls, directory: Path, *arguments: str) -> "TrainingRun":
        """Start training, and return at once."""
        return cls(
            directory, ForkedCommand("actorq_apps.cli.main", "train", "--run-directory", str(directory), *arguments)
        )

    def until(self, condition: Callable[[RunStatus], bool], certificates: Certificates | None = None) -> RunStatus:
        """Read the run's printed lines until its learner serves, then its status until `condition` holds."""
        for _ in iter(self.process.stdout.readline, ""):
            if "learner" not in self.addresses():
                continue
            try:
                with LearnerClient(self.addresses()["learner"], certificates) as learner:
                    for status in learner.watch(period_s=0.05):
                        if condition(status):
                            return status
            except UnavailableError:
                continue
        raise AssertionError(f"the run ended too early: {self.process.communicate()[1]}")

    def addresses(self) -> dict[str, Any]:
        """The addresses of its services that the run has written so far."""
        file = self.directory / "addresses.json"
        addresses: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return addresses

    def finish(self) -> tuple[int, str]:
        """Wait for the end; returns the exit code and the output."""
        out, err = self.process.communicate(timeout=_PATIENCE_S)
        return self.process.wait(), out + err

    def await_line(self, part: str) -> None:
        """Read printed lines until one contains this text."""
        assert any(part in line for line in iter(self.process.stdout.readline, "")), f"nothing printed has {part!r}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal only to the launcher."""
        os.kill(self.process.pid, number)

    def services(self) -> list[psutil.Process]:
        """All processes below the launcher."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def summary(self) -> dict[str, Any]:
        """The summary of the run."""
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return summary


def process_id(status: RunStatus, name: str) -> int:
    """The process id that one of the run's processes reports."""
    return next(process.pid for process in status.processes if process.name == name)


def trained(updates: int) -> Callable[[RunStatus], bool]:
    """True once the learner has made this number of updates, and all services have reported."""

    def holds(status: RunStatus) -> bool:
        names = {process.name for process in status.processes}
        return status.updates >= updates and {"learner", "quantizer", "actor-0", "actor-1"} <= names

    return holds
