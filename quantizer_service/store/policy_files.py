"""The FP32 tensors of a version as a file; actorq.statefiles.policies has the other files of a version.

Every file carries a digest, or its digest is in the JSON file beside it. Versions are not synchronized to the disk.
After a power failure the newest ones may be torn, and the learner publishes a newer version within seconds.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from actorq.domain.policy import CALIBRATION_PREFIX, Checkpoint
from actorq.errors import InvalidInputError

Tensors = dict[str, NDArray[Any]]


def encode_tensors(checkpoint: Checkpoint) -> bytes:
    """Parameters and calibration batches as safetensors."""
    calibration = {CALIBRATION_PREFIX + name: array for name, array in checkpoint.calibration.items()}
    # Not ascontiguousarray, which makes a vector of a scalar.
    return bytes(
        save({name: np.asarray(array, order="C") for name, array in {**checkpoint.parameters, **calibration}.items()})
    )


def decode_tensors(data: bytes, what: str) -> tuple[Tensors, Tensors]:
    """Parameters and calibration batches from safetensors; raises InvalidInputError that names `what`."""
    try:
        tensors = load(data)
    except Exception as error:  # The library raises errors of its own and KeyError for dtypes that numpy lacks.
        raise InvalidInputError(f"{what}: expected safetensors with numpy dtypes, got {error!r}") from None
    parameters, calibration = {}, {}
    for name, array in tensors.items():
        if name.startswith(CALIBRATION_PREFIX):
            calibration[name.removeprefix(CALIBRATION_PREFIX)] = array
        else:
            parameters[name] = array
    return parameters, calibration
