"""State files with a digest: every changed byte is detected, and a copy survives one fault."""

import errno
import json
import logging
import time
from contextlib import suppress
from pathlib import Path

import pytest

from actorq.errors import InvalidInputError, UnreadableError
from actorq.statefiles.documents import (
    copy_of,
    is_as_signed,
    read_document,
    read_either,
    remove_both,
    sign_text,
    write_document,
    write_twice,
)

VALUES = {"run_id": "abc", "lives": 3, "rng": {"state": 2**100}, "elapsed_s": 0.1, "best": None, "shape": [4, 2]}


def test_restores_values_from_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_document(path, VALUES)
    assert read_document(path) == VALUES
    plain = json.loads(path.read_text())
    assert len(plain.pop("digest")) == 32
    assert plain == VALUES


@pytest.mark.parametrize("indent", [None, 2])
def test_detects_every_changed_byte(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "run.json"
    write_document(path, VALUES, indent=indent)
    data = path.read_bytes()
    found = 0
    for position in range(len(data)):
        for changed in (data[position] ^ 1, data[position] ^ 128, 0):
            path.write_bytes(data[:position] + bytes([changed]) + data[position + 1 :])
            with suppress(InvalidInputError):
                assert read_document(path) == VALUES
                continue
            found += 1
    assert found > 2 * len(data)


def test_detects_every_truncation(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_document(path, VALUES)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(InvalidInputError, match=r"run\.json.*damaged"):
            read_document(path)


def test_distinguishes_a_missing_document_from_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_document(tmp_path / "run.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(InvalidInputError, match=r"folder\.json.*damaged"):
        read_document(tmp_path / "folder.json")


@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_one_of_two_copies_is_enough(
    tmp_path: Path, first: bool, missing: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.json"
    write_twice(path, VALUES)
    hit = path if first else copy_of(path)
    if missing:
        hit.unlink()
    else:
        hit.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert read_either(path) == VALUES
    assert len(caplog.records) == first


def unreadable(path: Path) -> None:
    """Simulates a failing disk: no user can read the file, not even root."""
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.mark.usefixtures("_at_once")
def test_distinguishes_an_unreadable_document_from_a_damaged_one(tmp_path: Path) -> None:
    unreadable(tmp_path / "run.json")
    with pytest.raises(UnreadableError, match=r"run\.json.*symbolic links"):
        read_document(tmp_path / "run.json")


@pytest.mark.usefixtures("_at_once")
def test_retries_after_a_temporary_read_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read, faults = tmp_path / "run.json", Path.read_bytes, [errno.EMFILE, errno.EIO]
    write_document(path, VALUES)

    def fail_at_first(path: Path) -> bytes:
        if faults:
            raise OSError(faults.pop(), "for a moment")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", fail_at_first)
    assert read_document(path) == VALUES
    assert not faults


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("other", ["whole", "missing", "damaged", "unreadable"])
def test_uses_the_copy_if_the_document_is_unreadable(tmp_path: Path, first: bool, other: str) -> None:
    path = tmp_path / "run.json"
    write_twice(path, VALUES)
    hit, rest = (path, copy_of(path)) if first else (copy_of(path), path)
    unreadable(hit)
    if other == "whole":
        assert read_either(path) == VALUES
        return
    {"missing": Path.unlink, "damaged": lambda each: each.write_bytes(b"{"), "unreadable": unreadable}[other](rest)
    with pytest.raises(UnreadableError, match=f"{path.stem}.*cannot be read"):
        read_either(path)


def test_refuses_two_damaged_copies_and_returns_none_without_copies(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert read_either(path) is None
    write_twice(path, VALUES)
    for each in (path, copy_of(path)):
        each.write_bytes(b"{")
    with pytest.raises(InvalidInputError, match=r"run\.json.*damaged"):
        read_either(path)
    remove_both(path)
    assert not any(tmp_path.iterdir())
    remove_both(path)


def test_recognizes_an_unchanged_signed_text() -> None:
    signed = sign_text("seed: 7\nname: ä\n").encode()
    assert is_as_signed(signed)
    assert not is_as_signed(signed.replace(b"7", b"8", 1))
    assert not is_as_signed(b"seed: 7\n")
    assert not any(is_as_signed(signed[:length]) for length in range(len(signed) - 1))
