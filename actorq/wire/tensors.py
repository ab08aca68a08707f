"""Tensors, their specs, and timestamps."""

import math
from typing import Any

import numpy as np
from google.protobuf.timestamp_pb2 import Timestamp
from numpy.typing import NDArray

from actorq.errors import InvalidInputError
from actorq.trajectory import ArraySpec
from actorq.v1 import tensor_pb2

_DTYPES: dict[tensor_pb2.DataType, np.dtype[Any]] = {
    tensor_pb2.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    tensor_pb2.DATA_TYPE_FLOAT64: np.dtype("<f8"),
    tensor_pb2.DATA_TYPE_UINT8: np.dtype("u1"),
    tensor_pb2.DATA_TYPE_INT8: np.dtype("i1"),
    tensor_pb2.DATA_TYPE_INT32: np.dtype("<i4"),
    tensor_pb2.DATA_TYPE_INT64: np.dtype("<i8"),
    tensor_pb2.DATA_TYPE_BOOL: np.dtype("?"),
}
_DATA_TYPES = {dtype: data_type for data_type, dtype in _DTYPES.items()}


def tensor_to_proto(array: NDArray[Any]) -> tensor_pb2.Tensor:
    """Encode an array of any supported dtype in C order."""
    dtype = array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype
    if dtype not in _DATA_TYPES:
        raise InvalidInputError(f"tensor: dtype must be one of {_names()}, got {array.dtype}")
    data = np.ascontiguousarray(array, dtype=dtype)
    return tensor_pb2.Tensor(dtype=_DATA_TYPES[dtype], shape=array.shape, data=data.tobytes())


def tensor_from_proto(message: tensor_pb2.Tensor) -> NDArray[Any]:
    """Decode without copying: the array is a read-only view of the message's bytes."""
    dtype, shape = _dtype_from_proto(message.dtype), tuple(message.shape)
    if any(size < 0 for size in shape):
        raise InvalidInputError(f"tensor: shape must not be negative, got {list(shape)}")
    expected = math.prod(shape) * dtype.itemsize
    if len(message.data) != expected:
        raise InvalidInputError(f"tensor: {dtype}{list(shape)} must have {expected} bytes, got {len(message.data)}")
    data = np.frombuffer(message.data, dtype)
    if dtype == np.bool_ and np.any(data.view(np.uint8) > 1):
        raise InvalidInputError("tensor: bool elements must be 0 or 1")
    try:
        return data.reshape(shape)
    except ValueError as error:
        raise InvalidInputError(f"tensor: shape cannot be held: {error}") from None


def array_spec_to_proto(spec: ArraySpec) -> tensor_pb2.TensorSpec:
    """Encode the spec of an array."""
    dtype = np.dtype(spec.dtype)
    if dtype not in _DATA_TYPES:
        raise InvalidInputError(f"tensor: dtype must be one of {_names()}, got {dtype}")
    return tensor_pb2.TensorSpec(dtype=_DATA_TYPES[dtype], shape=spec.shape, low=spec.low, high=spec.high)


def array_spec_from_proto(message: tensor_pb2.TensorSpec) -> ArraySpec:
    """Decode the spec of an array."""
    if any(size < 0 for size in message.shape):
        raise InvalidInputError(f"tensor: shape must not be negative, got {list(message.shape)}")
    elements = math.prod(message.shape)
    for name, bounds in (("low", message.low), ("high", message.high)):
        if len(bounds) not in (0, 1, elements) or not all(map(math.isfinite, bounds)):
            raise InvalidInputError(
                f"tensor: {name} must be empty, one finite value, or one for each of {elements} elements, got "
                f"{len(bounds)} values"
            )
    return ArraySpec(
        shape=tuple(message.shape),
        dtype=_dtype_from_proto(message.dtype).name,
        low=tuple(message.low),
        high=tuple(message.high),
    )


def timestamp_to_proto(unix_seconds: float) -> Timestamp:
    """Encode unix seconds; decoding gives exactly the same number for any time of this century."""
    message = Timestamp()
    # Apart, because the nanoseconds since 1970 need more digits than a float has.
    seconds = math.floor(unix_seconds)
    message.FromNanoseconds(seconds * 10**9 + round((unix_seconds - seconds) * 1e9))
    return message


def timestamp_from_proto(message: Timestamp) -> float:
    """Decode to unix seconds."""
    return message.seconds + message.nanos / 1e9


def _dtype_from_proto(value: tensor_pb2.DataType) -> np.dtype[Any]:
    if value not in _DTYPES:
        raise InvalidInputError(f"tensor: dtype must be one of {_names()}, got data type {value}")
    return _DTYPES[value]


def _names() -> str:
    return ", ".join(dtype.name for dtype in _DATA_TYPES)
