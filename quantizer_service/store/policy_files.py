"""Encodes the FP32 tensors of a version as a file. actorq.statefiles.policies has the other files of a version.

Every file contains a digest, or its JSON file does. Versions are not flushed to the disk. A power cut may damage
the newest versions, but the learner publishes a newer version within seconds.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from actorq.domain.policy import CALIBRATION_PREFIX, Checkpoint, SealedBytes
from actorq.errors import InvalidInputError

Tensors = dict[str, NDArray[Any]]


def sealed_tensors(checkpoint: Checkpoint) -> SealedBytes:
    """The bytes of a version's file: the received bytes, if any."""
    if checkpoint.received is not None:
        return checkpoint.received
    data = encode_tensors(checkpoint)
    return SealedBytes(data, hashlib.sha256(data).digest())


def encode_tensors(checkpoint: Checkpoint) -> bytes:
    """Parameters and calibration batches as safetensors."""
    calibration = {CALIBRATION_PREFIX + name: array for name, array in checkpoint.calibration.items()}
    tensors = {**checkpoint.parameters, **calibration}
    # Does not use ascontiguousarray, which turns a scalar into a vector.
    return bytes(save({name: np.asarray(array, order="C") for name, array in tensors.items()}))


def decode_tensors(data: bytes, what: str) -> tuple[Tensors, Tensors]:
    """Parameters and calibration batches from safetensors. Raises InvalidInputError that names `what`."""
    try:
        tensors = load(data)
    except Exception as error:  # The library raises its own errors, and KeyError for dtypes that numpy lacks.
        raise InvalidInputError(f"{what}: expected safetensors with numpy dtypes, got {error!r}") from None
    return split_tensors(tensors)


def split_tensors(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Parameters, and calibration batches. The names of calibration batches have a prefix."""
    prefix = CALIBRATION_PREFIX
    calibration = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
    return {name: array for name, array in tensors.items() if not name.startswith(prefix)}, calibration
