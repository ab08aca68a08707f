"""What a store on disk holds, read without changing anything; another process may write there meanwhile."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from actorq.domain.policy import Checkpoint, Policy, PolicyGraph, RetainedPolicy
from actorq.errors import InvalidInputError, NotFoundError, UserError
from actorq.statefiles import policies as stored
from actorq.statefiles.documents import read_either
from actorq.statefiles.policies import field_of, version_folder
from quantizer_service.store import policy_files

_log = logging.getLogger(__name__)

# Counts the changes of what the files hold; before 2 it was not written. Other formats are refused: what a store holds
# is published again within seconds, so nothing is worth reading it in two ways.
STORE_FORMAT = 3


@dataclass
class Entry:
    """What is known of a version without reading its tensors."""

    learner_step: int
    topology: bytes
    schemes: set[str] = field(default_factory=set)
    mean_return: float | None = None


class PolicyReader:
    """The versions of one run in a directory, as they were when it was opened; not safe for several threads.

    store.py says which files there are. What is damaged is skipped with a warning. What the store's writer removes
    while it is read here is skipped too, or found to be gone. Raises UserError when the folder cannot be
    read, or was written in another format.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._graphs: dict[bytes, PolicyGraph] = {}
        self._entries: dict[int, Entry] = {}
        self._damaged: dict[int, str] = {}
        try:
            folders = sorted(path for path in directory.iterdir() if path.name.isdecimal() and path.is_dir())
        except OSError as error:
            raise UserError(
                f"--store: cannot read {directory} ({error.strerror}); give the folder of a run's policies"
            ) from None
        # In this order, since a writer puts a run before its graphs, and a graph before its versions.
        self.run_id = self._load_run_id()
        self._load_graphs()
        self._load_versions([int(folder.name) for folder in folders])
        # Also of versions that cannot be read: their numbers are taken.
        self.highest_version = max((int(folder.name) for folder in folders), default=0)
        self.taken_version = self.highest_version
        """Every version up to this one may have been served: its number is not given again."""

    @property
    def graphs(self) -> Mapping[bytes, PolicyGraph]:
        """The graphs by digest."""
        return MappingProxyType(self._graphs)

    @property
    def newest_version(self) -> int:
        """The newest version that can be read; 0 when there is none."""
        return max(self._entries, default=0)

    @property
    def damaged(self) -> Mapping[int, str]:
        """What is wrong with each version that cannot be read."""
        return MappingProxyType(self._damaged)

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
        with self._unless_removed(version):
            return self._read_checkpoint(version)

    def policy(self, version: int, scheme: str) -> Policy | None:
        """An emitted policy, None when that scheme was not emitted yet; raises like `checkpoint`."""
        if scheme not in self._entry(version).schemes:
            return None
        with self._unless_removed(version):
            return stored.read_policy(self._folder(version), scheme)

    def _folder(self, version: int) -> Path:
        return version_folder(self._directory, version)

    def _entry(self, version: int) -> Entry:
        if version in self._damaged:
            raise InvalidInputError(self._damaged[version])
        if version not in self._entries:
            raise NotFoundError(
                f"version {version} is not retained; {len(self._entries)} are, the newest is {self.newest_version}"
            )
        return self._entries[version]

    @contextmanager
    def _unless_removed(self, version: int) -> Iterator[None]:
        """Tell a version that its writer has removed, in one step, from one that is damaged."""
        try:
            yield
        except (InvalidInputError, FileNotFoundError):
            if self._folder(version).exists():
                raise
            raise NotFoundError(f"version {version} is not retained any more, newer ones are") from None

    def _load_run_id(self) -> str | None:
        path = self._directory / "run.json"
        try:
            tree = read_either(path)
        except InvalidInputError as error:
            raise UserError(
                f"--store: {self._directory}: {error}, and no copy of it is whole; give an empty folder, the learner "
                "publishes its policy again"
            ) from None
        if tree is None:
            return None
        run_id: str = field_of(path, tree, "run_id", str)
        if (written := tree.get("format", 1)) != STORE_FORMAT:
            raise UserError(
                f"--store: {self._directory} was written by another version of ActorQ, in format {written}; this one "
                f"reads and writes format {STORE_FORMAT}: give an empty folder, the learner publishes its policy again"
            )
        return run_id

    def _load_graphs(self) -> None:
        for path in sorted((self._directory / "graphs").glob("[!.]*.json")):
            try:
                tree = stored.read_json(path)
                model = stored.read_verified(path.with_suffix(".onnx"), bytes.fromhex(path.stem))
                inputs = tuple(field_of(path, tree, "inputs", list))
                spans = tuple(field_of(path, tree, "action_spans", list))
                graph = PolicyGraph(model, inputs, field_of(path, tree, "discrete_actions", bool), spans)
            except (InvalidInputError, ValueError) as error:
                # Else the store's writer has removed it, since no version needs it any more.
                if path.exists():
                    _log.warning("graph skipped: %s", error)
                continue
            self._graphs[graph.topology] = graph

    def _load_versions(self, versions: Iterable[int]) -> None:
        for version in versions:
            try:
                with self._unless_removed(version):
                    self._entries[version] = self._load_entry(version)
            except NotFoundError as error:
                _log.info("version skipped: %s", error)
            except InvalidInputError as error:
                _log.warning("version %d skipped: %s", version, error)
                self._damaged[version] = str(error)

    def _load_entry(self, version: int) -> Entry:
        checkpoint = self._read_checkpoint(version)
        if checkpoint.topology not in self._graphs:
            raise InvalidInputError(
                f"{self._folder(version)}: expected its graph {checkpoint.topology.hex()} in the store, got none"
            )
        entry = Entry(checkpoint.learner_step, checkpoint.topology)
        folder = self._folder(version)
        for path in folder.glob("policy-*.json"):
            entry.schemes.add(stored.read_policy(folder, path.stem.removeprefix("policy-")).descriptor.scheme)
        # After a power cut a file may be missing. Emitted again, the policy might differ from the one that actors have.
        if missing := set(stored.read_json(folder / "checkpoint.json").get("schemes", ())) - entry.schemes:
            raise InvalidInputError(f"{folder}: expected a policy in {sorted(missing)}, got none")
        entry.mean_return = stored.read_mean_return(folder)
        return entry

    def _read_checkpoint(self, version: int) -> Checkpoint:
        path = self._folder(version) / "checkpoint.json"
        tree = stored.read_json(path)
        tensors = path.with_suffix(".safetensors")
        data = stored.read_verified(tensors, _digest(path, tree, "sha256"))
        parameters, calibration = policy_files.decode_tensors(data, str(tensors))
        return Checkpoint(
            version=version,
            learner_step=field_of(path, tree, "learner_step", int),
            topology=_digest(path, tree, "topology"),
            parameters=parameters,
            calibration=calibration,
            snapshot_at=field_of(path, tree, "snapshot_at", (int, float)),
        )


def _digest(path: Path, tree: Mapping[str, Any], name: str) -> bytes:
    text = field_of(path, tree, name, str)
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidInputError(f"{path}: expected {name} in hexadecimal, got {text!r}") from None
