from pathlib import Path

import pytest

from actorq.statefiles.files import replace_file, replace_together


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(("data", "expected"), [(b"\xff\x00", b"\xff\x00"), ("é\n", b"\xc3\xa9\n")])
def test_replaces_a_file_and_leaves_no_other_file(
    tmp_path: Path, data: bytes | str, expected: bytes, sync: bool
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    replace_file(path, data, sync=sync)
    assert path.read_bytes() == expected
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    (tmp_path / ".a.json.partial").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_file(path, "new")
    assert path.read_text() == "old"


def test_files_that_belong_together_are_replaced_both_or_not_at_all(tmp_path: Path) -> None:
    model, description = tmp_path / "p.onnx", tmp_path / "p.json"
    replace_together({model: b"one", description: "1"})
    # The disk is full for the second file.
    (tmp_path / ".p.json.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        replace_together({model: b"two", description: "2"})
    assert (model.read_bytes(), description.read_text()) == (b"one", "1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.json", "p.onnx"]
