"""Locks of files, and of a folder: one launcher at a time, and no other before all its processes have ended."""

import fcntl
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from actorq.errors import UserError

PROCESSES_LOCK = "processes.lock"


def lock_file(path: Path, taken: Exception) -> io.FileIO:
    """Lock a file until the returned one is closed, or the process ends. Raises `taken` while another has the lock."""
    file = io.FileIO(path, "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise taken from None
    return file


@contextmanager
def locked_folder(folder: Path, on_wait: Callable[[], None], in_use: str) -> Iterator[int]:
    """Be the only launcher in this folder. Yields a descriptor that its processes inherit.

    The kernel releases both locks when their holders have ended, also after SIGKILL. The first lock is the launcher's
    own. Its processes inherit the second. After a killed launcher, the next launcher waits here until those processes
    have ended. `on_wait` is called before.

    Raises UserError with the text `in_use` while another launcher lives.
    """
    with lock_file(folder / "launcher.lock", UserError(in_use)), (folder / PROCESSES_LOCK).open("ab") as shared:
        try:
            fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(shared, fcntl.LOCK_EX)
        yield shared.fileno()
