"""Reads a store on disk without changing it, even while another process writes to it."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from actorq.domain.contract import check_written
from actorq.domain.policy import Checkpoint, Policy, PolicyGraph, RetainedPolicy, Variant
from actorq.domain.signature import signature_of
from actorq.errors import InvalidInputError, NotFoundError, UserError
from actorq.quantization.signatures import read_graph
from actorq.statefiles import policies as stored
from actorq.statefiles.documents import read_either
from actorq.statefiles.policies import field_of, version_folder
from quantizer_service.store import policy_files
from quantizer_service.store.owner import Owner

_log = logging.getLogger(__name__)

_REMEDY = "give an empty folder; the learner publishes its policy again"


@dataclass
class Entry:
    """A version's data other than its tensors."""

    learner_step: int
    graph_digest: bytes
    variants: set[Variant] = field(default_factory=set)
    mean_return: float | None = None


class PolicyReader:
    """The versions of one run that existed when the directory was opened. Not thread-safe.

    store.py lists the files. Damaged versions are skipped with a warning. When the store's writer removes a version
    meanwhile, it is skipped or raises NotFoundError. Raises UserError when the folder is unreadable or has another
    format.

    graphs: the graphs by digest.
    damaged: the fault of each unreadable version.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.graphs: dict[bytes, PolicyGraph] = {}
        self._entries: dict[int, Entry] = {}
        self.damaged: dict[int, str] = {}
        try:
            numbers = sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal() and path.is_dir())
        except OSError as error:
            raise UserError(
                f"--store: cannot read {directory} ({error.strerror}); give the policies folder of a run"
            ) from None
        # The order of these reads matters: a writer stores the run before its graphs, and a graph before its versions.
        self.run_id, self.owner = self._load_run()
        self._load_graphs()
        self._load_versions(numbers)
        # Includes unreadable versions, because their numbers are used.
        self.highest_version = max(numbers, default=0)
        self.taken_version = self.highest_version
        """Any version up to this one may have been served. Numbers up to it are never used again."""

    def retains(self, version: int) -> bool:
        """Whether this version is retained and readable."""
        return version in self._entries

    def versions(self) -> list[RetainedPolicy]:
        """The retained versions, newest first."""
        return [
            RetainedPolicy(version, entry.learner_step, tuple(sorted(entry.variants)), entry.mean_return)
            for version, entry in sorted(self._entries.items(), reverse=True)
        ]

    def checkpoint(self, version: int) -> Checkpoint:
        """A version's FP32 tensors. Raises NotFoundError, or InvalidInputError for a damaged file."""
        self._entry(version)
        with self._unless_removed(version):
            return self._read_checkpoint(version)

    def policy(self, version: int, variant: Variant) -> Policy | None:
        """An emitted policy; None when this variant is not emitted yet. Raises like `checkpoint`."""
        if not self.has(version, variant):
            return None
        with self._unless_removed(version):
            return stored.read_policy(self._folder(version), variant)

    def has(self, version: int, variant: Variant) -> bool:
        """Whether this variant is emitted. Raises like `checkpoint`."""
        return variant in self._entry(version).variants

    def _folder(self, version: int) -> Path:
        return version_folder(self._directory, version)

    def _entry(self, version: int) -> Entry:
        if version in self.damaged:
            raise InvalidInputError(self.damaged[version])
        if version not in self._entries:
            count, newest = len(self._entries), max(self._entries, default=0)
            raise NotFoundError(f"version {version} is not retained; retained versions: {count}, newest {newest}")
        return self._entries[version]

    @contextmanager
    def _unless_removed(self, version: int) -> Iterator[None]:
        """Raise NotFoundError for a version that the store's writer has removed. Re-raise other errors."""
        try:
            yield
        except (InvalidInputError, FileNotFoundError):
            if self._folder(version).exists():
                raise
            raise NotFoundError(f"version {version} is no longer retained; newer versions replaced it") from None

    def _load_run(self) -> tuple[str | None, Owner]:
        path = self._directory / "run.json"
        try:
            tree = read_either(path)
        except InvalidInputError as error:
            raise UserError(f"--store: {self._directory}: {error}, and no copy of it is whole; {_REMEDY}") from None
        if tree is None:
            return None, Owner()
        run_id: str = field_of(path, tree, "run_id", str)
        if (written := tree.get("format", 1)) not in stored.STORE_FORMATS:
            raise UserError(
                f"--store: {self._directory} has format {written} of another version of ActorQ; this version needs "
                f"format {stored.STORE_FORMATS[0]}: {_REMEDY}"
            )
        check_written(f"--store: {self._directory}", tree.get("contract", 1))
        # Older stores have no owner.
        epoch, process, refused = tree.get("owner", (0, 0, ()))
        return run_id, Owner(epoch, process, tuple(refused))

    def _load_graphs(self) -> None:
        for path in sorted((self._directory / "graphs").glob("[!.]*.json")):
            try:
                tree = stored.read_json(path)
                model = stored.read_verified(path.with_suffix(".onnx"), bytes.fromhex(path.stem))
                graph = read_graph(model) if "contract" in tree else _graph_of_names(path, tree, model)
            except (InvalidInputError, ValueError) as error:
                # Otherwise the store's writer has removed the graph, because no version needs it.
                if path.exists():
                    _log.warning("graph skipped: %s", error)
                continue
            self.graphs[graph.digest] = graph

    def _load_versions(self, versions: Iterable[int]) -> None:
        for version in versions:
            try:
                with self._unless_removed(version):
                    self._entries[version] = self._load_entry(version)
            except NotFoundError as error:
                _log.info("version skipped: %s", error)
            except InvalidInputError as error:
                _log.warning("version %d skipped: %s", version, error)
                self.damaged[version] = str(error)

    def _load_entry(self, version: int) -> Entry:
        checkpoint = self._read_checkpoint(version)
        if checkpoint.graph_digest not in self.graphs:
            raise InvalidInputError(
                f"{self._folder(version)}: expected its graph {checkpoint.graph_digest.hex()} in the store, got none"
            )
        folder = self._folder(version)
        variants = {stored.read_policy(folder, each).descriptor.variant for each in stored.emitted_variants(folder)}
        stored.require_emitted(folder, stored.read_json(folder / "checkpoint.json"), variants)
        return Entry(checkpoint.learner_step, checkpoint.graph_digest, variants, stored.read_mean_return(folder))

    def _read_checkpoint(self, version: int) -> Checkpoint:
        path = self._folder(version) / "checkpoint.json"
        tree, tensors = stored.read_json(path), path.with_suffix(".safetensors")
        data = stored.read_verified(tensors, _digest(path, tree, "sha256"))
        content = policy_files.decode_tensors(data, str(tensors))
        return Checkpoint(
            version=version,
            learner_step=field_of(path, tree, "learner_step", int),
            graph_digest=_digest(path, tree, "topology" if "topology" in tree else "graph_digest"),
            snapshot_at=field_of(path, tree, "snapshot_at", (int, float)),
            **content._asdict(),
        )


def _digest(path: Path, tree: Mapping[str, Any], name: str) -> bytes:
    text = field_of(path, tree, name, str)
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidInputError(f"{path}: expected {name} in hexadecimal, got {text!r}") from None


def _graph_of_names(path: Path, tree: dict[str, Any], model: bytes) -> PolicyGraph:
    """A graph stored before models had signatures. The names of its outputs give their roles."""
    outputs = [value.name for value in onnx.ModelProto.FromString(model).graph.output]
    inputs, spans = (field_of(path, tree, name, list) for name in ("inputs", "action_spans"))
    discrete = field_of(path, tree, "discrete_actions", bool)
    return PolicyGraph(model, signature_of(inputs, outputs, discrete, spans, tree.get("choices", ())))
