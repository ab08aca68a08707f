"""Writes the versions of a run to disk atomically, and retains the newest, the best and every Nth.

run.json, run.copy.json                   the run, its learner, and the format
graphs/<digest>.onnx, .json               each graph once
00000012/checkpoint.safetensors, .json    the FP32 tensors, from which any scheme can be emitted later
00000012/policy-int8.onnx, .json          an emitted policy and its descriptor
00000012/policy-int8.unsigned.onnx, .json the same one with unsigned weights
00000012/evaluation.json                  its newest evaluation
high_water.json                           the mark: any version up to it may have been served
writer.lock                               locked by the process that writes here
"""

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path

from actorq.domain.contract import CONTRACT
from actorq.domain.lineage import UNCHECKED, Lineage
from actorq.domain.policy import Checkpoint, Policy, PolicyGraph
from actorq.errors import ConflictError, UnavailableError, UserError
from actorq.statefiles import policies as stored
from actorq.statefiles.documents import write_document, write_twice
from actorq.statefiles.files import replace_file, sync_file, sync_folder
from actorq.statefiles.highwater import HighWaterMark
from actorq.statefiles.locks import WriterLock
from quantizer_service.store import policy_files
from quantizer_service.store.owner import Owner
from quantizer_service.store.reader import Entry, PolicyReader

_log = logging.getLogger(__name__)

# The newest unused graphs are kept for later versions. The limit protects memory and disk from a faulty publisher.
_MAX_UNUSED_GRAPHS = 8

# Longer than nearly any evaluation. A client that needs more time renews its hold. The hold of a dead client ends after
# this time.
MAX_HOLD_S = 3600.0
# More than the evaluators of a run. Each hold keeps the files of one version, which must not fill the disk.
MAX_HOLDS = 16


