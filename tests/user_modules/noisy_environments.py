"""Environments that write to standard output at unlucky moments, or end their process."""

import atexit
import os
import signal
import sys
from typing import Any

import gymnasium
from environment_doubles import Counting

print("imported")  # noqa: T201


class Chatty(Counting):
    """Writes everywhere, also without line ends, natively, and at the end of its process."""

    def __init__(self) -> None:
        super().__init__()
        sys.stdout.write('{"spec": 100%')
        os.write(1, b"native library 1.2")
        os.write(2, b"a warning")
        atexit.register(print, "simulator closed")

    def close(self) -> None:
        print('{"error": "closed"}')  # noqa: T201


class Exiting(Counting):
    """Exits in its constructor."""

    def __init__(self) -> None:
        print("license not found")  # noqa: T201
        sys.exit(1)


class Leaving(Counting):
    """Ends its process in its first step."""

    def step(self, action: Any) -> Any:
        os.write(2, b"out of texture memory\n")
        os._exit(3)


class Crashing(Counting):
    """Crashes in its constructor."""

    def __init__(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Failing(Counting):
    """Fails in its constructor without a message."""

    def __init__(self) -> None:
        assert signal is None


class Choosy(Counting):
    """Takes the last action only."""

    def step(self, action: Any) -> Any:
        if action != 2:
            raise RuntimeError("not this one")
        return super().step(action)


for kind in (Choosy, Chatty, Exiting, Leaving, Crashing, Failing):
    gymnasium.register(f"{kind.__name__}-v0", entry_point=f"{__name__}:{kind.__name__}", max_episode_steps=12)
