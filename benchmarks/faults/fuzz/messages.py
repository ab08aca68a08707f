"""Hostile messages for fuzz.py and tests/fuzz: with extreme or altered fields, or random bytes."""

import math
import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_KINDS = FieldDescriptor
_INTEGERS = (
    0,
    1,
    -1,
    2,
    100,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**62 - 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**31),
    -(2**63),
    32,
    33,
    128,
    10_000,
    10_001,
    10**9 - 1,
    10**9,
    2**33,
    2**33 + 1,
    65_536,
    65_537,
)
_FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e12,
    1.1e12,
    1e30,
    1.1e30,
    -1e30,
    1e308,
    -1e308,
    5e-324,
    math.nan,
    math.inf,
    -math.inf,
)
_TEXTS = (
    "",
    "a",
    "int8",
    "actor-0",
    "a" * 128,
    "a" * 129,
    "é" * 64,
    "é" * 65,
    "名前",
    "x" * 1024,
    "x" * 1025,
    "a\nINFO forged",
    "\x1b[2J\x1b]0;title\x07",
    "\r",
    "a\x00b",
    "a\u202eb",
    "a\u2028b",
    "../../etc/passwd",
)
_LONG_TEXT = "x" * 10**6
_SIZES = (0, 1, 4, 16, 31, 32, 33, 1000)
_COUNTS = (1, 1, 1, 2, 3, 33, 101)
_MANY = 20_000
_RANGES = {
    _KINDS.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    _KINDS.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    _KINDS.CPPTYPE_UINT32: (0, 2**32 - 1),
    _KINDS.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_MOST_DEPTH = 6


def anything(descriptor: Any, rng: random.Random, depth: int = 0) -> Any:
    """A message of a type. Each field is missing, ordinary or extreme at random."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if rng.random() < 0.7 / (depth + 1):
            _put(message, field, rng, depth)
    return message


def altered(message: Message, rng: random.Random) -> Any:
    """A copy in which one to three fields, at any depth, are extreme or missing."""
    copy: Any = type(message)()
    copy.CopyFrom(message)
    for _ in range(rng.randint(1, 3)):
        part = copy
        while inner := _set_messages(part):
            if rng.random() < 0.3:
                break
            part = rng.choice(inner)
        if not part.DESCRIPTOR.fields:
            continue
        field = rng.choice(part.DESCRIPTOR.fields)
        if rng.random() < 0.2:
            part.ClearField(field.name)
        else:
            _put(part, field, rng, 0)
    return copy


def mutated(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """The bytes of a message with some flipped, cut, repeated or inserted, or followed by those of another message."""
    mutable = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(mutable) + 1)
        match rng.randrange(5):
            case 0 if mutable:
                mutable[at % len(mutable)] ^= 1 << rng.randrange(8)
            case 1:
                del mutable[at : at + rng.choice((1, 4, 64))]
            case 2:
                mutable[at:at] = mutable[at : at + rng.choice((1, 4, 64))]
            case 3:
                mutable[at:at] = rng.randbytes(rng.choice((1, 4, 64)))
            case _:
                mutable[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(mutable)


def noise(rng: random.Random) -> bytes:
    """Random bytes."""
    return rng.randbytes(rng.choice((0, 1, 2, 8, 64, 1000, 100_000 if rng.random() < 0.02 else 16)))


def _put(message: Any, field: FieldDescriptor, rng: random.Random, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _put_in_map(getattr(message, field.name), field, rng)
    elif field.is_repeated:
        _put_several(getattr(message, field.name), field, rng, depth)
    elif field.message_type is None:
        setattr(message, field.name, _value(field, rng))
    elif depth < _MOST_DEPTH:
        getattr(message, field.name).CopyFrom(anything(field.message_type, rng, depth + 1))


def _put_several(container: Any, field: FieldDescriptor, rng: random.Random, depth: int) -> None:
    long = depth == 0 and rng.random() < 0.02
    if field.message_type is None:
        container.extend([_value(field, rng, most=1000)] * (_MANY if long else rng.choice(_COUNTS)))
    elif depth < _MOST_DEPTH:
        one = anything(field.message_type, rng, depth + 1)
        container.extend([one] * (rng.choice((1_001, 5_000)) if long and one.ByteSize() < 50 else rng.choice(_COUNTS)))


def _put_in_map(container: Any, field: FieldDescriptor, rng: random.Random) -> None:
    assert field.message_type is not None
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    for _ in range(rng.choice(_COUNTS)):
        container[_value(key, rng, most=1000)] = _value(value, rng, most=1000)


def _value(field: FieldDescriptor, rng: random.Random, most: int = 10**6) -> Any:
    match field.cpp_type:
        case _KINDS.CPPTYPE_DOUBLE | _KINDS.CPPTYPE_FLOAT:
            return rng.choice(_FLOATS)
        case _KINDS.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case _KINDS.CPPTYPE_ENUM:
            return rng.choice((0, 1, 1, 2, 3, 99, -1))
        case _KINDS.CPPTYPE_STRING if field.type == _KINDS.TYPE_BYTES:
            return rng.randbytes(rng.choice(_SIZES))
        case _KINDS.CPPTYPE_STRING:
            return _LONG_TEXT[:most] if rng.random() < 0.01 else rng.choice(_TEXTS)
        case kind:
            least, highest = _RANGES[kind]
            return rng.choice([number for number in _INTEGERS if least <= number <= highest])


def _set_messages(message: Any) -> list[Any]:
    """The set submessages of a message: one of each repeated field, none of a map."""
    found = []
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        if not field.is_repeated:
            found.append(value)
        elif len(value):
            found.append(value[0])
    return found
