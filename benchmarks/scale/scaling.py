"""Simulates scaling by KEDA on the learner's signal, with 1 to 10,000 actors: convergence, oscillation, starvation.

The rate limiter, the credits and the signal are the learner's own code. Learner, actors, pods and autoscaler are
simulated in steps of half a second. In the first half the learner needs N actors. In the second half its updates cost
twice as much, so it needs half as many.
"""

import argparse
import asyncio
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Target, run_benchmark
from benchmarks.scale.autoscaler import Autoscaler, Pods
from benchmarks.scale.scaling_plot import plot
from learner_service.actors.credits import ActorStream, Credits
from learner_service.actors.members import Member
from learner_service.replay import RateLimiter
from learner_service.run.scaling import ScalingSignal

_STEP_S = 0.5
_QUEUE = 2
_SAMPLES_PER_INSERT = 16.0
# Speed of an actor with a costly environment or policy. Each actor differs from it by about a fifth.
_STEPS_PER_S, _SPREAD = 200.0, 0.2
_REPORT_S = 1.0
# Simulated seconds of each half.
HALF_S = 900.0
_SETTLED = 0.1


@dataclass
class Trace:
    """The state every half second. needed: number of full-speed actors that would just feed the learner."""

    seconds: list[float] = field(default_factory=list)
    replicas: list[int] = field(default_factory=list)
    desired: list[int] = field(default_factory=list)
    needed: list[float] = field(default_factory=list)
    starved: list[float] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Phase:
    """The results of one half.

    settled_polls: polls of the autoscaler until the replicas were within a tenth, or one, of their final number.
    overshoot: largest distance beyond the final number, as a fraction; 0 for one replica.
    excess: final replicas above the needed number, as a fraction; the last replica does not count.
    changes: changes of the number of replicas after settling.
    starved: share of the learner's time after settling.
    blocked: share of the actors' time after settling.
    """

    needed: float
    settled_at: int
    settled_polls: int
    overshoot: float
    excess: float
    changes: int
    starved: float
    blocked: float


class _SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers use simulated seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._simulated = clock

    def time(self) -> float:
        return self._simulated()


