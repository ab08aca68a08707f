"""The versions on disk: written atomically, checked when read, the newest and the best kept.

run.json                                  which run it holds
graphs/<topology>.onnx, .json             each graph once
00000012/checkpoint.safetensors, .json    the FP32 tensors, from which any scheme can be emitted later
00000012/policy-int8.onnx, .json          an emitted policy and its descriptor
00000012/evaluation.json                  its newest evaluation
"""

import hashlib
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from actorq.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError, UserError
from actorq.policy import Checkpoint, Policy, PolicyDescriptor, PolicyGraph, RetainedPolicy
from quantizer_service import files

_log = logging.getLogger(__name__)


@dataclass
class _Entry:
    """What is known of a version without reading its tensors."""

    learner_step: int
    schemes: set[str] = field(default_factory=set)
    mean_return: float | None = None


class PolicyStore:
    """The versions of one run in a directory that this process alone writes; not safe for several threads.

    The `retain_newest` newest versions and the `retain_best` with the highest mean return in their newest evaluation
    are kept. What is damaged is skipped with a warning and never removed.
    """

    def __init__(self, directory: Path, retain_newest: int, retain_best: int) -> None:
        self._directory = directory
        self._retain_newest, self._retain_best = retain_newest, retain_best
        self._graphs: dict[bytes, PolicyGraph] = {}
        self._entries: dict[int, _Entry] = {}
        self._damaged: dict[int, str] = {}
        try:
            (directory / "graphs").mkdir(parents=True, exist_ok=True)
            _remove_partial(directory)
            _remove_partial(directory / "graphs")
        except OSError as error:
            raise UserError(
                f"--store: cannot write to {directory} ({error.strerror}); give a writable folder"
            ) from None
        self.run_id = self._load_run_id()
        self._load_graphs()
        self.highest_version = self._load_versions()

    @property
    def graphs(self) -> Mapping[bytes, PolicyGraph]:
        """The graphs by topology."""
        return MappingProxyType(self._graphs)

    @property
    def newest_version(self) -> int:
        """The newest version that can be read; 0 when there is none."""
        return max(self._entries, default=0)

    def claim(self, run_id: str) -> None:
        """Make it the store of that run; raises ConflictError when it holds another one."""
        if self.run_id is None:
            with _writing(self._directory):
                files.write_json(self._directory / "run.json", {"run_id": run_id})
            self.run_id = run_id
        elif self.run_id != run_id:
            raise ConflictError(
                f"run {run_id!r}: the store {self._directory} holds run {self.run_id!r}; give this quantizer an empty "
                "--store"
            )

    def add_graph(self, graph: PolicyGraph) -> None:
        """Keep a graph."""
        name = self._directory / "graphs" / graph.topology.hex()
        with _writing(name):
            files.write_bytes(name.with_suffix(".onnx"), graph.model)
            files.write_json(
                name.with_suffix(".json"), {"inputs": graph.inputs, "discrete_actions": graph.discrete_actions}
            )
        self._graphs[graph.topology] = graph

    def add_version(self, checkpoint: Checkpoint, policies: Iterable[Policy]) -> None:
        """Keep a version, higher than all before, with what was emitted for it; drop what need not be kept longer."""
        folder = self._folder(checkpoint.version)
        partial = folder.with_name(f".{folder.name}.partial")
        tensors = files.encode_tensors(checkpoint)
        entry = _Entry(checkpoint.learner_step)
        with _writing(folder):
            partial.mkdir()
            (partial / "checkpoint.safetensors").write_bytes(tensors)
            tree = {
                "version": checkpoint.version,
                "learner_step": checkpoint.learner_step,
                "topology": checkpoint.topology.hex(),
                "snapshot_at": checkpoint.snapshot_at,
                "sha256": hashlib.sha256(tensors).hexdigest(),
            }
            files.write_json(partial / "checkpoint.json", tree)
            for policy in policies:
                _write_policy(partial, policy)
                entry.schemes.add(policy.descriptor.scheme)
            partial.replace(folder)
        self._entries[checkpoint.version] = entry
        self.highest_version = max(self.highest_version, checkpoint.version)
        self._retain()

    def add_policy(self, policy: Policy) -> None:
        """Keep another scheme of a retained version."""
        version = policy.descriptor.version
        entry = self._entry(version)
        with _writing(self._folder(version)):
            _write_policy(self._folder(version), policy)
        entry.schemes.add(policy.descriptor.scheme)

    def add_evaluation(self, version: int, mean_return: float) -> None:
        """Keep a version's newest evaluation, which replaces the one before."""
        entry = self._entry(version)
        path = self._folder(version) / "evaluation.json"
        with _writing(path):
            files.write_json(path, {"mean_return": mean_return})
        entry.mean_return = mean_return
        self._retain()

    def retains(self, version: int) -> bool:
        """Whether that version can be read."""
        return version in self._entries

    def versions(self) -> list[RetainedPolicy]:
        """The retained versions, newest first."""
        return [
            RetainedPolicy(version, entry.learner_step, tuple(sorted(entry.schemes)), entry.mean_return)
            for version, entry in sorted(self._entries.items(), reverse=True)
        ]

    def checkpoint(self, version: int) -> Checkpoint:
        """A version's FP32 tensors; raises NotFoundError, or InvalidInputError when the file is damaged."""
        self._entry(version)
        return self._read_checkpoint(version)

    def policy(self, version: int, scheme: str) -> Policy | None:
        """An emitted policy, None when that scheme was not emitted yet; raises like `checkpoint`."""
        if scheme not in self._entry(version).schemes:
            return None
        return _read_policy(self._folder(version) / f"policy-{scheme}.json")

    def _folder(self, version: int) -> Path:
        return self._directory / f"{version:08d}"

    def _entry(self, version: int) -> _Entry:
        if version in self._damaged:
            raise InvalidInputError(self._damaged[version])
        if version not in self._entries:
            raise NotFoundError(
                f"version {version} is not retained; {len(self._entries)} are, the newest is {self.newest_version}"
            )
        return self._entries[version]

    def _retain(self) -> None:
        newest = sorted(self._entries, reverse=True)[: self._retain_newest]
        returns = [
            (entry.mean_return, version) for version, entry in self._entries.items() if entry.mean_return is not None
        ]
        best = [version for _, version in sorted(returns, reverse=True)[: self._retain_best]]
        for version in self._entries.keys() - {*newest, *best}:
            folder = self._folder(version)
            removed = folder.with_name(f".{folder.name}.removed")
            with _writing(folder):
                # Renamed first: a folder that is half removed must not be taken for a damaged version.
                folder.replace(removed)
                shutil.rmtree(removed)
            del self._entries[version]

    def _load_run_id(self) -> str | None:
        path = self._directory / "run.json"
        return _field(path, files.read_json(path), "run_id", str) if path.exists() else None

    def _load_graphs(self) -> None:
        for path in sorted((self._directory / "graphs").glob("[!.]*.json")):
            try:
                tree = files.read_json(path)
                model = files.read_verified(path.with_suffix(".onnx"), bytes.fromhex(path.stem))
                inputs = tuple(_field(path, tree, "inputs", list))
                graph = PolicyGraph(model, inputs, _field(path, tree, "discrete_actions", bool))
            except (InvalidInputError, ValueError) as error:
                _log.warning("graph skipped: %s", error)
                continue
            self._graphs[graph.topology] = graph

    def _load_versions(self) -> int:
        """Index all versions; return the highest number, also of versions that cannot be read."""
        folders = [path for path in self._directory.iterdir() if path.name.isdecimal() and path.is_dir()]
        for folder in sorted(folders):
            _remove_partial(folder)
            version = int(folder.name)
            try:
                self._entries[version] = self._load_entry(version)
            except InvalidInputError as error:
                _log.warning("version %d skipped: %s", version, error)
                self._damaged[version] = str(error)
        return max((int(folder.name) for folder in folders), default=0)

    def _load_entry(self, version: int) -> _Entry:
        checkpoint = self._read_checkpoint(version)
        if checkpoint.topology not in self._graphs:
            raise InvalidInputError(
                f"{self._folder(version)}: expected its graph {checkpoint.topology.hex()} in the store, got none"
            )
        entry = _Entry(checkpoint.learner_step)
        for path in self._folder(version).glob("policy-*.json"):
            entry.schemes.add(_read_policy(path).descriptor.scheme)
        path = self._folder(version) / "evaluation.json"
        if path.exists():
            try:
                entry.mean_return = float(_field(path, files.read_json(path), "mean_return", (int, float)))
            except InvalidInputError as error:
                _log.warning("evaluation skipped: %s", error)
        return entry

    def _read_checkpoint(self, version: int) -> Checkpoint:
        path = self._folder(version) / "checkpoint.json"
        tree = files.read_json(path)
        tensors = path.with_suffix(".safetensors")
        data = files.read_verified(tensors, _digest(path, tree, "sha256"))
        parameters, calibration = files.decode_tensors(data, str(tensors))
        return Checkpoint(
            version=version,
            learner_step=_field(path, tree, "learner_step", int),
            topology=_digest(path, tree, "topology"),
            parameters=parameters,
            calibration=calibration,
            snapshot_at=_field(path, tree, "snapshot_at", (int, float)),
        )