class PolicyStore(PolicyReader):
    """The versions of one run in a directory that only this object writes, until `close`.

    The store retains:
    - the `retain_newest` newest versions
    - the `retain_best` versions with the highest mean return in their newest evaluation
    - the newest version with an evaluation, if `retain_best` is above 0
    - the first version at or above each multiple of `retain_every`, forever; none if 0
    - held versions, while this object lives

    It never removes damaged versions. Raises UserError when the folder is not writable or has another writer.

    clock: monotonic seconds, for holds.
    """

    def __init__(
        self,
        directory: Path,
        retain_newest: int,
        retain_best: int,
        retain_every: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._retain_newest, self._retain_best, self._retain_every = retain_newest, retain_best, retain_every
        self._holds = Holds(clock)
        remedy = "stop it, give this one its own --store, or add --read-only"
        taken = UserError(f"--store: another quantizer writes to {directory}; {remedy}")
        try:
            self._lock = WriterLock(directory, "writer.lock", taken)
            (directory / "graphs").mkdir(exist_ok=True)
            for folder in (directory, directory / "graphs", *directory.glob("[0-9]*")):
                _remove_partial(folder)
        except OSError as error:
            raise UserError(
                f"--store: cannot write to {directory} ({error.strerror}); give a writable folder"
            ) from None
        super().__init__(directory)
        if self.run_id is not None:
            # One of the two files may be damaged.
            self._write_run(self.run_id, self.owner)
        self._mark = HighWaterMark(directory / "high_water.json", self.highest_version)
        self.taken_version = self._mark.floor

    def close(self) -> None:
        """Release the lock for another writer. Nothing may be added afterwards."""
        self._mark.close()
        self._lock.close()

    def reserve(self, version: int) -> None:
        """Record on disk that this version may have been served, so that its number is never used again.

        Returns at once in most calls; see HighWaterMark. Raises UnavailableError when the disk cannot store it.
        """
        with _writing(self._directory / "high_water.json"):
            self._mark.reserve(version)
        self.taken_version = max(self.taken_version, version)

    def check(self, run_id: str, learner: Lineage) -> Owner:
        """The owner once a learner has claimed the store.

        Raises ConflictError for another run, and for a learner with an outdated copy of the run's folder.
        """
        if self.run_id not in (None, run_id):
            found = f"the store {self._directory} has run {self.run_id!r}"
            raise ConflictError(f"run {run_id!r}: {found}; give this quantizer an empty --store")
        return self.owner.followed_by(learner)

    def claim(self, run_id: str, learner: Lineage = UNCHECKED) -> None:
        """Claim this store for a run and its learner. Raises as `check` does."""
        self._own(run_id, self.check(run_id, learner))

    def refuse(self, learner: Lineage) -> None:
        """Refuse a learner that competes with the owner, and all later processes of the learner's folder."""
        if self.run_id is not None:
            self._own(self.run_id, self.owner.refusing(learner))

    def add_graph(self, graph: PolicyGraph) -> None:
        """Store a graph."""
        path = self._directory / "graphs" / graph.digest.hex()
        with _writing(path):
            replace_file(path.with_suffix(".onnx"), graph.model)
            write_document(path.with_suffix(".json"), {"contract": CONTRACT}, sync=False)
        self.graphs[graph.digest] = graph
        self._drop_unused_graphs()

    def add_version(self, checkpoint: Checkpoint, policies: Iterable[Policy]) -> None:
        """Store a version above all others with its emitted policies, and remove versions that need no retention."""
        self.reserve(checkpoint.version)
        folder = self._folder(checkpoint.version)
        partial = folder.with_name(f".{folder.name}.partial")
        tensors, digest = policy_files.sealed_tensors(checkpoint)
        emitted = {policy.descriptor.variant: policy for policy in policies}
        # The error names no version, so that repeated errors are logged once.
        with _writing(self._directory), ExitStack() as undo:
            partial.mkdir()
            # Removes a partial version, so that it does not fill the disk further.
            undo.callback(shutil.rmtree, partial, ignore_errors=True)
            (partial / "checkpoint.safetensors").write_bytes(tensors)
            tree = {
                "version": checkpoint.version,
                "learner_step": checkpoint.learner_step,
                "graph_digest": checkpoint.graph_digest.hex(),
                "snapshot_at": checkpoint.snapshot_at,
                "sha256": digest.hex(),
                "schemes": [str(variant) for variant in emitted],
            }
            write_document(partial / "checkpoint.json", tree, sync=False)
            for policy in emitted.values():
                _write_policy(partial, policy)
            partial.replace(folder)
        self._entries[checkpoint.version] = Entry(checkpoint.learner_step, checkpoint.graph_digest, {*emitted})
        self.highest_version = max(self.highest_version, checkpoint.version)
        self._retain()

    def add_policy(self, policy: Policy) -> None:
        """Store another variant of a retained version.

        Flushed to disk before it is served, because a second emission may differ.
        """
        version, variant = policy.descriptor.version, policy.descriptor.variant
        entry, folder = self._entry(version), self._folder(version)
        with _writing(folder):
            _write_policy(folder, policy)
            for path in folder.glob(f"policy-{variant}.*"):
                sync_file(path)
            sync_folder(folder)
        entry.variants.add(variant)

    def hold(self, version: int, seconds: float) -> float:
        """Retain a version until its next evaluation, for at most `seconds`. Returns the granted seconds.

        The version may be added later. Raises NotFoundError for a removed version, InvalidInputError for a damaged
        version.
        """
        if version <= self.highest_version:
            self._entry(version)
        return self._holds.grant(version, seconds)

    def add_evaluation(self, version: int, mean_return: float) -> None:
        """Store a version's newest evaluation, which replaces the previous one, and end its hold."""
        entry = self._entry(version)
        path = self._folder(version) / "evaluation.json"
        with _writing(path):
            write_document(path, {"mean_return": mean_return}, sync=False)
        entry.mean_return = mean_return
        self._holds.end(version)
        self._retain()

    def _own(self, run_id: str, owner: Owner) -> None:
        if (run_id, owner) != (self.run_id, self.owner):
            self._write_run(run_id, owner)
            self.run_id, self.owner = run_id, owner

    def _write_run(self, run_id: str, owner: Owner) -> None:
        values = {"run_id": run_id, "format": stored.STORE_FORMATS[0], "contract": CONTRACT, "owner": astuple(owner)}
        with _writing(self._directory):
            write_twice(self._directory / "run.json", values)

    def _retain(self) -> None:
        newest = sorted(self._entries, reverse=True)[: self._retain_newest]
        retained = {*newest, *self._evaluated(), *self._regular(), *self._holds.versions()}
        for version in self._entries.keys() - retained:
            folder = self._folder(version)
            removed = folder.with_name(f".{folder.name}.removed")
            # Renamed first, so that a partly removed folder does not look like a damaged version.
            with _writing(folder), suppress(FileNotFoundError):
                folder.replace(removed)
            del self._entries[version]
            # The next start removes the rest.
            shutil.rmtree(removed, ignore_errors=True)
        self._drop_unused_graphs()

    def _evaluated(self) -> Iterable[int]:
        """The best versions, and the newest evaluated version, whose evaluation is the run's final result."""
        returns = {
            version: entry.mean_return for version, entry in self._entries.items() if entry.mean_return is not None
        }
        if not returns or not self._retain_best:
            return ()
        best = sorted(returns, key=lambda version: (returns[version], version), reverse=True)
        return [*best[: self._retain_best], max(returns)]

    def _regular(self) -> Iterable[int]:
        """The first version at or above each multiple of `retain_every`. Numbers may be missing."""
        if not (every := self._retain_every):
            return ()
        return [
            version for before, version in pairwise([0, *sorted(self._entries)]) if version // every > before // every
        ]

    def _drop_unused_graphs(self) -> None:
        used = {entry.graph_digest for entry in self._entries.values()}
        unused = [digest for digest in self.graphs if digest not in used]
        for digest in unused[:-_MAX_UNUSED_GRAPHS]:
            name = self._directory / "graphs" / digest.hex()
            with _writing(name):
                # The description is removed first, because a model without a description is ignored.
                name.with_suffix(".json").unlink(missing_ok=True)
                name.with_suffix(".onnx").unlink(missing_ok=True)
            del self.graphs[digest]


class Holds:
    """Keeps versions in the store until their evaluation. Holds exist in memory only. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # The end of each hold, in the order in which they were granted.
        self._ends: dict[int, float] = {}

    def grant(self, version: int, seconds: float) -> float:
        """Hold a version. Returns the granted seconds, at most `MAX_HOLD_S`.

        If `MAX_HOLDS` others exist, the oldest hold ends.
        """
        granted = min(seconds, MAX_HOLD_S)
        self.end(version)
        while len(self.versions()) >= MAX_HOLDS:
            del self._ends[next(iter(self._ends))]
        self._ends[version] = self._clock() + granted
        return granted

    def end(self, version: int) -> None:
        """End the hold of a version, if there is one."""
        self._ends.pop(version, None)

    def versions(self) -> frozenset[int]:
        """The held versions."""
        now = self._clock()
        self._ends = {version: end for version, end in self._ends.items() if end > now}
        return frozenset(self._ends)


def _write_policy(folder: Path, policy: Policy) -> None:
    path = folder / f"policy-{policy.descriptor.variant}.json"
    # The descriptor is written last, because a model without a descriptor is ignored.
    replace_file(path.with_suffix(".onnx"), policy.model)
    write_document(path, stored.descriptor_to_json(policy.descriptor), sync=False)


def _remove_partial(directory: Path) -> None:
    """Remove the unfinished hidden files and folders of a killed process."""
    for path in (*directory.glob(".*.partial"), *directory.glob(".*.removed")):
        _log.info("removing the unfinished %s", path)
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
            f"store: cannot write {path} ({error.strerror}); free or repair the disk, then publish again"
        ) from error
