"""The folder of a command that makes many runs."""

from pathlib import Path

import pytest

from actorq.errors import UserError
from actorq.statefiles.basis import open_folder


def opened(root: Path, settings: int) -> None:
    open_folder(root, "actorq compare", ("runs",), {"settings": settings}, {"settings": "has other settings ({})"})


def test_accepts_a_folder_whose_first_file_did_not_fit_on_the_disk(tmp_path: Path) -> None:
    partial = tmp_path / ".basis.json.partial"
    partial.symlink_to("/dev/full")
    with pytest.raises(UserError, match=f"{tmp_path}.*No space left"):
        opened(tmp_path, 1)
    partial.unlink()
    opened(tmp_path, 1)
    opened(tmp_path, 1)
    with pytest.raises(UserError, match="has other settings"):
        opened(tmp_path, 2)


def test_recreates_a_deleted_subfolder(tmp_path: Path) -> None:
    opened(tmp_path, 1)
    written = (tmp_path / "basis.json").stat().st_mtime_ns
    (tmp_path / "runs").rmdir()
    opened(tmp_path, 1)
    assert (tmp_path / "runs").is_dir()
    assert (tmp_path / "basis.json").stat().st_mtime_ns == written
