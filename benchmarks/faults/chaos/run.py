"""A run of separate processes, and the faults that are injected into it."""

import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

import yaml

from actorq.client import LearnerClient
from actorq.domain.policy import UNSIGNED
from benchmarks.faults.chaos.actor import LEDGERS
from benchmarks.faults.chaos.faults import ACTORS, RELAY, Fault, applied, drawn
from benchmarks.faults.chaos.fleet import Fleet, free_addresses, until
from benchmarks.faults.chaos.kind import RunKind
from benchmarks.faults.chaos.observer import Observer, longest_standstill
from benchmarks.faults.chaos.proxy import Link, Proxy

_RECOVERY_S = 60.0
# The learner sees the end of an old process within this time.
_SEEN_S = 0.5
_EVERYBODY = (*ACTORS, "evaluator")
_SCHEMES = ("int8", "fp32")


class DisturbedRun:
    """A run with its faults."""

    def __init__(self, folder: Path, disk: Path, seed: int, kind: RunKind) -> None:
        """Start the services. folder: for logs, ledgers and copies. disk: for the run and its policies."""
        self._rng = random.Random(seed)
        self._disk = disk if os.path.ismount(disk) else None
        self.run_directory, self.policies = disk / "run", disk / "policies"
        self.ledgers, self.storage = folder / "ledgers", folder / "storage"
        logs = folder / "logs"
        for path in (self.ledgers, logs):
            path.mkdir()
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(kind.settings(self.storage)), encoding="utf-8")
        learner, quantizer, relay_address = free_addresses(3)
        self.learner_address = learner
        proxy = Proxy()
        self._links: dict[str, Link] = {
            "actors-learner": proxy.link(learner),
            "actors-quantizer": proxy.link(relay_address if kind.relay else quantizer),
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
        if kind.relay:
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
        served = [(address, scheme) for address in (quantizer, relay_address)[: 1 + kind.relay] for scheme in _SCHEMES]
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

    def inject(self, seconds: float, least_faults: int, kinds: Collection[str]) -> None:
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


def _group(target: str) -> str:
    return "+".join("actor" if part in ACTORS else part for part in target.split("+"))
