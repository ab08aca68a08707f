"""Injects faults into a live run, and counts lost and duplicate transitions and faults without recovery.

The faults are kills, stops, cut links, corrupted bytes and a full disk. An environment writes its identity and a
counter into every observation. Actors keep a ledger of acknowledged segments. At the end the replay is compared with
the ledgers. The seed determines the faults. A fault begins when new transitions arrive and all services are connected
again. The run can also be on-policy, have a relay between quantizer and actors, or copy its folder to object storage.
With object storage the run is restored from there at the end, and its replay is compared, too. With memory the states
at the starts of segments are compared with those of their episodes (benchmarks.faults.chaos.states).
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from actorq.config.memory import MemoryConfig
from actorq.config.sections import CheckpointConfig
from benchmarks.faults.chaos.environment import codes_of
from benchmarks.faults.chaos.faults import KINDS
from benchmarks.faults.chaos.kind import CAPACITY, OF_ALGORITHM, RunKind
from benchmarks.faults.chaos.ledger import Verdict, judge
from benchmarks.faults.chaos.rows import RowVerdict, judge_rows, row_targets
from benchmarks.faults.chaos.run import DisturbedRun
from benchmarks.faults.chaos.states import UNITS, FrozenPolicy, StateVerdict, judge_states, starts_of
from benchmarks.harness import Target, run_benchmark
from learner_service.objectstorage.volume import open_volume
from learner_service.replay.storage.columns import VALID
from learner_service.replay.storage.store import ReplayStore
from learner_service.run.identity import RunIdentity

_DISK_BYTES = 2 * 1024**3
_STANDSTILL_S = 10.0
_MOVE_S = 3.0
# A segment whose episode has lost earlier steps cannot be checked.
_LEAST_CHECKED, _LEAST_APART = 0.9, 0.9


@contextmanager
def _disk(folder: Path) -> Iterator[Path]:
    """A small file system that a fault can fill. A plain folder if mounting is not allowed."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    if not mounted:
        print("no full-disk faults: mounting a file system needs root")
    try:
        yield disk
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], check=False)


def restored_codes(run: DisturbedRun, kind: RunKind, folder: Path) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """As `stored_codes`, of the run that is restored from object storage into an empty folder."""
    copies = CheckpointConfig(object_storage=f"file://{run.storage}", object_storage_replay=True)
    volume = open_volume(copies, folder)
    assert volume is not None
    volume.prepare(resume=True)
    return stored_codes(folder, kind)


