"""Describes the values that a setting accepts, for errors: "a whole number from 0 to 10, or none"."""

import re
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
_JSON_VALUE = "text, a number, true, false, null, or a list or mapping of such values"
# From this number on, powers of ten are written as 1e18.
_LARGE = 1_000_000_000


@dataclass(frozen=True)
class Expected:
    """Annotation of a setting whose type does not describe its values, such as text that must match a pattern."""

    text: str


SECTION = "a section of settings"


def expected_at(model: type[BaseModel], location: Sequence[int | str]) -> tuple[str, str]:
    """The dotted name of the setting at a location of a pydantic error, and the values that it accepts."""
    annotation: Any = model
    extras: tuple[Any, ...] = ()
    path: list[str] = []
    steps = iter(location)
    for step in steps:
        if step == "[key]":
            return ".".join(path), "text as a name"
        annotation, _, _ = _opened(annotation, extras)
        if annotation is JsonValue:
            # pydantic reports the type of the value first, and then the key or index in it.
            path += [str(inner) for inner in steps if next(steps, None) is not None]
            return ".".join(path), _JSON_VALUE
        path.append(str(step))
        annotation, extras = _inner(annotation, step)
    return ".".join(path), expectation(annotation, extras)


def _inner(annotation: Any, step: int | str) -> tuple[Any, tuple[Any, ...]]:
    """The type of a value inside a section, list or mapping, with the annotations of a setting."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(step))
        return (Any, ()) if field is None else (field.annotation, tuple(field.metadata))
    match typing.get_origin(annotation), typing.get_args(annotation):
        case origin, (inner, *_) if origin in (tuple, list):
            return inner, ()
        case origin, (_, inner) if origin is dict:
            return inner, ()
    return annotation, ()


def expectation(annotation: Any, extras: Sequence[Any] = ()) -> str:
    """The values of an annotated type in words. extras: annotations besides those of the type itself."""
    kind, inner, optional = _opened(annotation, extras)
    return _text(kind, inner) + (", or none" if optional else "")


def _text(kind: Any, extras: Sequence[Any]) -> str:
    described = next((extra.text for extra in extras if isinstance(extra, Expected)), None)
    if described is not None:
        return described
    arguments = typing.get_args(kind)
    match typing.get_origin(kind):
        case typing.Literal:
            return f"one of {', '.join(map(str, arguments))}"
        case origin if origin in (tuple, list):
            fewest = "one item or more" if any(isinstance(extra, MinLen) for extra in extras) else "items"
            return f"a list of {fewest}, each {expectation(arguments[0])}"
        case origin if origin is dict:
            return "a mapping of names to values"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return SECTION
    if kind is JsonValue:
        return _JSON_VALUE
    bounds = _bounds(kind, extras) if kind in (int, float) else _length(extras)
    return _KINDS.get(kind, "another value") + bounds


def _opened(annotation: Any, extras: Sequence[Any]) -> tuple[Any, tuple[Any, ...], bool]:
    """The type inside Annotated and unions with None, all annotations around it, and whether None is allowed."""
    found, optional = list(extras), False
    while True:
        if annotation is JsonValue:
            break
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            annotation, *more = typing.get_args(annotation)
            found += _flat(more)
        elif origin in (typing.Union, types.UnionType):
            kinds = typing.get_args(annotation)
            optional = optional or type(None) in kinds
            annotation = next(kind for kind in kinds if kind is not type(None))
        else:
            break
    return annotation, tuple(found), optional


def _flat(extras: Sequence[Any]) -> Iterator[Any]:
    for extra in extras:
        if isinstance(extra, FieldInfo):
            yield from extra.metadata
        else:
            yield extra


def _bounds(kind: type, extras: Sequence[Any]) -> str:
    """The bounds of a number as a clause: " from 1 to 8", " above 0"."""
    least = most = above = below = ""
    for extra in extras:
        match extra:
            case Ge(ge=bound):
                least = _number(bound)
            case Gt(gt=bound) if kind is int:
                least = _number(typing.cast(int, bound) + 1)
            case Gt(gt=bound):
                above = f"above {_number(bound)}"
            case Le(le=bound):
                most = _number(bound)
            case Lt(lt=bound) if kind is int:
                most = _number(typing.cast(int, bound) - 1)
            case Lt(lt=bound):
                below = f"below {_number(bound)}"
    if least and most:
        return f" from {least} to {most}"
    low = above or (f"of at least {least}" if least else "")
    high = below or (f"at most {most}" if most else "")
    clauses = [clause for clause in (low, high if low or below else f"of {high}" * bool(high)) if clause]
    return " ".join(["", " and ".join(clauses)]) if clauses else ""


def _length(extras: Sequence[Any]) -> str:
    least = next((extra.min_length for extra in extras if isinstance(extra, MinLen)), 0)
    most = next((extra.max_length for extra in extras if isinstance(extra, MaxLen)), None)
    if most is not None:
        return f" of {least:,} to {most:,} characters" if least else f" of at most {most:,} characters"
    return " that is not empty" if least else ""


def _number(value: Any) -> str:
    if abs(value) >= _LARGE and (isinstance(value, float) or str(value).strip("-0") == "1"):
        return re.sub(r"e\+0*", "e", f"{value:g}")
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
