"""Files that are written whole or not at all."""

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


def sync_folder(folder: Path) -> None:
    """Return when the names in `folder` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