def stored_codes(run_directory: Path, kind: RunKind) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Codes uint64[n] of all transitions in the replay of a learner that has ended."""
    with _store(run_directory, kind) as store:
        return codes_of(store.observations[np.flatnonzero(store.flags & VALID)])


def judged_states(run: DisturbedRun, kind: RunKind) -> StateVerdict:
    """The states in the replay of a run with memory, whose services have ended."""
    policy = FrozenPolicy(run.policies)
    with _store(run.run_directory, kind) as store:
        return judge_states(store.observations[np.flatnonzero(store.flags & VALID)], starts_of(store), policy)


def judged_rows(run: DisturbedRun, kind: RunKind) -> RowVerdict:
    """The rows in the replay of a run with several agents, whose services have ended."""
    with _store(run.run_directory, kind) as store:
        return judge_rows(store)


@contextmanager
def _store(run_directory: Path, kind: RunKind) -> Iterator[ReplayStore]:
    spec = RunIdentity(run_directory, "", 0).read_environment()
    assert spec is not None
    store = ReplayStore.open(run_directory / "replay", spec, CAPACITY, kind.columns)
    try:
        yield store
    finally:
        store.close()


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=600.0, help="least duration of the faults (default: 600)")
    parser.add_argument("--faults", type=int, default=100, metavar="N", help="least number of faults (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults (default: 1)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="kinds of faults (default: all)")
    parser.add_argument("--algorithm", choices=OF_ALGORITHM, default="dqn", help="of the run (default: dqn)")
    parser.add_argument(
        "--memory", choices=("none", "gru", "lstm"), default="none", help="of the policy (default: none)"
    )
    parser.add_argument("--agents", action="store_true", help="several agents, which leave and come back")
    parser.add_argument("--groups", action="store_true", help="two groups of agents with own policies (with --agents)")
    parser.add_argument("--relay", action="store_true", help="put a relay between quantizer and actors")
    parser.add_argument("--object-storage", action="store_true", help="copy the run to object storage")
    parser.add_argument("--folder", type=Path, help="empty folder that keeps logs and ledgers")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    kind = RunKind(
        arguments.algorithm,
        MemoryConfig(kind=arguments.memory, units=UNITS),
        relay=arguments.relay,
        storage=arguments.object_storage,
        agents=arguments.agents,
        groups=arguments.groups,
    )
    if kind.agents and kind.memory:
        raise SystemExit("--agents: expected --memory none, because states are checked for a single agent only")
    if kind.groups and not kind.agents:
        raise SystemExit("--groups: expected --agents as well, because only several agents form groups")
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        disk = stack.enter_context(_disk(folder))
        print(f"seed {arguments.seed}")
        run = DisturbedRun(folder, disk, arguments.seed, kind)
        try:
            run.await_start()
            run.inject(arguments.seconds, arguments.faults, arguments.kinds)
            run.stop()
        finally:
            run.fleet.close()
        verdict = judge(run.ledgers, stored_codes(run.run_directory, kind))
        figures, targets = _results(run, verdict, arguments.seed)
        if kind.memory:
            states = judged_states(run, kind)
            figures["states"] = vars(states)
            targets += state_targets(states)
        if kind.agents:
            rows = judged_rows(run, kind)
            figures["rows"] = vars(rows)
            targets += row_targets(rows)
        if kind.storage:
            restored = judge(run.ledgers, restored_codes(run, kind, folder / "restored"))
            figures["restored_transitions"] = vars(restored)
            faults = restored.lost + restored.twice + restored.unknown
            targets.append(Target("transitions lost, twice or unknown in the run restored from storage", faults, 0))
    return figures, targets


def _results(run: DisturbedRun, verdict: Verdict, seed: int) -> tuple[dict[str, Any], list[Target]]:
    table = {
        kind: {
            "faults": len(seconds),
            "median_s": round(statistics.median(seconds), 2),
            "longest_s": round(max(seconds), 2),
        }
        for kind, seconds in sorted(run.recoveries.items())
    }
    print(f"\n{'fault':32} {'times':>5} {'median s':>9} {'longest s':>9}")
    for kind, row in table.items():
        print(f"{kind:32} {row['faults']:5d} {row['median_s']:9.2f} {row['longest_s']:9.2f}")
    unexpected = run.fleet.unexpected()
    two = run.observer.versions_with_two_contents
    for line in run.stuck:
        print(line)
    for end in unexpected:
        print(f"{end.name} ended by itself with {end.code}; the end of its log:", *end.last_words, sep="\n    ")
    figures = {
        "seed": seed,
        "faults": run.faults,
        "seconds": round(time.monotonic() - run.begun, 1),
        "transitions": vars(verdict),
        "versions_seen": run.observer.versions,
        "versions_with_two_contents": two,
        "recovery": table,
        "learner_start_s": round(statistics.median(run.starts), 2) if run.starts else None,
        "learner_moves_beyond_start_s": [round(move, 2) for move in run.moves],
        "ended_by_themselves": [f"{end.name}: {end.code}" for end in unexpected],
        "stuck": run.stuck,
    }
    return figures, [
        Target("acknowledged transitions lost", verdict.lost, 0),
        Target("transitions stored twice", verdict.twice, 0),
        Target("stored transitions that no actor made", verdict.unknown, 0),
        Target("versions with two contents", len(two), 0),
        Target("faults after which the run stayed stuck", len(run.stuck), 0),
        Target("processes that ended by themselves", len(unexpected), 0),
        Target("actors that ended when the learner moved", run.ended_by_moves, 0),
        Target("longest move of the learner beyond its start, s", max(run.moves, default=0.0), _MOVE_S),
        Target("longest time without transitions beside an actor and a learner, s", run.standstill_s(), _STANDSTILL_S),
    ]


def state_targets(states: StateVerdict) -> list[Target]:
    """The targets of a run with memory."""
    checked, apart = states.checked / max(states.starts, 1), states.told_apart
    return [
        Target("segments that begin with the state of another episode", states.foreign, 0),
        Target("episodes that begin with a state that is not zero", states.not_zero, 0),
        Target("share of segments whose states are checked", checked, _LEAST_CHECKED, at_most=False),
        Target("share of states that differ from those of another episode", apart, _LEAST_APART, at_most=False),
    ]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