class Simulation:
    """A run whose learner can absorb the output of `needed` actors. It begins with one actor."""

    def __init__(self, needed: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        maximum = 2 * needed + 8
        # As short as real segments, except where the simulation would take hours.
        self._segment = 128 if needed <= 100 else 256 if needed <= 1_000 else 1_024
        self.now = 0.0
        self._needed = float(needed)
        self._loop = _SimulatedLoop(lambda: self.now)
        minimum = self._segment * max(4, needed // 4)
        # Every actor may have its window of segments in flight. The buffer must be larger than that.
        buffer = _SAMPLES_PER_INSERT * self._segment * 4.0 * max(4, needed)
        self._limiter = RateLimiter(_SAMPLES_PER_INSERT, minimum, buffer, lambda: self.now)
        self._credits = Credits(self._limiter, self._segment, self._loop)
        self._signal = ScalingSignal(_SAMPLES_PER_INSERT, lambda: self.now)
        self._pods = Pods(maximum, start_s=(3.0, 10.0), per_s=100.0, rng=self._rng)
        self._autoscaler = Autoscaler(minimum=1, maximum=maximum)
        self._streams: dict[int, ActorStream] = {}
        self._storing: deque[tuple[ActorStream, int]] = deque()
        self._speeds = _STEPS_PER_S * np.exp(self._rng.normal(-(_SPREAD**2) / 2, _SPREAD, maximum))
        # Per actor: steps since its last segment, waiting segments, all steps, seconds waited.
        self._part = np.zeros(maximum)
        self._queued = np.zeros(maximum, np.int64)
        self._steps = np.zeros(maximum)
        self._waited = np.zeros(maximum)
        self._backlog = 0.0
        self._samples = 0
        self._starved_s = 0.0
        self.trace = Trace()
        self._pods.scale(1, 0.0)

    def run(self, seconds: float, needed: float) -> None:
        """Simulate a period with a learner that absorbs the output of `needed` actors."""
        self._needed = needed
        next_poll = self.now + self._autoscaler.period_s
        for _ in range(round(seconds / _STEP_S)):
            self.now += _STEP_S
            self._connect()
            waiting = self._act()
            self._send()
            starved = self._train()
            if self.now % _REPORT_S == 0:
                self._measure()
            if self.now >= next_poll:
                next_poll += self._autoscaler.period_s
                metric = self._signal.desired_actors
                self._pods.scale(self._autoscaler.decide(self.now, metric, self._pods.replicas), self.now)
            self._record(starved, waiting)

    def close(self) -> None:
        """Release the event loop."""
        self._loop.close()

    def _connect(self) -> None:
        """Connect actors that have started, and disconnect actors whose pods were deleted."""
        up = np.flatnonzero(self._pods.starts_at <= self.now)
        for index in set(self._streams).difference(up.tolist()):
            self._credits.close(self._streams.pop(index))
            self._signal.forget(f"actor-{index}")
            self._part[index] = self._queued[index] = self._steps[index] = self._waited[index] = 0
        for index in up.tolist():
            if index not in self._streams:
                member = Member(f"actor-{index}", "actor", index, incarnation=round(self.now * 1e3))
                self._streams[index] = stream = ActorStream(member, acknowledged=0)
                self._credits.open(stream)

    def _act(self) -> float:
        """Step the environments of actors whose queue is not full. Returns the fraction of actors that wait."""
        up = np.zeros(len(self._part), np.bool_)
        up[list(self._streams)] = True
        waits = up & (self._queued >= _QUEUE)
        steps = np.where(up & ~waits, self._speeds * _STEP_S, 0.0)
        self._part += steps
        done = self._part >= self._segment
        self._part[done] -= self._segment
        self._queued[done] += 1
        # Whole segments, as a real actor reports them.
        self._steps[done] += self._segment
        self._waited[waits] += _STEP_S
        return float(waits.sum() / max(1, up.sum()))

    def _send(self) -> None:
        """Send and store waiting segments within their credit."""
        for index in np.flatnonzero(self._queued).tolist():
            stream = self._streams[index]
            while self._queued[index] and stream.received < stream.credit:
                self._queued[index] -= 1
                sequence = stream.received + 1
                store = partial(self._storing.append, (stream, sequence))
                if self._credits.spend(stream, sequence, lambda: 0, store):
                    store()
                # Outside of `spend`, as in the learner: with thousands of streams, one insert leads to the next.
                while self._storing:
                    self._store(*self._storing.popleft())
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    def _store(self, stream: ActorStream, sequence: int) -> None:
        self._limiter.insert(self._segment, self._segment)
        self._credits.stored(stream, sequence)

    def _train(self) -> float:
        """Sample as fast as the learner can and may. Returns the fraction of the time in which it waited."""
        capacity = self._needed * _STEPS_PER_S * _SAMPLES_PER_INSERT * _STEP_S
        # A step has about twenty updates, at any size of the run.
        batch = max(1, round(capacity / 20))
        self._backlog += capacity
        done = 0
        while self._backlog >= batch and self._limiter.can_sample(batch):
            self._limiter.sample(batch)
            self._backlog -= batch
            done += batch
        starved = 0.0
        if self._backlog >= batch:
            starved = self._backlog / capacity
            self._backlog = 0.0
        self._samples += done
        self._starved_s += min(1.0, starved) * _STEP_S
        return min(1.0, starved)

    def _measure(self) -> None:
        for index, stream in self._streams.items():
            member = stream.member
            self._signal.record_report(member.name, member.incarnation, float(self._waited[index]))
        stored, missing = self._limiter.inserts, self._limiter.missing
        self._signal.observe(self._samples, self._starved_s, stored, len(self._streams), missing=missing)

    def _record(self, starved: float, waiting: float) -> None:
        trace = self.trace
        trace.seconds.append(self.now)
        trace.replicas.append(self._pods.replicas)
        trace.desired.append(self._signal.desired_actors)
        trace.needed.append(self._needed)
        trace.starved.append(starved)
        trace.blocked.append(waiting)


def simulate(needed: int, half_s: float, seed: int = 1) -> tuple[Trace, list[Phase]]:
    """Both halves of a run that first needs `needed` actors and then half as many."""
    simulation = Simulation(needed, seed)
    try:
        for part in (needed, needed / 2):
            simulation.run(half_s, part)
    finally:
        simulation.close()
    trace = simulation.trace
    middle = len(trace.seconds) // 2
    return trace, [judge(trace, slice(0, middle)), judge(trace, slice(middle, None))]


def judge(trace: Trace, part: slice) -> Phase:
    """The results of a part of a trace."""
    replicas: NDArray[np.int64] = np.array(trace.replicas[part])
    starved, blocked = (np.array(values[part]) for values in (trace.starved, trace.blocked))
    needed = trace.needed[part][-1]
    stayed = int(replicas[-1])
    away = np.flatnonzero(np.abs(replicas - stayed) > max(1.0, _SETTLED * stayed))
    settled = int(away[-1]) + 1 if len(away) else 0
    # Recently requested pods are still starting.
    at_rest = min(len(replicas) - 1, settled + round(30 / _STEP_S))
    beyond = int(replicas.max()) - stayed if replicas[0] <= stayed else stayed - int(replicas.min())
    return Phase(
        needed=needed,
        settled_at=stayed,
        settled_polls=round(settled * _STEP_S / Autoscaler.period_s),
        overshoot=beyond / stayed if beyond > 1 else 0.0,
        excess=max(0.0, (stayed - 1) / needed - 1),
        changes=int(np.count_nonzero(np.diff(replicas[at_rest:]))),
        starved=float(starved[at_rest:].mean()),
        blocked=float(blocked[at_rest:].mean()),
    )


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--actors", type=int, nargs="+", default=[1, 10, 100, 1_000, 10_000], metavar="N", help="actors needed"
    )
    parser.add_argument(
        "--half",
        type=float,
        default=HALF_S,
        metavar="SECONDS",
        help=f"simulated seconds of each half (default: {HALF_S:g})",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a plot to FILE")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    traces: dict[int, Trace] = {}
    figures: dict[str, Any] = {}
    targets: list[Target] = []
    for needed in arguments.actors:
        traces[needed], phases = simulate(needed, arguments.half)
        figures[str(needed)] = [asdict(phase) for phase in phases]
        for name, phase in zip(("up", "down"), phases, strict=True):
            print(
                f"{needed:6d} actors, {name:4s}: {phase.settled_at} replicas after {phase.settled_polls} polls, "
                f"overshoot {phase.overshoot:.1%}, then {phase.changes} changes, learner starved {phase.starved:.1%}, "
                f"actors blocked {phase.blocked:.1%}",
                flush=True,
            )
            targets += [
                Target(f"{needed} actors, {name}: polls until settled", phase.settled_polls, 24),
                Target(f"{needed} actors, {name}: overshoot", phase.overshoot, 0.1),
                Target(f"{needed} actors, {name}: more than needed", phase.excess, 0.25),
                Target(f"{needed} actors, {name}: changes after it settled", phase.changes, 2),
                Target(f"{needed} actors, {name}: learner starved after it settled", phase.starved, 0.05),
            ]
    if arguments.plot:
        plot(traces, arguments.plot)
    return figures, targets


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
