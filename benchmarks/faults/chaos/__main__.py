"""Injects faults into a live run, and counts lost and duplicate transitions and faults without recovery.

The faults are kills, stops, cut links, corrupted bytes and a full disk. An environment writes its identity and a
counter into every observation. Actors keep a ledger of acknowledged segments. At the end the replay is compared with
the ledgers. The seed determines the faults. A fault begins when new transitions arrive and all services are connected
again. The run can also be on-policy, have a relay between quantizer and actors, or copy its folder to object storage.
With object storage the run is restored from there at the end, and its replay is compared, too. With memory the states
at the starts of segments are compared with those of their episodes (benchmarks.faults.chaos.states).
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from actorq.client import LearnerClient
from actorq.config.algorithms import ON_POLICY
from actorq.config.memory import NO_MEMORY, MemoryConfig
from actorq.config.sections import CheckpointConfig
from actorq.domain.policy import UNSIGNED
from benchmarks.faults.chaos.actor import LEDGERS
from benchmarks.faults.chaos.environment import codes_of
from benchmarks.faults.chaos.faults import ACTORS, KINDS, RELAY, Fault, applied, drawn
from benchmarks.faults.chaos.fleet import Fleet, free_addresses, until
from benchmarks.faults.chaos.ledger import Verdict, judge
from benchmarks.faults.chaos.observer import Observer, longest_standstill
from benchmarks.faults.chaos.proxy import Link, Proxy
from benchmarks.faults.chaos.rows import RowVerdict, judge_rows, row_targets
from benchmarks.faults.chaos.states import FROZEN, UNITS, FrozenPolicy, StateVerdict, judge_states, starts_of
from benchmarks.harness import Target, run_benchmark
from learner_service.objectstorage.volume import open_volume
from learner_service.replay.storage.columns import VALID
from learner_service.replay.storage.store import ReplayStore
from learner_service.run.identity import RunIdentity

ENVIRONMENT = "benchmarks.faults.chaos.environment:Coded-v0"
TEAM = "benchmarks.faults.chaos.team:CodedTeam"
_CAPACITY = 6_000_000
_DISK_BYTES = 2 * 1024**3
_RECOVERY_S = 60.0
_STANDSTILL_S = 10.0
_MOVE_S = 3.0
# The learner sees the end of an old process within this time.
_SEEN_S = 0.5
_EVERYBODY = (*ACTORS, "evaluator")
_SCHEMES = ("int8", "fp32")
# A segment whose episode has lost earlier steps cannot be checked.
_LEAST_CHECKED, _LEAST_APART = 0.9, 0.9

CONFIGURATION: dict[str, Any] = {
    "environment": ENVIRONMENT,
    "environments_per_actor": 4,
    "max_environment_steps": 10**9,
    "target_return": 1e9,
    "replay": {"capacity": _CAPACITY},
    "checkpoint": {"period_s": 5.0},
    "evaluation": {"episodes": 2, "period_updates": 500},
    "energy": {"enabled": False},
}
OF_ALGORITHM: dict[str, dict[str, Any]] = {
    "dqn": {
        "dqn": {"hidden_sizes": [32, 32], "batch_size": 32},
        "replay": {"capacity": _CAPACITY, "min_size": 1_000},
        "rate_limiter": {"samples_per_insert": 8.0, "error_buffer": 2_000.0},
        "publication": {"period_updates": 50},
    },
    # A rollout has one segment of each of two actors, so that the third may be missing.
    "ppo": {
        "actor": {"segment_length": 32},
        "ppo": {"hidden_sizes": [32, 32], "rollout_size": 256, "batch_size": 64, "epochs": 2},
    },
}


class Chaos:
    """A run with its faults."""

    def __init__(
        self,
        folder: Path,
        disk: Path,
        seed: int,
        algorithm: str = "dqn",
        relay: bool = False,
        storage: bool = False,
        memory: MemoryConfig = NO_MEMORY,
        agents: bool = False,
    ) -> None:
        """Start the services.

        algorithm: a key of `OF_ALGORITHM`. relay: actors get their policies from a relay. storage: the run is copied to
        object storage, including the replay. memory: of the policy; with memory the policy keeps its first weights.
        agents: whether the environment has several agents.
        """
        self._rng = random.Random(seed)
        self._disk = disk if os.path.ismount(disk) else None
        self.run_directory = disk / "run"
        # Columns of its replay that not all replays have.
        self.columns = (*(("log_probabilities",) if algorithm in ON_POLICY else ()), *memory.columns)
        self.policies = disk / "policies"
        self.ledgers = folder / "ledgers"
        logs = folder / "logs"
        for path in (self.ledgers, logs):
            path.mkdir()
        self.storage = folder / "storage" if storage else None
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(_configuration(algorithm, self.storage, memory, agents)), encoding="utf-8")
        learner, quantizer, relay_address = free_addresses(3)
        self.learner_address = learner
        proxy = Proxy()
        self._links: dict[str, Link] = {
            "actors-learner": proxy.link(learner),
            "actors-quantizer": proxy.link(relay_address if relay else quantizer),
            "learner-quantizer": proxy.link(quantizer),
        }
        self.fleet = Fleet(logs, {LEDGERS: str(self.ledgers)})
        given = ("--config", str(config))
        store = ("--store", str(self.policies))
        self.fleet.start("quantizer", "quantizer_service", *given, *store, "--listen", quantizer)
        self.fleet.start(
            *("learner", "learner_service", *given, "--listen", learner, "--run-directory", str(self.run_directory)),
            *("--quantizer", self._links["learner-quantizer"].address, "--resume"),
        )
        if relay:
            self._links["relay-quantizer"] = proxy.link(quantizer)
            upstream = self._links["relay-quantizer"].address
            # Its configuration is its upstream's.
            self.fleet.start(RELAY, "quantizer_service", "--upstream", upstream, "--listen", relay_address)
        peers = [f"--{peer}={self._links[f'actors-{peer}'].address}" for peer in ("learner", "quantizer")]
        for name in ACTORS:
            # A mixed fleet: one actor requests the same policies in the encoding for another kind of processor.
            encoding = ("--weight-encoding", UNSIGNED) if name == ACTORS[-1] else ()
            self.fleet.start(name, "benchmarks.faults.chaos.actor", *given, *peers, "--name", name, *encoding)
        self.fleet.start("evaluator", "actor_service", *given, *peers, "--name", "evaluator", "--role", "evaluator")
        served = [(address, scheme) for address in (quantizer, relay_address)[: 1 + relay] for scheme in _SCHEMES]
        self.observer = Observer(learner, served)
        self.begun = time.monotonic()
        self.faults = 0
        self.recoveries: dict[str, list[float]] = defaultdict(list)
        self.moves: list[float] = []
        self.starts: list[float] = []
        self.ended_by_moves = 0
        self.stuck: list[str] = []
        # Intervals without a learner or without an unhurt actor, in monotonic seconds.
        self._disturbed: list[tuple[float, float]] = []

    def await_start(self) -> None:
        """Wait until all services are connected and an actor acts with a policy."""
        if until(lambda: self._well(0), _RECOVERY_S) is None:
            raise SystemExit("the run did not start: see the logs")
        # Until now there was no learner.
        self._disturbed.append((0.0, time.monotonic()))

    def run(self, seconds: float, least_faults: int, kinds: Collection[str]) -> None:
        """Inject faults of these kinds for at least `seconds` and at least `least_faults` times."""
        relays = (RELAY,) if self.fleet.has(RELAY) else ()
        for fault in drawn(self._rng, tuple(self._links), self._disk is not None, kinds, relays):
            if time.monotonic() - self.begun >= seconds and self.faults >= least_faults:
                return
            self._do(fault)

    def stop(self) -> None:
        """End the run as an operator does. The services save all acknowledged data."""
        # A new process learns about the end of the run only after it has joined.
        until(lambda: self.observer.newest.at > self.fleet.newest_start() + _SEEN_S and self._well(0), _RECOVERY_S)
        self.fleet.finish()
        with LearnerClient(self.learner_address) as client:
            client.stop()
        for name in ("learner", *_EVERYBODY):
            if self.fleet.wait(name, _RECOVERY_S) is None:
                self.stuck.append(f"{name} did not end when the run was stopped")
        self.observer.close()
        self.fleet.close()

    def standstill_s(self) -> float:
        """The longest time without new transitions while a learner and one unhurt actor were running."""
        return longest_standstill(
            self.observer.looks, lambda moment: not any(begin <= moment <= end for begin, end in self._disturbed)
        )

    def _do(self, fault: Fault) -> None:
        self.faults += 1
        begun = time.monotonic()
        before = self.observer.newest.steps or 0
        with applied(fault, self.fleet, self._links, self._disk, self._rng):
            threading.Event().wait(fault.seconds)
        ended = time.monotonic()
        learner_restarts = fault.kind in ("SIGKILL", "SIGTERM") and "learner" in fault.target
        if learner_restarts:
            self._measure_start(begun)
        came = until(lambda: self._steps_since(begun) > before and (self.observer.newest.at > ended), _RECOVERY_S)
        steps_again = time.monotonic() - (begun if learner_restarts else ended)
        well = until(lambda: self._well(before), _RECOVERY_S)
        if came is None or well is None:
            what = "no new transitions" if came is None else "not all services connected"
            self.stuck.append(f"fault {self.faults} ({fault}): {what}")
        self.recoveries[f"{fault.kind} {_group(fault.target)}"].append(steps_again)
        if fault.kind == "SIGTERM" and fault.target == "learner":
            self.moves.append(steps_again - self.starts[-1])
            self.ended_by_moves += len([end for end in self.fleet.unexpected(begun) if end.name in _EVERYBODY])
        if self._breaks_service(fault):
            self._disturbed.append((begun, ended + (self.starts[-1] if learner_restarts else 0.0)))
        print(f"{time.monotonic() - self.begun:6.1f} s  {self.faults:3d}  {fault}: {steps_again:.1f} s", flush=True)
        threading.Event().wait(self._rng.uniform(0.2, 1.0))

    def _measure_start(self, begun: float) -> None:
        """Measure the seconds from the start of the learner's new process until it answers with a restored run."""
        until(lambda: self.fleet.started_at("learner") > begun, _RECOVERY_S)
        started = self.fleet.started_at("learner")

        def answers() -> bool:
            newest = self.observer.newest
            return newest.at > started and newest.steps is not None

        until(answers, _RECOVERY_S, 0.02)
        self.starts.append(time.monotonic() - started)

    def _steps_since(self, moment: float) -> int:
        look = self.observer.newest
        return look.steps if look.at > moment and look.steps is not None else 0

    def _well(self, before: int) -> bool:
        look = self.observer.newest
        return (look.steps or 0) > before and look.connected >= set(_EVERYBODY) and look.quantizer_connected

    def _breaks_service(self, fault: Fault) -> bool:
        """Whether the fault disables the learner, the link to it, or the disk."""
        return "learner" in fault.target.split("+") or fault.target in ("actors-learner", "disk")


