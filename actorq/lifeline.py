"""The lifeline of a process: its standard input. The parent process holds the other end open."""

import os
import sys
from contextlib import suppress

# A service writes this to its lifeline once it serves.
READY = b"ready\n"


def await_parents_end() -> None:
    """Return when standard input ends, because the parent process has ended or closed its end."""
    # The connection is reset when the parent ends without having read READY.
    with suppress(OSError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
