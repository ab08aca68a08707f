"""Types of bounded numbers for settings."""

from typing import Annotated

from pydantic import Field

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
LayerSizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
LARGEST_SEED = 2**63 - 1
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Episodes = Annotated[int, Field(gt=0, le=10_000)]
