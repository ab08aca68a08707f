"""Settings that name a policy: its version, and its scheme, built in or declared by an installed package."""

import functools
import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from actorq.config.settings import DefaultText
from actorq.domain.policy import AUTO, BEST, NEWEST, SCHEMES
from actorq.errors import NotFoundError
from actorq.text import reason_of

SCHEME_ENTRY_POINTS = "actorq.schemes"
# Names that ask for bits of `learner.quantization_aware_bits`. Other schemes have kernels of 4 and 8 bits.
_BITS = re.compile(r"int([2-7])")


@functools.cache
def installed_schemes() -> Mapping[str, EntryPoint]:
    """The schemes of installed packages by name. Searched once per process. Excludes built-in names."""
    points = entry_points(group=SCHEME_ENTRY_POINTS)
    return {point.name: point for point in points if point.name not in (*SCHEMES, AUTO)}


def scheme_names() -> tuple[str, ...]:
    """The names of all schemes, built-in ones first."""
    return (*SCHEMES, *sorted(installed_schemes()))


def is_scheme(name: str) -> bool:
    """Whether a scheme has this name."""
    # Most runs skip the search for installed packages, which takes milliseconds.
    return name in SCHEMES or name in installed_schemes()


@functools.cache
def load_scheme(name: str) -> Any:
    """Call the entry point of an installed scheme. Raises NotFoundError for an unknown name or an unusable scheme."""
    if name not in installed_schemes():
        raise NotFoundError(f"scheme: expected one of {', '.join(scheme_names())}, got {name!r}")
    path = installed_schemes()[name].value
    try:
        scheme = installed_schemes()[name].load()()
    except Exception as error:
        # A user's package may raise any exception.
        reason = f"{type(error).__name__}: {reason_of(error)}"
        raise NotFoundError(f"scheme {name}: {path} cannot be used: {reason}") from error
    if getattr(scheme, "name", None) != name or not callable(getattr(scheme, "plan", None)):
        raise NotFoundError(
            f"scheme {name}: {path} is not a scheme: expected name {name!r} and a method plan; see the interface "
            "actorq.quantization.schemes.base.Scheme"
        )
    return scheme


def _checked(name: str, *, or_auto: bool = False) -> str:
    if is_scheme(name) or (or_auto and name == AUTO):
        return name
    names = ", ".join((*scheme_names(), *((AUTO,) if or_auto else ())))
    raise ValueError(f"expected one of {names}, or a scheme of an installed package{_without_kernel(name)}")


def _without_kernel(name: str) -> str:
    """What a run can do with a number of bits that no kernel computes; "" for other names."""
    if not (bits := _BITS.fullmatch(name)):
        return ""
    setting = f"learner.quantization_aware_bits {bits[1]}"
    return f" (no kernel computes {bits[1]} bits; int8 with {setting} rounds only training, and acts as fast as int8)"


def _checked_version(choice: str) -> str:
    if choice in (BEST, NEWEST) or (choice.isascii() and choice.isdecimal() and int(choice)):
        return choice.lstrip("0")
    raise ValueError(f"expected {BEST}, {NEWEST} or a number of at least 1")


SchemeName = Annotated[str, AfterValidator(_checked)]
"""A setting: the name of a scheme."""
SchemeChoice = Annotated[str, AfterValidator(functools.partial(_checked, or_auto=True))]
"""A setting: the name of a scheme, or "auto"."""
# YAML parses numbers as integers.
VersionChoice = Annotated[str, BeforeValidator(str), AfterValidator(_checked_version)]
"""A setting: a version of a policy, in the form that actorq.domain.policy.chosen_version expects."""
ExportEncoding = Annotated[
    Literal["signed", "unsigned"] | None, DefaultText("the one that this processor computes exactly")
]
"""A setting: the weight encoding of a file."""
ENCODING_HELP = "int8 weights for the target's processor: signed with an int8 dot product (VNNI), else unsigned"
STANDARD = "standard"
Form = Literal["onnxruntime", "standard"]
"""A setting: the operators in a file."""
FORM_HELP = "onnxruntime: the form that actors run; standard: only standard ONNX operators, for any runtime"
CHOICES_HELP = f"quantization of policies: {', '.join(SCHEMES)}, or a scheme of an installed package"
