"""The versions on disk: written atomically, checked when read, the newest, the best and every Nth kept.

run.json, run.copy.json                   which run it holds, in which format
graphs/<digest>.onnx, .json               each graph once
00000012/checkpoint.safetensors, .json    the FP32 tensors, from which any scheme can be emitted later
00000012/policy-int8.onnx, .json          an emitted policy and its descriptor
00000012/evaluation.json                  its newest evaluation
high_water.json                           versions up to its mark may have been served, also those that are not here
writer.lock                               locked by the process that writes here
"""

import fcntl
import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from actorq.domain.policy import Checkpoint, Policy, PolicyGraph
from actorq.errors import ConflictError, UnavailableError, UserError
from actorq.statefiles import policies as stored
from actorq.statefiles.documents import write_twice
from actorq.statefiles.files import replace_file, sync_file, sync_folder
from actorq.statefiles.highwater import HighWaterMark
from quantizer_service.store import policy_files
from quantizer_service.store.leases import Leases
from quantizer_service.store.reader import STORE_FORMAT, Entry, PolicyReader

_log = logging.getLogger(__name__)

# Graphs that no retained version has, kept for versions to come: the newest ones. A publisher that makes up ever new
# ones cannot fill memory and disk.
_MAX_UNUSED_GRAPHS = 8


