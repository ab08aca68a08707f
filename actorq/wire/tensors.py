"""Messages of tensors, their specs, and times."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from numpy.typing import NDArray

from actorq.domain.spaces import ArraySpec
from actorq.errors import InvalidInputError
from actorq.v1 import tensor_pb2
from actorq.wire import bounds
from actorq.wire.fields import Kind, nested

_BOOL = np.dtype("?")
_DTYPES: dict[tensor_pb2.DataType, np.dtype[Any]] = {
    tensor_pb2.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    tensor_pb2.DATA_TYPE_FLOAT64: np.dtype("<f8"),
    tensor_pb2.DATA_TYPE_UINT8: np.dtype("u1"),
    tensor_pb2.DATA_TYPE_INT8: np.dtype("i1"),
    tensor_pb2.DATA_TYPE_INT32: np.dtype("<i4"),
    tensor_pb2.DATA_TYPE_INT64: np.dtype("<i8"),
    tensor_pb2.DATA_TYPE_BOOL: _BOOL,
}
_DATA_TYPES = {dtype: data_type for data_type, dtype in _DTYPES.items()}


def tensor_to_proto(array: NDArray[Any]) -> tensor_pb2.Tensor:
    """Encode an array of any supported dtype in C order."""
    data_type = _DATA_TYPES.get(array.dtype)
    if data_type is None:
        array = array.astype(array.dtype.newbyteorder("<"))
        if array.dtype not in _DATA_TYPES:
            raise InvalidInputError(f"tensor: dtype must be one of {_names()}, got {array.dtype}")
        data_type = _DATA_TYPES[array.dtype]
    return tensor_pb2.Tensor(dtype=data_type, shape=array.shape, data=array.tobytes())


def tensor_from_proto(message: tensor_pb2.Tensor) -> NDArray[Any]:
    """Decode an array: a read-only view of a copy of the message's bytes."""
    dtype, shape, expected = _layout(message.dtype, bounds.dimensions("tensor", message.shape))
    # Protobuf copies the bytes at each access.
    data = message.data
    if len(data) != expected:
        raise InvalidInputError(f"tensor: {dtype}{list(shape)} must have {expected} bytes, got {len(data)}")
    if dtype is _BOOL and data.translate(None, b"\0\1"):
        raise InvalidInputError("tensor: bool elements must be 0 or 1")
    return np.ndarray(shape, dtype, data)


# Cached, because the tensors of a run have few shapes.
@lru_cache(maxsize=256)
def _layout(data_type: tensor_pb2.DataType, sizes: tuple[int, ...]) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """The dtype, shape and number of bytes of a tensor."""
    dtype = _dtype_from_proto(data_type)
    shape = bounds.shape("tensor", sizes, dtype.itemsize)
    return dtype, shape, math.prod(shape) * dtype.itemsize


def array_spec_to_proto(spec: ArraySpec) -> tensor_pb2.TensorSpec:
    """Encode the spec of an array."""
    dtype = np.dtype(spec.dtype)
    if dtype not in _DATA_TYPES:
        raise InvalidInputError(f"tensor: dtype must be one of {_names()}, got {dtype}")
    return tensor_pb2.TensorSpec(dtype=_DATA_TYPES[dtype], shape=spec.shape, low=spec.low, high=spec.high)


def array_spec_from_proto(message: tensor_pb2.TensorSpec) -> ArraySpec:
    """Decode the spec of an array with at least one element."""
    dtype = _dtype_from_proto(message.dtype)
    shape = bounds.shape("tensor", message.shape, dtype.itemsize)
    elements = math.prod(shape)
    if not elements:
        raise InvalidInputError(f"tensor: shape must have at least one element, got {list(shape)}")
    for name, limits in (("low", message.low), ("high", message.high)):
        if len(limits) not in (0, 1, elements) or not all(map(math.isfinite, limits)):
            raise InvalidInputError(
                f"tensor: {name} must be empty, one finite value, or one for each of {elements} elements, got "
                f"{len(limits)} values"
            )
    return ArraySpec(shape=shape, dtype=dtype.name, low=tuple(message.low), high=tuple(message.high))


ARRAY_SPEC = nested(array_spec_to_proto, array_spec_from_proto)


def timestamp_to_proto(unix_seconds: float) -> Timestamp:
    """Encode unix seconds. `bounds.unix_seconds` restores exactly the same number for any time of this century."""
    message = Timestamp()
    # Seconds and nanoseconds are split, because a float has too few digits for nanoseconds since 1970.
    seconds = math.floor(unix_seconds)
    message.FromNanoseconds(seconds * 10**9 + round((unix_seconds - seconds) * 1e9))
    return message


TIME = Kind(timestamp_to_proto, bounds.unix_seconds)
"""Unix seconds."""


def duration(least: float, most: float) -> Kind:
    """From `least` to `most` seconds."""
    return Kind(_duration_to_proto, lambda what, message: bounds.duration_s(what, message, least, most))


def _duration_to_proto(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def _dtype_from_proto(value: tensor_pb2.DataType) -> np.dtype[Any]:
    dtype = _DTYPES.get(value)
    if dtype is None:
        raise InvalidInputError(f"tensor: dtype must be one of {_names()}, got data type {value}")
    return dtype


def _names() -> str:
    return ", ".join(dtype.name for dtype in _DATA_TYPES)