def _write_policy(folder: Path, policy: Policy) -> None:
    path = folder / f"policy-{policy.descriptor.scheme}.json"
    # The descriptor last: without it the model is not looked at.
    files.write_bytes(path.with_suffix(".onnx"), policy.model)
    files.write_json(path, files.descriptor_to_json(policy.descriptor))


def _read_policy(path: Path) -> Policy:
    descriptor = _descriptor(path)
    return Policy(descriptor, files.read_verified(path.with_suffix(".onnx"), descriptor.sha256))


def _descriptor(path: Path) -> PolicyDescriptor:
    tree = files.read_json(path)
    try:
        return files.descriptor_from_json(tree)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{path}: expected a policy's descriptor, got {error!r}; remove the file") from None


def _digest(path: Path, tree: Mapping[str, Any], name: str) -> bytes:
    text = _field(path, tree, name, str)
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidInputError(f"{path}: expected {name} in hexadecimal, got {text!r}") from None


def _field(path: Path, tree: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    value = tree.get(name)
    if not isinstance(value, kind):
        raise InvalidInputError(f"{path}: expected {name!r} to be of type {kind}, got {value!r}; the file is damaged")
    return value


def _remove_partial(directory: Path) -> None:
    """Remove what a process that was killed left behind: hidden files and folders of this store's making."""
    for path in (*directory.glob(".*.partial"), *directory.glob(".*.removed")):
        _log.info("removing %s, which was left unfinished", path)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"store: cannot write {path} ({error.strerror}); free or mend the disk, then publish again"
        ) from error
