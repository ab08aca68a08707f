"""Each limit: the last accepted value, the first refused value, and the facts in the refusal."""

import math
import re
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from actorq.errors import InvalidInputError
from actorq.text import MAX_LINE_BYTES, one_line
from actorq.wire import bounds


@pytest.mark.parametrize("value", ["a", "a" * 128, "é" * 64, "actor-0 (spare)", "名前"])
def test_accepts_a_printable_name(value: str) -> None:
    assert bounds.name("actor_name", value) == value


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        ("", "empty"),
        ("a" * 129, "128 .* 129 .*a{76} "),
        ("é" * 65, "128 .* 65 .*é+ "),
        ("a\n2026-01-01 ERROR", r"a\\n2026-01-01 ERROR"),
        ("\x1b[31mred", r"\\x1b\[31mred"),
        ("a\u202eb", r"a\\u202eb"),
        ("a\u2028b", r"a\\u2028b"),
        ("a\x00b", r"a\\x00b"),
        ("x" * 10**6, "128 .* 1000000 "),
    ],
)
def test_an_empty_long_or_unprintable_name_is_refused(value: str, fact: str) -> None:
    with pytest.raises(InvalidInputError, match=f"actor_name.*{fact}") as caught:
        bounds.name("actor_name", value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_an_optional_name_may_be_empty() -> None:
    assert bounds.optional_name("scheme", "") == ""


@pytest.mark.parametrize("value", [0, 1, 2**62 - 1])
def test_a_version_is_below_2_to_the_62(value: int) -> None:
    assert bounds.version("version", value) == value


@pytest.mark.parametrize("value", [2**62, 2**63, 2**64 - 1])
def test_a_version_from_2_to_the_62_is_refused(value: int) -> None:
    with pytest.raises(InvalidInputError, match=f"version.*{2**62 - 1}.*{value}"):
        bounds.version("version", value)


def test_a_count_fits_an_int64() -> None:
    assert bounds.count("sequence", 2**63 - 1) == 2**63 - 1
    with pytest.raises(InvalidInputError, match=f"sequence.*{2**63 - 1}.*{2**63}"):
        bounds.count("sequence", 2**63)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e-300, 1.1e12])
def test_seconds_are_finite_and_not_negative(value: float) -> None:
    with pytest.raises(InvalidInputError, match=f"cpu_seconds.*1000000000000.*{value}"):
        bounds.seconds("cpu_seconds", value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.1e30, -1.1e30])
def test_a_figure_stays_finite_in_sums(value: float) -> None:
    assert bounds.figure("return", -1e30) == -1e30
    with pytest.raises(InvalidInputError, match=rf"return.* 1e\+30.*{re.escape(str(value))}"):
        bounds.figure("return", value)


@pytest.mark.parametrize("sizes", [[], [0], [2097152], [1] * 32, [2] * 18 + [1] * 14, [3, 0, 2]])
def test_accepts_a_shape_that_fits_into_a_message(sizes: list[int]) -> None:
    assert bounds.shape("tensor", sizes, 1) == tuple(sizes)


@pytest.mark.parametrize(
    ("sizes", "fact"),
    [
        ([1] * 33, "32 .* 33"),
        ([2**62] * 150_000, "32 .* 150000"),
        ([-1], r"negative.*\[-1\]"),
        ([524_289], r"2097152 .*\[524289\]"),
        ([2**62] * 32, f"2097152 .*{2**62}"),
        # An array without elements must not have such a shape, either.
        ([0, 2**62], f"2097152 .*{2**62}"),
    ],
)
def test_a_negative_or_too_large_shape_is_refused(sizes: list[int], fact: str) -> None:
    with pytest.raises(InvalidInputError, match=f"tensor.*{fact}"):
        bounds.shape("tensor", sizes, 4)


def test_more_items_than_the_limit_are_refused() -> None:
    assert bounds.items("spans", [1, 2], 2) == [1, 2]
    with pytest.raises(InvalidInputError, match=r"spans.* 2 .* 3"):
        bounds.items("spans", [1, 2, 3], 2)


def test_a_digest_has_32_bytes() -> None:
    assert bounds.digest("sha256", bytes(32)) == bytes(32)
    for size in (0, 31, 33):
        with pytest.raises(InvalidInputError, match=f"sha256: .*32 .* {size}$"):
            bounds.digest("sha256", bytes(size))


def test_a_time_is_within_1970_and_2242() -> None:
    assert bounds.unix_seconds("snapshot_at", Timestamp(seconds=1_700_000_000, nanos=250_000_000)) == 1_700_000_000.25
    assert bounds.unix_seconds("snapshot_at", Timestamp()) == 0.0
    for message in (
        Timestamp(seconds=-1),
        Timestamp(seconds=2**33 + 1),
        Timestamp(seconds=2**63 - 1),
        Timestamp(seconds=-(2**63)),
        Timestamp(nanos=-1),
        Timestamp(nanos=10**9),
    ):
        with pytest.raises(InvalidInputError, match=f"snapshot_at.*seconds.* {message.nanos or message.seconds}$"):
            bounds.unix_seconds("snapshot_at", message)


def test_a_duration_is_within_its_range() -> None:
    assert bounds.duration_s("period", Duration(seconds=3600), 0.05, 3600.0) == 3600.0
    assert bounds.duration_s("period", Duration(nanos=50_000_000), 0.05, 3600.0) == 0.05
    for message in (Duration(), Duration(seconds=-1), Duration(seconds=3601), Duration(seconds=2**63 - 1)):
        came = re.escape(str(float(message.seconds)))
        with pytest.raises(InvalidInputError, match=rf"period.*\(seconds.* 0\.05 .* 3600\.0, .* {came}$"):
            bounds.duration_s("period", message, 0.05, 3600.0)
    with pytest.raises(InvalidInputError, match=r"period.*nanoseconds"):
        bounds.duration_s("period", Duration(nanos=2**31 - 1), 0.05, 3600.0)


@pytest.mark.parametrize("token", ["", "0", "35", "9" * 19])
def test_a_page_token_is_a_version_in_digits(token: str) -> None:
    assert bounds.page_token("page_token", token) == token


@pytest.mark.parametrize("token", ["9" * 20, "9" * 5000, "-1", "1.5", "٣", "a", "1\n"])
def test_any_other_page_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidInputError, match=f"page_token.*'{token.strip()[:9]}"):
        bounds.page_token("page_token", token)


@given(st.text(max_size=3000) | st.text(alphabet="\x00\x1b\n\u202eé", min_size=1, max_size=3000))
def test_one_line_is_printable_short_and_keeps_what_is_printable(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    assert len(line.encode()) <= MAX_LINE_BYTES
    if text.isprintable() and len(text.encode()) <= MAX_LINE_BYTES:
        assert line == text


def test_one_line_shows_that_it_was_cut() -> None:
    assert one_line("x" * 10**7, 10) == "xxxxxx ..."


def test_every_refusal_is_short() -> None:
    checks: list[Any] = [
        lambda: bounds.text("method", "\x1b" * 10**6),
        lambda: bounds.page_token("page_token", "\n" * 10**6),
        lambda: bounds.within("episodes", 2**64, 1, 10),
        lambda: bounds.shape("tensor", [2**62] * 32, 8),
    ]
    for check in checks:
        with pytest.raises(InvalidInputError) as caught:
            check()
        assert len(str(caught.value)) < 1000
