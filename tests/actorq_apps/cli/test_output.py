"""Standard output of commands that must continue when nobody reads it."""

import os
import pty
import sys
from collections.abc import Iterator

import pytest

from actorq_apps.cli.display.output import QueuedOutput, with_queued_output

_LINE = "x" * 1023 + "\n"


@pytest.fixture(params=[os.pipe, pty.openpty], ids=["pipe", "terminal"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """A descriptor to read, and one to write, which blocks until somebody reads."""
    reading, writing = request.param()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_writing_never_blocks_and_the_newest_lines_are_kept(ends: tuple[int, int]) -> None:
    reading, writing = ends
    output = QueuedOutput(writing, "utf-8", "strict", most=4 * len(_LINE))
    for number in range(1000):
        print(f"{number:6d} {_LINE}", end="", file=output, flush=True)
    output.drain(0.0)
    read = b""
    while b" 999 x" not in read:
        read += os.read(reading, 2**16)
    assert read.count(b"\n") < 200
    output.drain(None)


def test_writes_a_line_at_once_and_a_partial_line_at_the_flush() -> None:
    reading, writing = os.pipe()
    output = QueuedOutput(writing, "utf-8", "strict")
    output.write("a")
    output.write("b\n")
    assert os.read(reading, 100) == b"ab\n"
    output.write("c")
    output.flush()
    assert os.read(reading, 100) == b"c"
    os.close(reading)
    os.close(writing)


def test_raises_an_error_once() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    output = QueuedOutput(writing, "utf-8", "strict")
    output.write("nobody reads this\n")
    with pytest.raises(BrokenPipeError):
        output.drain(None)
    output.drain(None)
    os.close(writing)


def test_writes_everything_before_the_command_ends(capfd: pytest.CaptureFixture[str]) -> None:
    def body() -> int:
        sys.stdout.write("the last line\n")
        return 3

    assert with_queued_output(body) == 3
    assert capfd.readouterr().out == "the last line\n"
