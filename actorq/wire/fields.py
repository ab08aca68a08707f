"""Decodes fields that a message and its domain object have under the same names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from actorq.wire import bounds

T = TypeVar("T")


def checked(message: Message, prefix: str, checks: Mapping[Any, str]) -> dict[str, Any]:
    """The checked values of fields by their names; None for an optional field that is absent.

    prefix: stands before the names in errors.
    checks: the names of the fields, separated by spaces, by the check that they take (see `bounds`).
    """
    fields = message.DESCRIPTOR.fields_by_name
    return {
        name: check(f"{prefix}{name}", getattr(message, name))
        if not fields[name].has_presence or message.HasField(name)
        else None
        for check, names in checks.items()
        for name in names.split()
    }


def optional(message: Message, name: str, decode: Callable[[Any], T]) -> T | None:
    """A decoded message in a field; None where it is absent."""
    return decode(getattr(message, name)) if message.HasField(name) else None


def each(check: Callable[[str, Any], T], what: str, values: Sequence[Any], most: int) -> tuple[T, ...]:
    """The results of a check for each of at most `most` items of a repeated field."""
    return tuple(check(what, value) for value in bounds.items(what, values, most))
