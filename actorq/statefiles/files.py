"""Writes files atomically. Reads files and distinguishes read errors from damage."""

import errno
import io
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from actorq.errors import UnreadableError

# Error numbers of a full disk.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


# These reads often succeed a moment later: a busy network file system, or too many open files.
_ATTEMPTS, _PAUSE_S = 3, 0.2


def read_file(path: Path) -> bytes:
    """The content of a file.

    Raises FileNotFoundError and IsADirectoryError. Raises UnreadableError for other failures, after several attempts.
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
    """Replace the file with `data` (text as UTF-8) atomically. Readers see the old or the new file.

    The data is first written to the hidden file `.NAME.partial` in the same folder. Its name marks an abandoned file as
    incomplete. On OSError the file is unchanged.

    sync: return only when file and name are on the disk, so that they survive a power failure.
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
    """Replace related files of one folder. Returns when they are on the disk.

    All data is on the disk before the first name changes. A full disk therefore changes no file. Raises OSError.
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
    """Whether the folder is empty. Logs, and a partial first file of a killed process, do not count."""
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
    """Append all of `data`, or append nothing and raise OSError. Requires mode "ab" and no buffer."""
    size = os.fstat(file.fileno()).st_size
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        os.ftruncate(file.fileno(), size)
        raise


def sync_folder(folder: Path) -> None:
    """Return when the folder's names are on the disk."""
    _sync(folder, os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Return when the file's content is on the disk."""
    _sync(path)


def _sync(path: Path, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
