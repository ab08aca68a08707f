"""Types of bounded numbers for settings."""

import re
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from actorq.config.messages.expected import Expected

# Notations of large numbers: 1000000, 1_000_000, 1e6.
_WRITTEN = re.compile(r"[+-]?\d[\d_]*(\.\d+)?([eE][+-]?\d{1,3})?", re.ASCII)


def whole_number(text: str) -> int:
    """The whole number of a text such as 1000000, 1_000_000 or 1e6. Raises ValueError for any other text."""
    plain = text.strip()
    if not _WRITTEN.fullmatch(plain) or len(plain) > 40:
        raise ValueError("expected a whole number, such as 1000000, 1_000_000 or 1e6")
    value = Decimal(plain.replace("_", ""))
    if value != int(value):
        raise ValueError("expected a whole number, without a fraction")
    return int(value)


def _whole(given: object) -> object:
    """The whole number in a text. Other values stay unchanged, and the type checks them."""
    if isinstance(given, bool):
        # Python accepts True as 1. As text, it fails every check.
        return str(given)
    if isinstance(given, str):
        try:
            return whole_number(given)
        except ValueError:
            return given
    return given


def _count_or_auto(given: object) -> object:
    value = _whole(given)
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError("expected a whole number of at least 1, or auto")


Whole = Annotated[int, BeforeValidator(_whole)]
"""A whole number. Files and flags may also write 1_000_000 or 1e6."""
PositiveInt = Annotated[Whole, Field(gt=0)]
NonNegativeInt = Annotated[Whole, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
LayerSizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
LARGEST_SEED = 2**63 - 1
Seed = Annotated[Whole, Field(ge=0, le=LARGEST_SEED)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Episodes = Annotated[Whole, Field(gt=0, le=10_000)]
CountOrAuto = Annotated[
    PositiveInt | Literal["auto"],
    BeforeValidator(_count_or_auto),
    Expected("a whole number of at least 1, or auto"),
]
