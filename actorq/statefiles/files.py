"""Writes files whole or not at all, and reads them without taking a fault of the disk for damage."""

import errno
import io
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from actorq.errors import UnreadableError

# Error numbers of a disk without room.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


# A network file system that is busy, or a process with too many open files, can often read a moment later.
_ATTEMPTS, _PAUSE_S = 3, 0.2


def read_file(path: Path) -> bytes:
    """The content of a file.

    Raises FileNotFoundError, IsADirectoryError, and after some attempts UnreadableError for any other failure.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return path.read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            raise
        except OSError as error:
            if attempt == _ATTEMPTS or isinstance(error, PermissionError):
                raise UnreadableError(
                    f"{path} cannot be read ({error.strerror}), and nothing was changed because of that: make it "
                    "readable and start again"
                ) from error
        time.sleep(_PAUSE_S)
    raise AssertionError("unreachable")


def replace_file(path: Path, data: bytes | str, *, sync: bool = False) -> None:
    """Replace the file by `data` (text as UTF-8) in one step. Readers see the old or the new file.

    The data is first written to the hidden file `.NAME.partial` in the same folder. The name shows that an abandoned
    one is incomplete. Raises OSError and then leaves the file unchanged.

    sync: return only when file and name are on the disk, so that they survive a power cut.
    """
    partial = _partial(path)
    try:
        _write(partial, data, sync)
        partial.replace(path)
    except OSError as error:
        error.filename = str(path)
        raise
    if sync:
        sync_folder(path.parent)


def replace_together(files: Mapping[Path, bytes | str]) -> None:
    """Replace files of one folder that belong together, and return when they are on the disk.

    All data is on the disk before the first name changes. So a full disk leaves all files unchanged. Raises OSError.
    """
    partials = {_partial(path): path for path in files}
    try:
        for partial, path in partials.items():
            _write(partial, files[path], sync=True)
        for partial, path in partials.items():
            partial.replace(path)
    except OSError as error:
        error.filename = str(next(iter(files)))
        for partial in partials:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        raise
    sync_folder(next(iter(files)).parent)


def is_unused(folder: Path, first: Path, logs: Path | None = None) -> bool:
    """Whether a folder holds no file, besides logs, and what a process left that was killed at the first file."""
    return all(path.is_dir() or path.name == _partial(first).name or path.parent == logs for path in folder.rglob("*"))


def _write(path: Path, data: bytes | str, sync: bool) -> None:
    with path.open("wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def append_whole(file: io.FileIO, data: bytes) -> None:
    """Append all of `data`, or nothing and raise OSError. The file must be opened with "ab" and without a buffer."""
    size = os.fstat(file.fileno()).st_size
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        os.ftruncate(file.fileno(), size)
        raise


def sync_folder(folder: Path) -> None:
    """Return when the names in `folder` are on the disk."""
    _sync(folder, os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Return when the content of the file is on the disk."""
    _sync(path)


def _sync(path: Path, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
