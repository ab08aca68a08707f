"""Pairs a message with its domain object. One declaration of fields and bounds gives both directions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

from google.protobuf.message import Message

from actorq.domain.contract import CONTRACT, check_contract
from actorq.errors import InvalidInputError
from actorq.wire import bounds

M = TypeVar("M", bound=Message)
T = TypeVar("T")

Check = Callable[[str, Any], Any]
_DECODED = object()


@dataclass(frozen=True, eq=False)
class Kind:
    """The conversion of a value whose form differs in a message.

    decode: checks and converts a field. It gets the field's name for errors, and the field.
    absent: the value for a message without the field; by default an empty field is decoded.
    """

    encode: Callable[[Any], Any]
    decode: Check
    absent: Any = _DECODED


class Pair(Generic[M, T]):
    """A message and its domain object, whose fields have the same names.

    domain: creates the object from its fields. May raise InvalidInputError when they do not fit each other.
    fields: for each kind, the names of its fields, separated by spaces; OBJECT=MESSAGE if the names differ. A kind is a
        check of `bounds` for a value with the same form in both, a `Kind`, or the pair of a nested message. A number or
        text that is `optional` in the message is None if absent.
    prefix: precedes the names in errors.
    peer: the sender, if the message contains the sender's contract. Another contract raises ConflictError.
    """

    def __init__(
        self, message: type[M], domain: Callable[..., T], fields: Mapping[Any, str], prefix: str = "", peer: str = ""
    ) -> None:
        self.message, self.domain = message, domain
        self._peer = peer
        self.fields: list[tuple[str, str, str, Kind]] = []
        described = message.DESCRIPTOR.fields_by_name
        for declared, names in fields.items():
            kind = _kind(declared)
            for name in names.split():
                own, _, theirs = name.partition("=")
                field = described[theirs or own]
                may_be_none = field.has_presence and field.message_type is None
                known = replace(kind, absent=None) if may_be_none else kind
                self.fields.append((own, field.name, f"{prefix}{field.name}", known))

    @property
    def both(self) -> tuple[Callable[[T], M], Callable[[M], T]]:
        """The functions that encode and decode."""
        return self.to_proto, self.from_proto

    def to_proto(self, value: T, **others: Any) -> M:
        """Encode a domain object. others: fields of the message that are not declared."""
        if self._peer:
            others["contract"] = CONTRACT
        for own, theirs, _, kind in self.fields:
            found = getattr(value, own)
            others[theirs] = None if found is None else kind.encode(found)
        return self.message(**others)

    def from_proto(self, message: M, **others: Any) -> T:
        """Decode and check a message. others: fields of the domain object that are not declared."""
        if self._peer:
            check_contract(self._peer, cast("Any", message).contract)
        for own, theirs, what, kind in self.fields:
            absent = kind.absent is not _DECODED and not message.HasField(theirs)
            others[own] = kind.absent if absent else kind.decode(what, getattr(message, theirs))
        return self.domain(**others)


def nested(encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> Kind:
    """A nested message. Errors have the names of its own fields."""
    return Kind(encode, lambda what, message: decode(message))


def _kind(declared: Any) -> Kind:
    if isinstance(declared, Pair):
        return nested(declared.to_proto, declared.from_proto)
    return declared if isinstance(declared, Kind) else Kind(lambda value: value, declared)


def optional(declared: Any, absent: Any = None) -> Kind:
    """A nested message, and the value if it is absent."""
    return replace(_kind(declared), absent=absent)


def many(declared: Any, most: int) -> Kind:
    """A repeated field of at most `most` items of a kind: a tuple."""
    kind = _kind(declared)
    return Kind(
        lambda values: [kind.encode(value) for value in values],
        lambda what, values: tuple(kind.decode(what, value) for value in bounds.items(what, values, most)),
    )


def named(check: Check, most: int) -> Kind:
    """A map of at most `most` names to values: a dict."""
    return Kind(
        dict,
        lambda what, values: {
            bounds.name(what, name): check(what, value) for name, value in bounds.items(what, values, most).items()
        },
    )


def enumeration(enum: Any, numbers: Mapping[Any, int], older: Mapping[int, Any] | None = None) -> Kind:
    """Values with their numbers in a message. older: values of further numbers, which this version never sends."""
    values = {number: value for value, number in numbers.items()} | dict(older or {})

    def encode(value: Any) -> int:
        if value not in numbers:
            known = ", ".join(map(str, numbers))
            raise InvalidInputError(f"{enum.DESCRIPTOR.name}: must be one of {known}, got {value!r}")
        return numbers[value]

    def decode(what: str, number: int) -> Any:
        if number not in values:
            raise InvalidInputError(f"{what}: must be one of {', '.join(map(enum.Name, values))}, got {number}")
        return values[number]

    return Kind(encode, decode)
