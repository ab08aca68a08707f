"""The files of a policy version in a quantizer's store: emitted models, their descriptors, the evaluation."""

import hashlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from actorq.domain.policy import (
    FidelityReport,
    GroupError,
    LayerReport,
    OutputError,
    Policy,
    PolicyDescriptor,
    RefusedRung,
    RetainedPolicy,
    SequenceError,
    Variant,
    parse_variant,
)
from actorq.errors import InvalidInputError
from actorq.statefiles.documents import read_document
from actorq.statefiles.files import read_file

# In format 4, a graph's model contains its signature. Stores of format 3 can be read.
STORE_FORMATS = (4, 3)
"""The versions of the file format; files without a version have format 1. Other formats are refused, because the
learner publishes its policy again within seconds."""

_REMEDY = "the file is damaged: remove its folder, or restore it from a copy"

_log = logging.getLogger(__name__)


def version_folder(store: Path, version: int) -> Path:
    """The folder of one version."""
    return store / f"{version:08d}"


def retained_policies(store: Path) -> list[RetainedPolicy]:
    """The versions in a store, newest first, without their tensors; empty when there is no store.

    Another process may write to the store at the same time. A damaged version is skipped with a warning.
    """
    folders = [path for path in store.glob("[0-9]*") if path.name.isdecimal()]
    found = []
    for folder in sorted(folders, key=lambda path: int(path.name), reverse=True):
        try:
            checkpoint = read_json(folder / "checkpoint.json")
            variants = emitted_variants(folder)
            require_emitted(folder, checkpoint, variants)
            step = field_of(folder / "checkpoint.json", checkpoint, "learner_step", int)
            found.append(RetainedPolicy(int(folder.name), step, variants, read_mean_return(folder)))
        except InvalidInputError as error:
            # Another process may have removed the version.
            if folder.exists():
                _log.warning("version %d skipped: %s", int(folder.name), error)
    return found


def emitted_variants(folder: Path) -> tuple[Variant, ...]:
    """The variants of a version's policies, by the names of their files."""
    names = (path.stem.removeprefix("policy-") for path in folder.glob("policy-*.json"))
    return tuple(sorted(map(parse_variant, names)))


def require_emitted(folder: Path, checkpoint: Mapping[str, Any], variants: Collection[Variant]) -> None:
    """Raise InvalidInputError if `variants` lacks a variant that checkpoint.json lists in `schemes`.

    A power failure may lose a file. Emitting it again might give another policy than the one that actors have.
    """
    if missing := set(checkpoint.get("schemes", ())).difference(map(str, variants)):
        raise InvalidInputError(f"{folder}: expected a policy in {sorted(missing)}, got none")


def read_mean_return(folder: Path) -> float | None:
    """The mean return of a version's newest evaluation; None without one. A damaged file is logged."""
    path = folder / "evaluation.json"
    if not path.exists():
        return None
    try:
        return float(field_of(path, read_json(path), "mean_return", (int, float)))
    except InvalidInputError as error:
        _log.warning("evaluation skipped: %s", error)
        return None


def read_descriptor(folder: Path, variant: Variant) -> PolicyDescriptor:
    """The descriptor of an emitted policy. Raises InvalidInputError that names the file."""
    path = folder / f"policy-{variant}.json"
    try:
        return descriptor_from_json(read_json(path))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{path}: expected a policy's descriptor, got {error!r}; remove the file") from None


def read_policy(folder: Path, variant: Variant) -> Policy:
    """An emitted policy with a verified digest. Raises InvalidInputError that names the file."""
    descriptor = read_descriptor(folder, variant)
    return Policy(descriptor, read_verified(folder / f"policy-{variant}.onnx", descriptor.sha256))


def descriptor_to_json(descriptor: PolicyDescriptor) -> dict[str, Any]:
    """A descriptor as a JSON object, with a hexadecimal digest."""
    digests = {"sha256": descriptor.sha256.hex(), "graph_digest": descriptor.graph_digest.hex()}
    return {**asdict(descriptor), **digests, "fidelity": descriptor.fidelity.to_json()}


def descriptor_from_json(tree: Mapping[str, Any]) -> PolicyDescriptor:
    """The descriptor in a JSON object. Raises KeyError, TypeError or ValueError for a malformed object."""
    others = {name: value for name, value in tree.items() if name != "topology"}
    digests = {"sha256": bytes.fromhex(tree["sha256"]), "graph_digest": bytes.fromhex(graph_digest_of(tree))}
    return PolicyDescriptor(**{**others, **digests, "fidelity": _fidelity_from_json(tree["fidelity"])})


def graph_digest_of(tree: Mapping[str, Any]) -> str:
    """The hexadecimal digest of a version's graph in a JSON object; named "topology" before contract 3."""
    digest: str = tree["topology"] if "topology" in tree else tree["graph_digest"]
    return digest


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
            "sequences": tuple(SequenceError(**each) for each in tree.get("sequences", ())),
            "groups": tuple(GroupError(**each) for each in tree.get("groups", ())),
        }
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file and check its digest. Raises InvalidInputError that names the file, or UnreadableError."""
    try:
        return read_document(path)
    except (FileNotFoundError, InvalidInputError) as error:
        raise InvalidInputError(f"{path}: {error}; {_REMEDY}") from None


def read_verified(path: Path, sha256: bytes) -> bytes:
    """Read a file and check its digest. Raises InvalidInputError with file and digests, or UnreadableError."""
    try:
        data = read_file(path)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InvalidInputError(f"{path}: cannot be read ({error.strerror}); {_REMEDY}") from None
    got = hashlib.sha256(data).digest()
    if got != sha256:
        raise InvalidInputError(f"{path}: expected sha256 {sha256.hex()}, got {got.hex()}; {_REMEDY}")
    return data


def field_of(path: Path, tree: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """One value of a document. Raises InvalidInputError if it is missing or has another type."""
    value = tree.get(name)
    if not isinstance(value, kind):
        raise InvalidInputError(f"{path}: expected {name!r} to be of type {kind}, got {value!r}; the file is damaged")
    return value
