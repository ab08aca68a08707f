"""Locks of files and folders: one writer of a folder at a time.

A lock belongs to an open file. If somebody removes a lock file, another process can create and lock it again while the
first holder continues. A writer therefore also locks the folder itself, which cannot be replaced without its content.
"""

import errno
import fcntl
import io
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from actorq.errors import UserError

PROCESSES_LOCK = "processes.lock"
# NFS locks only files that are open for writing. A folder cannot be opened for writing.
_NO_FOLDER_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.EISDIR)


def lock_file(path: Path, taken: Exception) -> io.FileIO:
    """Lock a file until the returned file is closed or the process ends. Raises `taken` if it is locked already."""
    file = io.FileIO(path, "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise taken from None
    return file


class WriterLock:
    """The right to write to a folder, until `close` or the end of the process.

    name: name of the lock file. It alone protects file systems that cannot lock folders, such as NFS.
    Creates the folder if necessary. Raises `taken` while any process has the lock, including this one. Raises OSError.
    """

    def __init__(self, folder: Path, name: str, taken: Exception) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = lock_file(folder / name, taken)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._unlock = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise taken from None
        except OSError as error:
            if error.errno not in _NO_FOLDER_LOCKS:
                self.close()
                raise

    @property
    def closed(self) -> bool:
        """Whether the lock was released."""
        return self._file.closed

    def __enter__(self) -> "WriterLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        self._unlock()
        self._file.close()


@contextmanager
def locked_folder(folder: Path, on_wait: Callable[[], None], in_use: str) -> Iterator[int]:
    """Hold the lock of the only launcher in this folder. Yields a descriptor that its processes inherit.

    The kernel releases both locks when their holders have ended, also after SIGKILL. Only the launcher holds the first
    lock. Its processes inherit the second. After a launcher was killed, the next launcher waits here until those
    processes have ended. It calls `on_wait` first.

    Raises UserError with the text `in_use` while another launcher is alive.
    """
    with lock_file(folder / "launcher.lock", UserError(in_use)), (folder / PROCESSES_LOCK).open("ab") as shared:
        try:
            fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(shared, fcntl.LOCK_EX)
        yield shared.fileno()
