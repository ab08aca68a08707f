"""A small service in a real process, for tests of the life of a process."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from tests.builders.forked_commands import ForkedCommand

TIMEOUT_S = 30.0

SERVICE = """
import asyncio
import signal
import sys
import threading

from pydantic import Field

from actorq.config.run_config import RunConfig
from actorq.errors import ActorQError, UserError
from actorq.process import ProcessSettings, Service, main, parse_arguments, run_process
from actorq.config.settings import Settings


class SmallSettings(Settings):
    code: int = Field(0, description="exit code")
    fail: str = Field("", description="where to fail")
    linger: bool = Field(False, description="drain until SIGUSR1 comes")
    unready: bool = Field(False, description="be ready when SIGUSR2 comes")
    hanging: bool = Field(False, description="make progress only after SIGUSR2")
    hanging_thread: bool = Field(False, description="leave a thread that never ends")
    slow_end: bool = Field(False, description="end the process only after a line on standard input")


class SmallService(Service):
    def __init__(self, settings):
        self.settings = settings
        self.done = asyncio.Event()
        self.ready = asyncio.Event()

    def register(self, server):
        if self.settings.fail == "register":
            raise UserError("--fail: register was told to fail")
        return ["small.Service"]

    async def until_ready(self):
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self.ready.set)
        if self.settings.unready:
            await self.ready.wait()

    def alive(self):
        return self.ready.is_set() or not self.settings.hanging

    async def run(self, address):
        if self.settings.fail == "run":
            raise ActorQError("the work failed")
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.done.set)
        if self.settings.hanging_thread:
            asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        print("running", flush=True)
        await self.done.wait()
        return self.settings.code

    def metrics(self):
        return []

    def begin_drain(self):
        print("draining", flush=True)
        if not self.settings.linger:
            self.done.set()

    def lose_parent(self):
        print("alone", flush=True)


def run():
    config, process, small = parse_arguments("small", "A service.", (RunConfig, ProcessSettings, SmallSettings))
    return run_process(lambda: SmallService(small), process, "small", config)


code = main(run)
if "--slow-end" in sys.argv:
    print("the loop is closed", flush=True)
    sys.stdin.readline()
sys.exit(code)
"""


class SmallProcess:
    """The process and its output."""

    def __init__(self, folder: Path) -> None:
        self._script = folder / "small.py"
        self._script.write_text(SERVICE, encoding="utf-8")
        self._announcement = folder / "announced" / "small.json"
        self._announcement.parent.mkdir()
        self.process: ForkedCommand | None = None

    def start(self, *arguments: str, lifeline: int | None = None) -> "SmallProcess":
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ACTORQ_")}
        announced = ("--announce", str(self._announcement), *arguments)
        folder = self._script.parent
        self.process = ForkedCommand("small", *announced, cwd=folder, environment=environment, lifeline=lifeline)
        return self

    def hear(self, expected: str) -> None:
        assert self.process
        assert self.process.stdout.readline() == f"{expected}\n"

    def read_log(self, *facts: str) -> None:
        """Wait for a log line with these facts."""
        assert self.process
        assert any(all(fact in line for fact in facts) for line in self.process.stderr)

    def metrics(self) -> str:
        """The address of its metrics."""
        assert self.process
        found = (re.search(r"metrics on (http://\S+)/metrics$", line) for line in self.process.stderr)
        return next(match[1] for match in found if match)

    def signal(self, number: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(number)

    def say(self, line: str) -> None:
        assert self.process
        print(line, file=self.process.stdin, flush=True)

    def lose_parent(self) -> None:
        assert self.process
        self.process.stdin.close()

    def announced(self) -> dict[str, Any]:
        announced: dict[str, Any] = json.loads(self._announcement.read_text(encoding="utf-8"))
        return announced

    def end(self) -> tuple[int, list[str]]:
        """Its exit code and its standard error."""
        assert self.process
        lines = self.process.stderr.read().splitlines()
        return self.process.wait(TIMEOUT_S), lines

    def close(self) -> None:
        if self.process:
            self.process.kill()
            with self.process:
                pass