class PolicyStore(PolicyReader):
    """The versions of one run in a directory that this object alone writes, until `close`.

    The `retain_newest` newest versions are kept, the `retain_best` with the highest mean return in their newest
    evaluation and with them the newest one that has an evaluation, and for good the first at or above each multiple of
    `retain_every`, none when that is 0. Only the last kind grows with the run: by one version, its FP32 tensors and
    what was emitted of them, in every so many. Besides, leased versions are kept, by this object and no longer
    than it. What is damaged is never removed. Raises UserError when the folder cannot be written or has a writer.

    clock: seconds; times leases.
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
        self._leases = Leases(clock)
        try:
            (directory / "graphs").mkdir(parents=True, exist_ok=True)
            self._lock = _locked(directory)
            for folder in (directory, directory / "graphs", *directory.glob("[0-9]*")):
                _remove_partial(folder)
        except OSError as error:
            raise UserError(
                f"--store: cannot write to {directory} ({error.strerror}); give a writable folder"
            ) from None
        super().__init__(directory)
        if self.run_id is not None:
            # One of the two files may be damaged.
            self._write_run(self.run_id)
        self._mark = HighWaterMark(directory / "high_water.json", self.highest_version)
        self.taken_version = self._mark.floor

    def close(self) -> None:
        """Let another one write; nothing may be added after that."""
        self._mark.close()
        self._lock.close()

    def reserve(self, version: int) -> None:
        """Return when the disk says that this version may have been served, so that no other gets its number.

        Nearly always at once: see HighWaterMark. Raises UnavailableError when the disk does not take it.
        """
        with _writing(self._directory / "high_water.json"):
            self._mark.reserve(version)
        self.taken_version = max(self.taken_version, version)

    def claim(self, run_id: str) -> None:
        """Make it the store of that run; raises ConflictError when it holds another one."""
        if self.run_id is None:
            self._write_run(run_id)
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
            replace_file(name.with_suffix(".onnx"), graph.model)
            stored.write_json(
                name.with_suffix(".json"),
                {
                    "inputs": graph.inputs,
                    "discrete_actions": graph.discrete_actions,
                    "action_spans": graph.action_spans,
                },
            )
        self._graphs[graph.topology] = graph
        self._drop_unused_graphs()

    def add_version(self, checkpoint: Checkpoint, policies: Iterable[Policy]) -> None:
        """Keep a version, higher than all before, with what was emitted for it; drop what need not be kept longer."""
        self.reserve(checkpoint.version)
        folder = self._folder(checkpoint.version)
        partial = folder.with_name(f".{folder.name}.partial")
        tensors = policy_files.encode_tensors(checkpoint)
        entry = Entry(checkpoint.learner_step, checkpoint.topology)
        policies = tuple(policies)
        with _writing(folder):
            partial.mkdir()
            (partial / "checkpoint.safetensors").write_bytes(tensors)
            tree = {
                "version": checkpoint.version,
                "learner_step": checkpoint.learner_step,
                "topology": checkpoint.topology.hex(),
                "snapshot_at": checkpoint.snapshot_at,
                "sha256": hashlib.sha256(tensors).hexdigest(),
                "schemes": [policy.descriptor.scheme for policy in policies],
            }
            stored.write_json(partial / "checkpoint.json", tree)
            for policy in policies:
                _write_policy(partial, policy)
                entry.schemes.add(policy.descriptor.scheme)
            partial.replace(folder)
        self._entries[checkpoint.version] = entry
        self.highest_version = max(self.highest_version, checkpoint.version)
        self._retain()

    def add_policy(self, policy: Policy) -> None:
        """Keep another scheme of a retained version, on the disk before it is served: emitted again it might differ."""
        version = policy.descriptor.version
        entry = self._entry(version)
        folder = self._folder(version)
        with _writing(folder):
            _write_policy(folder, policy)
            for path in folder.glob(f"policy-{policy.descriptor.scheme}.*"):
                sync_file(path)
            sync_folder(folder)
        entry.schemes.add(policy.descriptor.scheme)

    def lease(self, version: int, seconds: float) -> float:
        """Retain a version until its next evaluation, for so many seconds at most; returns the seconds granted.

        It may be one that has yet to be added. Raises NotFoundError when it was and is not retained, InvalidInputError
        when it is damaged or the seconds are not above 0.
        """
        if version <= self.highest_version:
            self._entry(version)
        return self._leases.grant(version, seconds)

    def add_evaluation(self, version: int, mean_return: float) -> None:
        """Keep a version's newest evaluation, which replaces the one before; and ends its lease."""
        entry = self._entry(version)
        path = self._folder(version) / "evaluation.json"
        with _writing(path):
            stored.write_json(path, {"mean_return": mean_return})
        entry.mean_return = mean_return
        self._leases.end(version)
        self._retain()

    def _write_run(self, run_id: str) -> None:
        with _writing(self._directory):
            write_twice(self._directory / "run.json", {"run_id": run_id, "format": STORE_FORMAT})

    def _retain(self) -> None:
        newest = sorted(self._entries, reverse=True)[: self._retain_newest]
        kept = {*newest, *self._evaluated(), *self._regular(), *self._leases.versions()}
        for version in self._entries.keys() - kept:
            folder = self._folder(version)
            removed = folder.with_name(f".{folder.name}.removed")
            with _writing(folder):
                # Renamed first: a folder that is half removed must not be taken for a damaged version.
                folder.replace(removed)
                shutil.rmtree(removed)
            del self._entries[version]
        self._drop_unused_graphs()

    def _evaluated(self) -> Iterable[int]:
        """The best ones, and the one that was evaluated last: a run that is over is judged by that."""
        returns = [
            (entry.mean_return, version) for version, entry in self._entries.items() if entry.mean_return is not None
        ]
        if not returns or not self._retain_best:
            return ()
        best = [version for _, version in sorted(returns, reverse=True)[: self._retain_best]]
        return [*best, max(version for _, version in returns)]

    def _regular(self) -> Iterable[int]:
        """The first version at or above each multiple of `retain_every`: numbers may be left out, as when the quantizer
        was away."""
        if not self._retain_every:
            return ()
        first: dict[int, int] = {}
        for version in sorted(self._entries):
            first.setdefault(version // self._retain_every, version)
        return [version for multiple, version in first.items() if multiple]

    def _drop_unused_graphs(self) -> None:
        used = {entry.topology for entry in self._entries.values()}
        unused = [digest for digest in self._graphs if digest not in used]
        for digest in unused[:-_MAX_UNUSED_GRAPHS]:
            name = self._directory / "graphs" / digest.hex()
            with _writing(name):
                # In this order: a model without its description is not looked at.
                name.with_suffix(".json").unlink(missing_ok=True)
                name.with_suffix(".onnx").unlink(missing_ok=True)
            del self._graphs[digest]


def _locked(directory: Path) -> IO[bytes]:
    """Hold the writer's lock of a store, which the kernel lets go when the file is closed or its process is gone."""
    lock = (directory / "writer.lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        if not isinstance(error, BlockingIOError):
            raise
        raise UserError(
            f"--store: another quantizer writes to {directory}; stop it, give this one a --store of its own, or read "
            "with --read-only"
        ) from None
    return lock


def _write_policy(folder: Path, policy: Policy) -> None:
    path = folder / f"policy-{policy.descriptor.scheme}.json"
    # The descriptor last: without it the model is not looked at.
    replace_file(path.with_suffix(".onnx"), policy.model)
    stored.write_json(path, stored.descriptor_to_json(policy.descriptor))


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
