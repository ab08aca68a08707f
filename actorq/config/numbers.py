"""Types of bounded numbers for settings."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field


def _count_or_auto(value: object) -> int | str:
    # One message for both kinds of values.
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    if isinstance(value, str) and value.strip().isdecimal() and int(value) > 0:
        return int(value)
    raise ValueError("expected a number above 0, or auto")


PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
LayerSizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
LARGEST_SEED = 2**63 - 1
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Episodes = Annotated[int, Field(gt=0, le=10_000)]
CountOrAuto = Annotated[PositiveInt | Literal["auto"], BeforeValidator(_count_or_auto)]
