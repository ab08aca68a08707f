"""Names of schemes: ours, and those that installed packages declare as entry points."""

import functools
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

from pydantic import AfterValidator

from actorq.domain.policy import AUTO, SCHEMES
from actorq.errors import NotFoundError

SCHEME_ENTRY_POINTS = "actorq.schemes"


@functools.cache
def installed_schemes() -> Mapping[str, EntryPoint]:
    """The schemes of installed packages, by name; looked for once in each process. They cannot have names of ours."""
    return {
        point.name: point for point in entry_points(group=SCHEME_ENTRY_POINTS) if point.name not in (*SCHEMES, AUTO)
    }


def scheme_names() -> tuple[str, ...]:
    """The names of all schemes, ours first."""
    return (*SCHEMES, *sorted(installed_schemes()))


def is_scheme(name: str) -> bool:
    """Whether there is a scheme of that name."""
    # Installed packages are not looked for in most runs: it takes some milliseconds.
    return name in SCHEMES or name in installed_schemes()


@functools.cache
def load_scheme(name: str) -> Any:
    """A scheme of an installed package: what its entry point, a class without arguments, makes.

    Raises NotFoundError that lists the schemes, or says why this one cannot be used.
    """
    if name not in installed_schemes():
        raise NotFoundError(f"scheme: expected one of {', '.join(scheme_names())}, got {name!r}")
    path = installed_schemes()[name].value
    try:
        scheme = installed_schemes()[name].load()()
    except Exception as error:
        # A package of a user's own may raise anything.
        text = " ".join(str(error).split())
        raise NotFoundError(f"scheme {name}: {path} cannot be used: {type(error).__name__}: {text}") from error
    if getattr(scheme, "name", None) != name or not callable(getattr(scheme, "plan", None)):
        raise NotFoundError(
            f"scheme {name}: {path} is no scheme: expected name {name!r} and a method plan; "
            "actorq.quantization.schemes.base.Scheme says what one has"
        )
    return scheme


def _checked(name: str) -> str:
    if name != AUTO and not is_scheme(name):
        raise ValueError(f"value should be {', '.join(map(repr, scheme_names()))} or {AUTO!r}")
    return name


SchemeChoice = Annotated[str, AfterValidator(_checked)]
"""A setting: the name of a scheme, or "auto"."""
CHOICES_HELP = f"how policies are quantized: {', '.join(SCHEMES)}, or of an installed package"
