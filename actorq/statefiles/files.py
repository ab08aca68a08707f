"""Files that are written whole or not at all."""

import io
import os
from pathlib import Path


def replace_file(path: Path, data: bytes | str, *, sync: bool = False) -> None:
    """Write `data` (text as UTF-8) aside, then put it in place of what is there: readers see the old or the new.

    Aside is `.NAME.partial` in the same folder, hidden, so that whoever opens the folder knows what was left
    half-written. Raises OSError; then the file is as it was.

    sync: return only when file and name are on the disk, so that they outlive a power failure.
    """
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    partial.replace(path)
    if sync:
        sync_folder(path.parent)


def append_whole(file: io.FileIO, data: bytes) -> None:
    """Append all of `data` to a file that was opened with "ab" and no buffer, or nothing: then OSError is raised."""
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
    """Return when what the file holds is on the disk."""
    _sync(path)


def _sync(path: Path, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
