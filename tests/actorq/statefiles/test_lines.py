"""Lines with a CRC: damage affects only the damaged lines."""

import json
from pathlib import Path
from typing import Any

import pytest

from actorq.statefiles.lines import encode_line, read_lines

VALUES: list[dict[str, Any]] = [{"name": 'a, "crc": 5}', "returns": [1.5, 2.0]}, {"name": "b"}, {"name": "c", "at": {}}]
DATA = b"".join(map(encode_line, VALUES))


def whole(path: Path, data: bytes) -> list[dict[str, Any]]:
    path.write_bytes(data)
    return [values for _, values in read_lines(path) if values is not None]


def damaged(path: Path) -> list[bytes]:
    return [line for line, values in read_lines(path) if values is None]


def test_restores_objects_from_plain_json(tmp_path: Path) -> None:
    assert whole(tmp_path / "log", DATA) == VALUES
    for line, values in zip(DATA.splitlines(), VALUES, strict=True):
        plain = json.loads(line)
        assert isinstance(plain.pop("crc"), int)
        assert plain == values


@pytest.mark.parametrize("mask", [1, 128, 255])
def test_a_damaged_byte_costs_one_line_at_most(tmp_path: Path, mask: int) -> None:
    path = tmp_path / "log"
    for position in range(len(DATA)):
        found = whole(path, DATA[:position] + bytes([DATA[position] ^ mask]) + DATA[position + 1 :])
        hit = DATA[:position].count(b"\n")
        others = VALUES[:hit] + VALUES[hit + 1 :]
        # A damaged newline loses no line.
        assert found == (VALUES if DATA[position] == ord("\n") else others)
        assert bool(damaged(path)) == (found != VALUES)


def test_zeros_affect_only_the_overwritten_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    start, stop = DATA.index(b"\n") - 3, len(DATA) - len(encode_line(VALUES[2])) - 3
    assert whole(path, DATA[:start] + bytes(stop - start) + DATA[stop:]) == VALUES[2:]
    assert len(damaged(path)) == 1


def test_a_torn_end_is_one_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for length in range(len(DATA)):
        lines = DATA[:length].split(b"\n")
        found = whole(path, DATA[:length])
        assert found == VALUES[: len(found)]
        assert len(found) >= len(lines) - 1
        assert len(damaged(path)) <= 1
