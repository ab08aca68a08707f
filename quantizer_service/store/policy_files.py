"""Encodes the FP32 tensors of a version as a file. actorq.statefiles.policies has the other files of a version.

Every file contains a digest, or its JSON file does. Versions are not flushed to the disk. A power cut may damage
the newest versions, but the learner publishes a newer version within seconds.
"""

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from actorq.domain.policy import CALIBRATION_PREFIX, SEQUENCES_PREFIX, Checkpoint, SealedBytes
from actorq.errors import InvalidInputError

Tensors = dict[str, NDArray[Any]]


class Content(NamedTuple):
    """The tensors of a checkpoint: see `Checkpoint`."""

    parameters: Tensors
    calibration: Tensors
    sequences: Tensors


def sealed_tensors(checkpoint: Checkpoint) -> SealedBytes:
    """The bytes of a version's file: the received bytes, if any."""
    if checkpoint.received is not None:
        return checkpoint.received
    data = encode_tensors(checkpoint)
    return SealedBytes(data, hashlib.sha256(data).digest())


def encode_tensors(checkpoint: Checkpoint) -> bytes:
    """Parameters, calibration batches and sequences as safetensors."""
    tensors = {
        **checkpoint.parameters,
        **{CALIBRATION_PREFIX + name: array for name, array in checkpoint.calibration.items()},
        **{SEQUENCES_PREFIX + name: array for name, array in checkpoint.sequences.items()},
    }
    # Does not use ascontiguousarray, which turns a scalar into a vector.
    return bytes(save({name: np.asarray(array, order="C") for name, array in tensors.items()}))


def decode_tensors(data: bytes, what: str) -> Content:
    """The tensors of a checkpoint from safetensors. Raises InvalidInputError that names `what`."""
    try:
        tensors = load(data)
    except Exception as error:  # The library raises its own errors, and KeyError for dtypes that numpy lacks.
        raise InvalidInputError(f"{what}: expected safetensors with numpy dtypes, got {error!r}") from None
    return split_tensors(tensors)


def split_tensors(tensors: Tensors) -> Content:
    """The tensors of a checkpoint. The names of calibration batches and of sequences have prefixes."""
    content = Content({}, {}, {})
    for name, array in tensors.items():
        for prefix, found in ((CALIBRATION_PREFIX, content.calibration), (SEQUENCES_PREFIX, content.sequences)):
            if name.startswith(prefix):
                found[name.removeprefix(prefix)] = array
                break
        else:
            content.parameters[name] = array
    return content
