"""Files that outlive the process: an exclusive claim on a directory, and mapped files."""

import fcntl
import mmap
import os
from pathlib import Path

from actorq.errors import ConflictError


def claim_directory(directory: Path) -> int:
    """Create `directory` if needed and lock it for this process; returns the descriptor that holds the lock.

    The kernel drops the lock when the descriptor is closed or the process dies, however it dies. Raises
    ConflictError when another process (or another store of this one) has the directory open.
    """
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ConflictError(
            f"replay: {directory} is open in another learner; stop it, or give this run a directory of its own"
        ) from None
    return descriptor


def map_file(path: Path, nbytes: int, create: bool) -> mmap.mmap:
    """Map `nbytes` of `path` for reading and writing, shared with the page cache.

    With `create` the file starts as zeros and takes no disk space until it is written to (it is sparse); without,
    it must exist with exactly this size, or ConflictError is raised.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if create else 0)
    try:
        descriptor = os.open(path, flags, 0o644)
    except FileNotFoundError:
        raise ConflictError(f"replay: {path} is missing; restore it, or remove {path.parent} to start empty") from None
    try:
        if create:
            os.ftruncate(descriptor, nbytes)
        size = os.fstat(descriptor).st_size
        if size != nbytes:
            raise ConflictError(
                f"replay: {path} must have {nbytes} bytes, got {size}; "
                f"restore it, or remove {path.parent} to start empty"
            )
        return mmap.mmap(descriptor, nbytes)
    finally:
        os.close(descriptor)
