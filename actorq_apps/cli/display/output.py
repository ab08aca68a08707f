"""Standard output that never blocks, for commands that must continue even if their output is not read."""

import io
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TypeVar

# Maximum number of queued bytes. When the queue is full, the oldest texts are dropped.
_MOST_BYTES = 2**20
# Seconds that an interrupted command waits for its output to be read.
_PATIENCE_S = 1.0

T = TypeVar("T")


class QueuedOutput(io.TextIOBase):
    """A text stream whose texts are written to a descriptor by a separate thread.

    A stopped terminal (Ctrl-S) or an unread pipe delays only that thread. `write` and `flush` raise the OSError of an
    earlier text.

    encoding, errors: as in `str.encode`. most: maximum number of queued bytes; older texts are dropped.
    """

    def __init__(self, descriptor: int, encoding: str, errors: str, most: int = _MOST_BYTES) -> None:
        self._descriptor, self._encoding, self._errors, self._most = descriptor, encoding, errors, most
        self._changed = threading.Condition()
        self._line = b""
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._writing = False
        self._error: OSError | None = None
        threading.Thread(target=self._pass_on, name="output", daemon=True).start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the stream."""
        return self._encoding

    def fileno(self) -> int:
        """Descriptor of the stream."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Queue a text when its line ends, or at `flush`. Raises the error of an earlier text."""
        with self._changed:
            self._line += text.encode(self._encoding, self._errors)
            if text.endswith("\n"):
                self._queue()
            self._raise()
        return len(text)

    def flush(self) -> None:
        """Queue the text of an unfinished line. Raises the error of an earlier text."""
        with self._changed:
            self._queue()
            self._raise()

    def drain(self, limit_s: float | None) -> None:
        """Return when everything is written, or after `limit_s` seconds. Raises the error of a text."""
        with self._changed:
            self._queue()
            self._changed.wait_for(lambda: not (self._waiting or self._writing), limit_s)
            self._raise()

    def _queue(self) -> None:
        if self._line:
            self._waiting.append(self._line)
            self._bytes += len(self._line)
            self._line = b""
            while self._bytes > self._most and len(self._waiting) > 1:
                self._bytes -= len(self._waiting.popleft())
            self._changed.notify_all()

    def _raise(self) -> None:
        if error := self._error:
            self._error = None
            raise error

    def _pass_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                text = self._waiting.popleft()
                self._bytes -= len(text)
                self._writing = True
            error = None
            try:
                # Bypasses the stream's buffer: at the interpreter's exit, no thread may hold that buffer's lock.
                while text:
                    text = text[os.write(self._descriptor, text) :]
            except OSError as failed:
                error = failed
            with self._changed:
                self._writing = False
                self._error = error or self._error
                self._changed.notify_all()


def with_queued_output(body: Callable[[], T], interrupted: Callable[[T], bool] = lambda _: False) -> T:
    """Run `body` with standard output that never blocks. Wait until all of the output is written.

    The wait is short after an error, and when `interrupted` returns true for the result.
    """
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:
        # Standard output is not a file, so it cannot block.
        return body()
    sys.stdout.flush()
    output = QueuedOutput(descriptor, sys.stdout.encoding, sys.stdout.errors or "strict")
    hurry = True
    try:
        with redirect_stdout(output):
            result = body()
        hurry = interrupted(result)
        return result
    finally:
        output.drain(_PATIENCE_S if hurry else None)