def _configuration(algorithm: str, storage: Path | None, memory: MemoryConfig, agents: bool) -> dict[str, Any]:
    """The settings of the run. storage: folder for its copies; None without object storage."""
    values = CONFIGURATION | OF_ALGORITHM[algorithm] | {"algorithm": algorithm}
    if agents:
        values["environment"] = TEAM
    if memory:
        values["memory"] = {"kind": memory.kind, "units": memory.units}
        values[algorithm] = values[algorithm] | {"learning_rate": FROZEN}
    if storage is not None:
        copied = {"object_storage": f"file://{storage}", "object_storage_replay": True}
        values["checkpoint"] = CONFIGURATION["checkpoint"] | copied
    return values


def _group(target: str) -> str:
    return "+".join("actor" if part in ACTORS else part for part in target.split("+"))


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


def restored_codes(storage: Path, folder: Path, columns: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """As `stored_codes`, of the run that is restored from object storage into an empty folder."""
    volume = open_volume(CheckpointConfig(object_storage=f"file://{storage}", object_storage_replay=True), folder)
    assert volume is not None
    volume.prepare(resume=True)
    return stored_codes(folder, columns)


def stored_codes(run_directory: Path, columns: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Codes uint64[n] of all transitions in the replay of a learner that has ended. columns: the optional ones."""
    with _store(run_directory, columns) as store:
        return codes_of(store.observations[np.flatnonzero(store.flags & VALID)])


def judged_states(chaos: Chaos) -> StateVerdict:
    """The states in the replay of a run with memory, whose services have ended."""
    policy = FrozenPolicy(chaos.policies)
    with _store(chaos.run_directory, chaos.columns) as store:
        return judge_states(store.observations[np.flatnonzero(store.flags & VALID)], starts_of(store), policy)


def judged_rows(chaos: Chaos) -> RowVerdict:
    """The rows in the replay of a run with several agents, whose services have ended."""
    with _store(chaos.run_directory, chaos.columns) as store:
        return judge_rows(store)


@contextmanager
def _store(run_directory: Path, columns: Sequence[str]) -> Iterator[ReplayStore]:
    spec = RunIdentity(run_directory, "", 0).read_environment()
    assert spec is not None
    store = ReplayStore.open(run_directory / "replay", spec, _CAPACITY, columns)
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
    parser.add_argument("--relay", action="store_true", help="put a relay between quantizer and actors")
    parser.add_argument("--object-storage", action="store_true", help="copy the run to object storage")
    parser.add_argument("--folder", type=Path, help="empty folder that keeps logs and ledgers")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    memory = MemoryConfig(kind=arguments.memory, units=UNITS)
    if arguments.agents and memory:
        raise SystemExit("--agents: expected --memory none, because states are checked for a single agent only")
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        disk = stack.enter_context(_disk(folder))
        print(f"seed {arguments.seed}")
        chaos = Chaos(
            *(folder, disk, arguments.seed, arguments.algorithm, arguments.relay),
            storage=arguments.object_storage,
            memory=memory,
            agents=arguments.agents,
        )
        try:
            chaos.await_start()
            chaos.run(arguments.seconds, arguments.faults, arguments.kinds)
            chaos.stop()
        finally:
            chaos.fleet.close()
        verdict = judge(chaos.ledgers, stored_codes(chaos.run_directory, chaos.columns))
        figures, targets = _results(chaos, verdict, arguments.seed)
        if memory:
            states = judged_states(chaos)
            figures["states"] = vars(states)
            targets += state_targets(states)
        if arguments.agents:
            rows = judged_rows(chaos)
            figures["rows"] = vars(rows)
            targets += row_targets(rows)
        if chaos.storage is not None:
            restored = judge(chaos.ledgers, restored_codes(chaos.storage, folder / "restored", chaos.columns))
            figures["restored_transitions"] = vars(restored)
            faults = restored.lost + restored.twice + restored.unknown
            targets.append(Target("transitions lost, twice or unknown in the run restored from storage", faults, 0))
    return figures, targets


def _results(chaos: Chaos, verdict: Verdict, seed: int) -> tuple[dict[str, Any], list[Target]]:
    table = {
        kind: {
            "faults": len(seconds),
            "median_s": round(statistics.median(seconds), 2),
            "longest_s": round(max(seconds), 2),
        }
        for kind, seconds in sorted(chaos.recoveries.items())
    }
    print(f"\n{'fault':32} {'times':>5} {'median s':>9} {'longest s':>9}")
    for kind, row in table.items():
        print(f"{kind:32} {row['faults']:5d} {row['median_s']:9.2f} {row['longest_s']:9.2f}")
    unexpected = chaos.fleet.unexpected()
    two = chaos.observer.versions_with_two_contents
    for line in chaos.stuck:
        print(line)
    for end in unexpected:
        print(f"{end.name} ended by itself with {end.code}; the end of its log:", *end.last_words, sep="\n    ")
    figures = {
        "seed": seed,
        "faults": chaos.faults,
        "seconds": round(time.monotonic() - chaos.begun, 1),
        "transitions": vars(verdict),
        "versions_seen": chaos.observer.versions,
        "versions_with_two_contents": two,
        "recovery": table,
        "learner_start_s": round(statistics.median(chaos.starts), 2) if chaos.starts else None,
        "learner_moves_beyond_start_s": [round(move, 2) for move in chaos.moves],
        "ended_by_themselves": [f"{end.name}: {end.code}" for end in unexpected],
        "stuck": chaos.stuck,
    }
    return figures, [
        Target("acknowledged transitions lost", verdict.lost, 0),
        Target("transitions stored twice", verdict.twice, 0),
        Target("stored transitions that no actor made", verdict.unknown, 0),
        Target("versions with two contents", len(two), 0),
        Target("faults after which the run stayed stuck", len(chaos.stuck), 0),
        Target("processes that ended by themselves", len(unexpected), 0),
        Target("actors that ended when the learner moved", chaos.ended_by_moves, 0),
        Target("longest move of the learner beyond its start, s", max(chaos.moves, default=0.0), _MOVE_S),
        Target(
            "longest time without transitions beside an actor and a learner, s", chaos.standstill_s(), _STANDSTILL_S
        ),
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
