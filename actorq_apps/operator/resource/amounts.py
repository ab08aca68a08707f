"""Amounts, names and labels in a TrainingRun, as in Kubernetes. All are bounded, because API servers estimate costs."""

import re
from functools import partial
from typing import Annotated

from pydantic import BeforeValidator, Field

from actorq.config.messages.expected import Expected

IMMUTABLE, RULES = "immutable", "x-kubernetes-validations"
"""Extra properties of a field's JSON schema: whether it may change, and rules that the API server evaluates."""

_SUFFIX = "(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?"
_QUANTITY = rf"^[0-9]+(\.[0-9]+)?{_SUFFIX}$"
_SIZE = rf"^([0-9]*[1-9][0-9]*(\.[0-9]+)?|[0-9]+\.[0-9]*[1-9][0-9]*){_SUFFIX}$"
QUANTITIES = {_QUANTITY: 0, _SIZE: 1}
"""Patterns of amounts, and their smallest integers. Amounts may also be integers."""
_DNS_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"


def _amount(pattern: str, expected: str, given: object) -> object:
    text = str(given) if isinstance(given, int | float) and not isinstance(given, bool) else given
    if not (isinstance(text, str) and re.fullmatch(pattern, text)):
        raise ValueError(f"expected {expected}")
    return text


Quantity = Annotated[
    str, Field(pattern=_QUANTITY), BeforeValidator(partial(_amount, _QUANTITY, "an amount such as 500m, 2 or 4Gi"))
]
Size = Annotated[str, Field(pattern=_SIZE), BeforeValidator(partial(_amount, _SIZE, "a size above 0 such as 10Gi"))]
Name = Annotated[
    str,
    Field(max_length=253, pattern=_DNS_NAME),
    Expected("a name of at most 253 lower-case letters, digits, inner hyphens and inner dots"),
]
Image = Annotated[
    str,
    Field(min_length=1, max_length=512, pattern=r"^\S+$"),
    Expected("an image such as actorq/actor:1.0, of at most 512 characters without spaces"),
]
# A label's key has a prefix of 253 characters, a slash and 63 characters. Its value has 63.
Key = Annotated[str, Field(max_length=317)]
Value = Annotated[str, Field(max_length=63)]
