"""The lock of a folder: one launcher at a time, and no other before all its processes have ended."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from actorq.errors import UserError

PROCESSES_LOCK = "processes.lock"


@contextmanager
def locked_folder(folder: Path, on_wait: Callable[[], None], in_use: str) -> Iterator[int]:
    """Be the only launcher in this folder. Yields a descriptor that its processes inherit.

    The kernel releases both locks when their holders have ended, also after SIGKILL. The first lock is the launcher's
    own. Its processes inherit the second. After a killed launcher, the next launcher waits here until those processes
    have ended. `on_wait` is called before.

    Raises UserError with the text `in_use` while another launcher lives.
    """
    own, shared = (os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644) for name in ("launcher.lock", PROCESSES_LOCK))
    try:
        try:
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(in_use) from None
        try:
            fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(shared, fcntl.LOCK_EX)
        yield shared
    finally:
        os.close(own)
        os.close(shared)
