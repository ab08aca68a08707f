"""Arrays survive the conversion to tensors and back. Malformed tensors are refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from actorq import wire
from actorq.errors import InvalidInputError
from actorq.v1 import tensor_pb2
from tests.actorq.wire.wire_values import ENVIRONMENT, transported

DTYPES = ("float32", "float64", "uint8", "int8", "int32", "int64", "bool")
tensors = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(np.dtype(dtype), arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)


@settings(max_examples=60, deadline=None)
@given(tensors)
def test_a_tensor_of_any_dtype_and_shape_survives_the_wire(array: np.ndarray[Any, Any]) -> None:
    received = wire.tensor_from_proto(transported(wire.tensor_to_proto(array)))
    assert received.dtype == array.dtype
    assert received.shape == array.shape
    assert received.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_tensors_and_scalars_survive_the_wire(dtype: str) -> None:
    for array in (np.ones((), dtype), np.ones((0,), dtype), np.ones((3, 0, 2), dtype)):
        received = wire.tensor_from_proto(transported(wire.tensor_to_proto(array)))
        assert (received.dtype, received.shape) == (array.dtype, array.shape)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_big_endian_values_arrive_as_the_same_numbers(dtype: str) -> None:
    array = np.arange(6, dtype=np.dtype(dtype).newbyteorder(">")).reshape(2, 3)
    message = wire.tensor_to_proto(array)
    assert message.data == np.arange(6, dtype=np.dtype(dtype).newbyteorder("<")).tobytes()
    np.testing.assert_array_equal(wire.tensor_from_proto(message), array)


def test_views_that_are_not_contiguous_are_sent_in_c_order() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for view in (array.T, array[:, ::-1, ::2], np.asfortranarray(array), np.broadcast_to(array[:1], (5, 3, 4))):
        np.testing.assert_array_equal(wire.tensor_from_proto(wire.tensor_to_proto(view)), view)


def test_a_received_tensor_cannot_be_written_to() -> None:
    received = wire.tensor_from_proto(wire.tensor_to_proto(np.zeros(3, np.float32)))
    assert not received.flags.writeable


def test_a_tensor_costs_little_more_than_its_bytes() -> None:
    message = wire.tensor_to_proto(np.zeros((17, 8, 84, 84), np.uint8))
    assert message.ByteSize() - 17 * 8 * 84 * 84 < 32


@pytest.mark.parametrize(
    ("message", "fact"),
    [
        (tensor_pb2.Tensor(shape=[1], data=bytes(4)), "float32, .* bool.* 0$"),
        (
            tensor_pb2.Tensor(dtype=99, shape=[1], data=bytes(4)),  # type: ignore[arg-type]
            "float32, .* bool.* 99$",
        ),
        (
            tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[2, 3], data=bytes(23)),
            r"float32\[2, 3\] .* 24 .* 23$",
        ),
        (tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_INT64, shape=[], data=b""), r"int64\[\] .* 8 .* 0$"),
        (
            tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_UINT8, shape=[2**62, 2**62], data=bytes(1)),
            f"shape.* 2097152 .*{2**62}, {2**62}",
        ),
        (
            tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_UINT8, shape=[-1, -1], data=bytes(1)),
            "shape.*-1, -1",
        ),
        (tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_BOOL, shape=[3], data=b"\0\1\2"), "bool.* 0 or 1"),
    ],
)
def test_a_malformed_tensor_is_refused(message: tensor_pb2.Tensor, fact: str) -> None:
    with pytest.raises(InvalidInputError, match=f"tensor.*{fact}"):
        wire.tensor_from_proto(message)


@pytest.mark.parametrize(
    ("shape", "fact"),
    [([0, 2**62, 2**62], "2097152 bytes"), ([1] * 33, "32 dimensions")],
)
def test_a_shape_that_no_message_can_hold_is_refused(shape: list[int], fact: str) -> None:
    data = b"" if 0 in shape else b"1"
    message = tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_UINT8, shape=shape, data=data)
    with pytest.raises(InvalidInputError, match=f"tensor.* {fact}"):
        wire.tensor_from_proto(message)
    spec = tensor_pb2.TensorSpec(dtype=tensor_pb2.DATA_TYPE_UINT8, shape=shape)
    environment = wire.environment_to_proto(ENVIRONMENT)
    environment.observations.CopyFrom(spec)
    with pytest.raises(InvalidInputError, match=f"tensor.* {fact}"):
        wire.environment_from_proto(environment)


@pytest.mark.parametrize("dtype", ["float16", "uint16", "complex64", "U3", "datetime64[s]", "O"])
def test_an_array_of_another_dtype_is_not_sent(dtype: str) -> None:
    with pytest.raises(InvalidInputError, match=r"tensor.*float32, .* bool"):
        wire.tensor_to_proto(np.zeros(2, dtype))
