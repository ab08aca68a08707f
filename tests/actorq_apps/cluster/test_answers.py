"""Responses of the API server, including objects that are nested deeper than Python can process."""

import json
from typing import Any

import pytest

from actorq_apps.cluster.answers import LEVELS, decoded, lines, shallow


def nested(levels: int, inner: str = "1") -> str:
    return '{"a":[' * (levels // 2) + inner + "]}" * (levels // 2)


@pytest.mark.parametrize(
    "tree", [{}, [], 3, {"a": [1, {"b": None}], "c": '[{"\\"]}'}, [[], [[]], {"x": {}}], {"text": "\\"}]
)
def test_reads_an_answer_of_usual_depth_unchanged(tree: Any) -> None:
    data = json.dumps(tree).encode()
    assert decoded(data) == tree
    assert json.loads(shallow(data)) == tree


@pytest.mark.parametrize("deep", [LEVELS, 50_000])
def test_replaces_too_deep_levels_with_null_and_keeps_the_rest(deep: int) -> None:
    text = (
        f'{{"items": [{{"name": "good"}}, {{"name": "bad", "spec": {nested(deep)}}}, {{"name": "]{{\\"["}}], "end": 1}}'
    )
    tree = decoded(text.encode())
    assert [each["name"] for each in tree["items"]] == ["good", "bad", ']{"[']
    assert tree["end"] == 1
    depth, inner = 0, tree["items"][1]["spec"]
    while inner is not None:
        inner, depth = (inner["a"] if isinstance(inner, dict) else inner[0]), depth + 1
    assert depth == LEVELS - 3


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_levels_below_the_last_one_are_null(levels: int) -> None:
    wanted = {1: {"a": None, "b": 2}, 2: {"a": [None, 1], "b": 2}, 3: {"a": [{"c": None}, 1], "b": 2}}
    assert json.loads(shallow(b'{"a": [{"c": [1, {}]}, 1], "b": 2}', levels)) == wanted[levels]


def test_reads_the_lines_of_a_stream_in_any_chunks() -> None:
    data = b'{"a": 1}\n\n{"b": "\xc3\xa4"}\n{"c"'
    for size in (1, 2, 7, 100):
        chunks = (data[at : at + size] for at in range(0, len(data), size))
        assert list(lines(chunks)) == [b'{"a": 1}', b'{"b": "\xc3\xa4"}']


def test_a_line_without_end_ends_the_stream() -> None:
    taken = []

    def endless() -> Any:
        while True:
            taken.append(1)
            yield b"x" * 2**20

    assert list(lines(endless())) == []
    assert len(taken) < 20
