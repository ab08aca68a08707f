"""A folder has one writer, even if somebody removes its lock file."""

import errno
import fcntl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actorq.errors import UserError
from actorq.statefiles.locks import WriterLock

TAKEN = UserError("taken")


def test_a_folder_has_one_writer_until_the_lock_is_released(tmp_path: Path) -> None:
    lock = WriterLock(tmp_path / "new" / "folder", "lock", TAKEN)
    with pytest.raises(UserError, match="taken"):
        WriterLock(tmp_path / "new" / "folder", "lock", TAKEN)
    assert not lock.closed
    lock.close()
    lock.close()
    assert lock.closed
    WriterLock(tmp_path / "new" / "folder", "lock", TAKEN).close()


def test_a_removed_lock_file_allows_no_second_writer(tmp_path: Path) -> None:
    lock = WriterLock(tmp_path, "lock", TAKEN)
    (tmp_path / "lock").unlink()
    with pytest.raises(UserError, match="taken"):
        WriterLock(tmp_path, "lock", TAKEN)
    script = f"""
from pathlib import Path
from actorq.statefiles.locks import WriterLock
WriterLock(Path({str(tmp_path)!r}), "lock", SystemExit(3))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 3
    lock.close()
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_an_ended_process_holds_no_lock(tmp_path: Path) -> None:
    script = f"""
import os
from pathlib import Path
from actorq.statefiles.locks import WriterLock
lock = WriterLock(Path({str(tmp_path)!r}), "lock", SystemExit(3))
os._exit(0)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    WriterLock(tmp_path, "lock", TAKEN).close()


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_that_cannot_lock_folders_locks_the_file(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, calls = fcntl.flock, []

    def refuse(file: Any, operation: int) -> None:
        calls.append(file)
        if isinstance(file, int):
            raise OSError(number, "no locks of folders")
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)
    if number == errno.ENOLCK:
        with pytest.raises(OSError, match="no locks of folders"):
            WriterLock(tmp_path, "lock", TAKEN)
        return
    lock = WriterLock(tmp_path, "lock", TAKEN)
    with pytest.raises(UserError, match="taken"):
        WriterLock(tmp_path, "lock", TAKEN)
    lock.close()
