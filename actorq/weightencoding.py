"""Rewrites the int8 weights of an ONNX model as unsigned integers with the zero point 128, and back.

Both encodings represent the same numbers (actorq.domain.policy.WEIGHT_ENCODINGS). A rewritten model differs only in
the places below. Rewriting it back therefore gives the same bytes:

- The weights and their zero points change type, and the highest bit of each value flips: w + 128 = w ^ 0x80.
- An operator without a zero point gets `_ZERO_POINT`, a constant at the end of the model.

The module parses ONNX's encoding (protobuf's wire format) itself, for two reasons. Actors and `actorq.load_policy` work
without the onnx package. The bytes of a version must not depend on a library's version.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from actorq.domain.policy import SIGNED, UNSIGNED, WEIGHT_ENCODINGS, Policy
from actorq.errors import InvalidInputError

# Operators with int8 weights in emitted models: input positions of the weights and of their zero point.
_PRODUCTS = {
    b"DynamicQuantizeMatMul": ((1, 3),),
    b"QGemm": ((3, 5),),
    b"QLinearConv": ((3, 5),),
    b"DynamicQuantizeLSTM": ((1, 9), (2, 11)),
}
_ZERO_POINT = b"weights:zero_point"

# Field numbers in onnx.proto, of length-delimited fields except for the type.
_GRAPH, _NODE, _INITIALIZER = 7, 1, 5
_INPUT, _OPERATOR = 1, 4
_TYPE, _NAME, _RAW_DATA = 2, 8, 9
# Type numbers of a tensor.
_TYPES = {UNSIGNED: 2, SIGNED: 3}
_LENGTH_DELIMITED = 2

Bytes = bytes | memoryview


class _Field(NamedTuple):
    """A field of a message: its number, and the positions of the field, of its value and of the next field."""

    number: int
    begin: int
    value: int
    end: int


class _Product(NamedTuple):
    """A node with int8 weights.

    tensors: names of its weights and of their zero points.
    zero_point: the field that names the zero point of its only weight, if that is not a constant of the emitted model.
    """

    node: _Field
    tensors: tuple[bytes, ...]
    zero_point: _Field | None


def weight_encoding_of(model: bytes) -> str | None:
    """The encoding of a model's int8 weights; None for a model without the int8 products that schemes emit."""
    parsed = _Model(model)
    return parsed.weight_encoding if parsed.products else None


def with_weight_encoding(model: bytes, weight_encoding: str) -> bytes:
    """The same model with its int8 weights in this encoding; unchanged if it already has this encoding.

    Raises InvalidInputError when the weights of an int8 product are not constants in the form that schemes emit.
    """
    parsed = _Model(model)
    if parsed.weight_encoding == weight_encoding or not parsed.products:
        return model
    if parsed.weight_encoding is None:
        raise InvalidInputError(
            "model: expected int8 products whose weights are constants, all signed or all unsigned, got others; they "
            f"cannot be converted to {weight_encoding} weights"
        )
    return parsed.flipped()


def in_weight_encoding(policy: Policy, weight_encoding: str) -> Policy:
    """The policy with its int8 weights in this encoding. Raises as `with_weight_encoding` does."""
    if policy.descriptor.weight_encoding == weight_encoding:
        return policy
    model = with_weight_encoding(policy.model, weight_encoding)
    digest = hashlib.sha256(model).digest()
    descriptor = replace(policy.descriptor, sha256=digest, size_bytes=len(model), weight_encoding=weight_encoding)
    return Policy(descriptor, model)


