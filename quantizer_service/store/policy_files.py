"""What the store's files hold.

Every file carries a digest, or its digest is in the JSON file beside it. Versions are not synchronized to the disk.
After a power failure the newest ones may be torn, and the learner publishes a newer version within seconds.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from actorq.domain.policy import (
    CALIBRATION_PREFIX,
    Checkpoint,
    FidelityReport,
    LayerReport,
    OutputError,
    PolicyDescriptor,
    RefusedRung,
)
from actorq.errors import InvalidInputError
from actorq.statefiles.documents import read_document, write_document

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


def descriptor_to_json(descriptor: PolicyDescriptor) -> dict[str, Any]:
    """A descriptor as a JSON object; its digest is hexadecimal."""
    return {**asdict(descriptor), "sha256": descriptor.sha256.hex(), "topology": descriptor.topology.hex()}


def descriptor_from_json(tree: Mapping[str, Any]) -> PolicyDescriptor:
    """The inverse; raises KeyError, TypeError or ValueError when the object is not one."""
    digests = {name: bytes.fromhex(tree[name]) for name in ("sha256", "topology")}
    return PolicyDescriptor(**{**tree, **digests, "fidelity": _fidelity_from_json(tree["fidelity"])})


def _fidelity_from_json(tree: Mapping[str, Any]) -> FidelityReport:
    return FidelityReport(
        **{
            **tree,
            "layers": tuple(LayerReport(**layer) for layer in tree["layers"]),
            "outputs": tuple(
                OutputError(output["name"], tuple(output["mean_errors"]), tuple(output["max_errors"]))
                for output in tree["outputs"]
            ),
            "refused": tuple(
                RefusedRung(**{**rung, "float_layers": tuple(rung["float_layers"])}) for rung in tree["refused"]
            ),
        }
    )


def write_json(path: Path, tree: Mapping[str, Any]) -> None:
    """Write a JSON file with a digest, whole or not at all."""
    write_document(path, tree, sync=False)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file and check its digest; raises InvalidInputError that names the file."""
    try:
        return read_document(path)
    except (OSError, InvalidInputError) as error:
        raise InvalidInputError(f"{path}: {error}; {_REMEDY}") from None


def read_verified(path: Path, sha256: bytes) -> bytes:
    """Read a file and check its digest; raises InvalidInputError that names file and digests."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be read ({error.strerror}); {_REMEDY}") from None
    got = hashlib.sha256(data).digest()
    if got != sha256:
        raise InvalidInputError(f"{path}: expected sha256 {sha256.hex()}, got {got.hex()}; {_REMEDY}")
    return data


_REMEDY = "the file is damaged: remove its folder, or restore it from a copy"
