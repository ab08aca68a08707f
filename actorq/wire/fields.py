"""Decodes fields that a message and its domain object have under the same names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from actorq.wire import bounds

T = TypeVar("T")


class Fields:
    """Fields of a message that a domain object has under the same names, and the check of each.

    prefix: stands before the names in errors.
    checks: the names of the fields, separated by spaces, by the check that they take (see `bounds`).
    """

    def __init__(self, message: type[Message], prefix: str, checks: Mapping[Any, str]) -> None:
        fields = message.DESCRIPTOR.fields_by_name
        self._checks = tuple(
            (name, f"{prefix}{name}", check, fields[name].has_presence)
            for check, names in checks.items()
            for name in names.split()
        )

    def of(self, message: Message) -> dict[str, Any]:
        """The checked values by their names; None for an optional field that is absent."""
        return {
            name: None if may_be_absent and not message.HasField(name) else check(what, getattr(message, name))
            for name, what, check, may_be_absent in self._checks
        }


def optional(message: Message, name: str, decode: Callable[[Any], T]) -> T | None:
    """A decoded message in a field; None where it is absent."""
    return decode(getattr(message, name)) if message.HasField(name) else None


def each(check: Callable[[str, Any], T], what: str, values: Sequence[Any], most: int) -> tuple[T, ...]:
    """The results of a check for each of at most `most` items of a repeated field."""
    return tuple(check(what, value) for value in bounds.items(what, values, most))