class _Model:
    """A model, and the parts that a change of encoding affects.

    products: the nodes with int8 weights.
    weight_encoding: encoding of their weights; None unless all are constants of one type.
    """

    def __init__(self, model: bytes) -> None:
        self._model = memoryview(model)
        self._top = list(self._fields(0, len(model)))
        graphs = [each for each in self._top if each.number == _GRAPH]
        self._parts = [part for graph in graphs for part in self._fields(graph.value, graph.end)]
        nodes = (self._product(each) for each in self._parts if each.number == _NODE)
        self.products = {found.node: found for found in nodes if found is not None}
        constants = {self._first(each, _NAME): each for each in self._parts if each.number == _INITIALIZER}
        names = {name for product in self.products.values() for name in product.tensors}
        self._tensors = {constants[name] for name in names & constants.keys()}
        types = {self._first(each, _TYPE) for each in self._tensors}
        known = [encoding for encoding in WEIGHT_ENCODINGS if types == {bytes((_TYPES[encoding],))}]
        self.weight_encoding = known[0] if known and not names - constants.keys() else None

    def flipped(self) -> bytes:
        """The model in the other encoding."""
        target = UNSIGNED if self.weight_encoding == SIGNED else SIGNED
        parts: list[Bytes] = []
        for each in self._parts:
            if each in self._tensors:
                parts += self._flipped(each, _TYPES[target])
            elif each in self.products:
                parts += self._rewired(self.products[each], target)
            elif each.number != _INITIALIZER or self._first(each, _NAME) != _ZERO_POINT:
                parts.append(self._model[each.begin : each.end])
        if target == UNSIGNED and any(product.zero_point for product in self.products.values()):
            parts += _delimited(_INITIALIZER, _zero_point())
        result: list[Bytes] = []
        for each in self._top:
            result += _delimited(_GRAPH, *parts) if each.number == _GRAPH else [self._model[each.begin : each.end]]
        return b"".join(result)

    def _product(self, node: _Field) -> _Product | None:
        """The product of a node; None for another node."""
        fields = list(self._fields(node.value, node.end))
        operator = next((self._value(each) for each in fields if each.number == _OPERATOR), b"")
        if operator not in _PRODUCTS:
            return None
        places = _PRODUCTS[bytes(operator)]
        inputs = [each for each in fields if each.number == _INPUT]
        if len(inputs) <= max(zero_point for _, zero_point in places):
            # Schemes emit no such form.
            return _Product(node, (b"",), None)
        tensors = tuple(bytes(self._value(inputs[place])) for pair in places for place in pair)
        if len(places) == 1 and tensors[1] in (b"", _ZERO_POINT):
            return _Product(node, tensors[:1], inputs[places[0][1]])
        return _Product(node, tensors, None)

    def _flipped(self, tensor: _Field, kind: int) -> list[Bytes]:
        """A tensor of the same size with the other type, and the highest bit of each value flipped."""
        parts: list[Bytes] = [self._model[tensor.begin : tensor.value]]
        for each in self._fields(tensor.value, tensor.end):
            if each.number == _TYPE:
                parts.append(bytes((self._model[each.begin], kind)))
            elif each.number == _RAW_DATA:
                values = np.frombuffer(self._model[each.value : each.end], np.uint8) ^ np.uint8(0x80)
                parts += (self._model[each.begin : each.value], values.data)
            else:
                parts.append(self._model[each.begin : each.end])
        return parts

    def _rewired(self, product: _Product, target: str) -> list[Bytes]:
        """A node that reads the added zero point for unsigned weights, or no zero point for signed ones."""
        node, place = product.node, product.zero_point
        if place is None:
            return [self._model[node.begin : node.end]]
        named = _delimited(_INPUT, _ZERO_POINT if target == UNSIGNED else b"")
        return _delimited(_NODE, self._model[node.value : place.begin], *named, self._model[place.end : node.end])

    def _first(self, message: _Field, number: int) -> bytes:
        """The value of a message's first field with this number; empty if there is none."""
        fields = self._fields(message.value, message.end)
        return next((bytes(self._value(each)) for each in fields if each.number == number), b"")

    def _value(self, field: _Field) -> memoryview:
        return self._model[field.value : field.end]

    def _fields(self, begin: int, end: int) -> Iterator[_Field]:
        """The fields of the message in these bytes. Raises InvalidInputError when they are not a message."""
        at = begin
        while at < end:
            key, value = self._varint(at)
            match key & 7:
                case 0:
                    after = self._varint(value)[1]
                case 1:
                    after = value + 8
                case 2:
                    size, value = self._varint(value)
                    after = value + size
                case 5:
                    after = value + 4
                case _:
                    after = end + 1
            if after > end:
                raise InvalidInputError("model: expected an ONNX model, got other bytes")
            yield _Field(key >> 3, at, value, after)
            at = after

    def _varint(self, at: int) -> tuple[int, int]:
        """A number in protobuf's encoding, and its end position."""
        number = shift = 0
        while at < len(self._model) and shift < 70:
            byte = self._model[at]
            number |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return number, at
        raise InvalidInputError("model: expected an ONNX model, got other bytes")


def _zero_point() -> bytes:
    """A scalar tensor uint8[] of 128 with the name of the zero point."""
    kind = bytes((_TYPE << 3, _TYPES[UNSIGNED]))
    return b"".join((kind, *_delimited(_NAME, _ZERO_POINT), *_delimited(_RAW_DATA, bytes((128,)))))


def _delimited(number: int, *parts: Bytes) -> list[Bytes]:
    """A length-delimited field with these parts as its value."""
    return [bytes((number << 3 | _LENGTH_DELIMITED,)) + varint(sum(map(len, parts))), *parts]


def varint(number: int) -> bytes:
    """A length in protobuf's encoding: 7 bits per byte, the lowest first."""
    result = bytearray()
    while number > 127:
        result.append(number & 127 | 128)
        number >>= 7
    result.append(number)
    return bytes(result)
