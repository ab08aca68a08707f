"""A hanging environment ends the process; nothing else does."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from actorq.process import EXIT_HUNG
from actorq.watchdog import Watchdog

DEADLINE_S = 60.0


def watchdog(ended: list[int], clock: list[float]) -> Watchdog:
    return Watchdog("an environment", "actor.environment_timeout_s", 10.0, ended.append, lambda: clock[0])


def test_a_call_that_takes_too_long_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[int] = []
    clock = [100.0]
    dog = watchdog(ended, clock)
    dog.watch()
    with dog.watch():
        clock[0] = 110.0
        dog.check()
        assert ended == []
        clock[0] = 110.5
        dog.check()
    assert ended == [EXIT_HUNG]
    assert re.search(f" 10 s: .*{EXIT_HUNG}", caplog.text)


def test_of_several_calls_the_longest_counts() -> None:
    ended: list[int] = []
    clock = [0.0]
    dog = watchdog(ended, clock)
    with dog.watch():
        clock[0] = 9.0
        with dog.watch():
            clock[0] = 11.0
            dog.check()
    assert ended == [EXIT_HUNG]


def test_calls_that_return_in_time_do_not_add_up() -> None:
    ended: list[int] = []
    clock = [0.0]
    dog = watchdog(ended, clock)
    watched = dog.watch()
    for _ in range(5):
        with watched:
            clock[0] += 8.0
            dog.check()
    clock[0] += 1000.0
    dog.check()
    assert ended == []


def test_a_call_that_raises_is_over() -> None:
    ended: list[int] = []
    clock = [0.0]
    dog = watchdog(ended, clock)
    with pytest.raises(ValueError, match="once"), dog.watch():
        raise ValueError("once")
    clock[0] = 1000.0
    dog.check()
    assert ended == []


def test_it_ends_when_it_is_closed() -> None:
    dog = Watchdog("an environment", "actor.environment_timeout_s", 1000.0)
    dog.start()
    dog.close()
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}


HANGS = """
import threading
from actorq.watchdog import Watchdog
dog = Watchdog("an environment", "actor.environment_timeout_s", {limit})
dog.start()
with dog.watch():
    {hang}
"""


def end_of(hang: str, limit: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HANGS.format(hang=hang, limit=limit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        cwd=Path(__file__).parents[2],
    )


def test_a_process_that_hangs_ends_with_its_own_exit_code_and_says_where() -> None:
    ended = end_of("threading.Event().wait()", limit=2.0)
    assert ended.returncode == EXIT_HUNG
    assert f"exit code {EXIT_HUNG}" in ended.stderr
    assert 'File "<string>", line 7 in <module>' in ended.stderr


def test_a_process_that_hangs_with_pythons_lock_ends_too() -> None:
    # A function of the C library, called without letting other threads run.
    hang = "import ctypes; ctypes.PyDLL(None).pause()"
    ended = end_of(hang, limit=0.2)
    assert ended.returncode == EXIT_HUNG
    assert "Timeout (0:00:00.4" in ended.stderr
    assert 'File "<string>", line 7 in <module>' in ended.stderr
