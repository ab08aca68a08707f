"""Checks of the values that a peer sends, against the limits of `domain.limits`.

Each check gets the name of a field and a value, and returns the value. It raises InvalidInputError with the name, the
limit and the value. docs/reference/limits.md shows the limits as a table.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from actorq.domain import limits
from actorq.errors import InvalidInputError
from actorq.text import one_line

_LONGEST_QUOTE_BYTES = 80
_NANOSECONDS = 10**9

Number = TypeVar("Number", int, float)
T = TypeVar("T")
C = TypeVar("C", bound=Collection[object])


def anything(what: str, value: T) -> T:
    """A flag, or a number for which every value of its type is valid."""
    return value


def name(what: str, value: str) -> str:
    """A name of 1 to 128 bytes of UTF-8, all of them printable characters."""
    if not value:
        raise InvalidInputError(f"{what}: must not be empty")
    return optional_name(what, value)


def optional_name(what: str, value: str) -> str:
    """A name, or an empty string."""
    return text(what, value, limits.MAX_NAME_BYTES)


def text(what: str, value: str, most_bytes: int = limits.MAX_TEXT_BYTES) -> str:
    """Text on one line: printable characters, at most `most_bytes` in UTF-8."""
    # Each character has at least one byte, so text that is much too long is not encoded.
    if len(value) > most_bytes or len(value.encode("utf-8", "replace")) > most_bytes:
        raise InvalidInputError(
            f"{what}: must have at most {most_bytes} bytes as UTF-8, got {len(value)} characters, {quoted(value)}"
        )
    if not value.isprintable():
        raise InvalidInputError(f"{what}: must have printable characters only, got {quoted(value)}")
    return value


def quoted(value: str) -> str:
    """A peer's text, shortened and printable, for an error."""
    return f"'{one_line(value, _LONGEST_QUOTE_BYTES)}'"


def within(what: str, value: Number, least: Number, most: Number) -> Number:
    """A number from `least` to `most`. NaN fails."""
    if not least <= value <= most:
        raise InvalidInputError(f"{what}: must be {least} to {most}, got {value}")
    return value


def between(least: Number, most: Number) -> Callable[[str, Number], Number]:
    """The check of a number from `least` to `most`."""
    return lambda what, value: within(what, value, least, most)


# A version of a policy or an epoch of a learner; 0 for none. A count is a sequence, an incarnation or a counter.
version = between(0, limits.MAX_VERSION)
epoch = between(0, limits.MAX_EPOCH)
count = between(0, limits.MAX_COUNT)
# A rate is a number per second or another ratio. A share is a part of a whole. Energy comes with its CO2 in kilograms.
seconds = between(0.0, limits.MAX_SECONDS)
rate = between(0.0, limits.MAX_RATE)
share = between(0.0, 1.0)
kwh = between(0.0, limits.MAX_KWH)
# Sums of amounts and of figures stay finite. A figure is a return, a reward or another signed number.
amount = between(0.0, limits.MAX_MAGNITUDE)
figure = between(-limits.MAX_MAGNITUDE, limits.MAX_MAGNITUDE)


def items(what: str, values: C, most: int) -> C:
    """A repeated field or a map of at most `most` items. Call it before decoding the items."""
    if len(values) > most:
        raise InvalidInputError(f"{what}: must have at most {most} items, got {len(values)}")
    return values


def digest(what: str, value: bytes) -> bytes:
    """A SHA-256."""
    if len(value) != limits.DIGEST_BYTES:
        raise InvalidInputError(f"{what}: must have {limits.DIGEST_BYTES} bytes, got {len(value)}")
    return value


def optional_digest(what: str, value: bytes) -> bytes:
    """A SHA-256, or nothing."""
    return digest(what, value) if value else value


def dimensions(what: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """At most 32 sizes of an array."""
    if len(sizes) > limits.MAX_DIMENSIONS:
        raise InvalidInputError(f"{what}: must have at most {limits.MAX_DIMENSIONS} dimensions, got {len(sizes)}")
    return tuple(sizes)


def shape(what: str, sizes: Sequence[int], element_bytes: int) -> tuple[int, ...]:
    """The shape of an array of at most `limits.MAX_TENSOR_BYTES`. Needs microseconds for any sizes."""
    sizes = dimensions(what, sizes)
    if sizes and min(sizes) < 0:
        raise InvalidInputError(f"{what}: shape must not be negative, got {list(sizes)}")
    # Sizes are bounded even if one is 0: an empty array must not have a huge size.
    nbytes = math.prod(sizes) * element_bytes or math.prod(filter(None, sizes)) * element_bytes
    if nbytes > limits.MAX_TENSOR_BYTES:
        raise InvalidInputError(f"{what}: shape must have at most {limits.MAX_TENSOR_BYTES} bytes, got {list(sizes)}")
    return sizes


def unix_seconds(what: str, value: Timestamp) -> float:
    """A time from 1970 to 2242 as unix seconds."""
    nanoseconds = within(f"{what} (nanoseconds)", value.nanos, 0, _NANOSECONDS - 1)
    return within(f"{what} (unix seconds)", value.seconds, 0, limits.MAX_UNIX_S) + nanoseconds / _NANOSECONDS


def duration_s(what: str, value: Duration, least: float, most: float) -> float:
    """A duration from `least` to `most` seconds, in seconds."""
    nanoseconds = within(f"{what} (nanoseconds)", value.nanos, 1 - _NANOSECONDS, _NANOSECONDS - 1)
    return within(f"{what} (seconds)", value.seconds + nanoseconds / _NANOSECONDS, least, most)


def page_token(what: str, value: str) -> str:
    """The token of the previous page: a version in decimal digits, or empty."""
    if value and not (len(value) <= limits.MAX_PAGE_TOKEN_CHARACTERS and value.isascii() and value.isdecimal()):
        raise InvalidInputError(f"{what}: must be the next_page_token of the page before, got {quoted(value)}")
    return value
