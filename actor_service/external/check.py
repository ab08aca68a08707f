"""Checks the client of a simulator: answers its steps with random actions, and breaks its streams."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.acting.parts import mask_of
from actor_service.external.streams.door import Door, Host, Taken
from actor_service.external.streams.session import Arrival, PlaySession
from actorq import wire
from actorq.domain.spaces import EnvironmentSpec, allowed_choices
from actorq.errors import UnavailableError
from actorq.text import one_line

# Steps of the second stream, and seconds in which a client must not come back after the end of the run.
_AGAIN, _QUIET_S = 20, 2.0
_MOST_BYTES = 300
_WORDS = {True: "ok", False: "FAIL", None: "note"}


@dataclass(frozen=True)
class Finding:
    """The result of one rule. passed: None for a fact without a rule."""

    name: str
    passed: bool | None
    text: str

    def __str__(self) -> str:
        return f"{_WORDS[self.passed]:<5} {self.name:<13} {self.text}"


@dataclass(eq=False)
class _Seen:
    """Observations of a client's first stream."""

    steps: int = 0
    transitions: int = 0
    lengths: list[int] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    rewards: set[float] = field(default_factory=set)
    changes: bool = False

    def add(self, arrival: Arrival, before: NDArray[Any] | None, running: NDArray[np.int64]) -> None:
        """Record a step. running: int64[n], the lengths of the running episodes, updated here."""
        self.steps += 1
        acted = ~arrival.begins
        self.transitions += int(np.count_nonzero(acted))
        self.rewards.update(arrival.rewards[acted].tolist()[:1] if len(self.rewards) < 2 else [])
        running += acted
        running[arrival.begins] = 0
        for name in ("terminated", "truncated"):
            self.ends[name] += int(np.count_nonzero(getattr(arrival, name)))
        for index in np.flatnonzero(arrival.terminated | arrival.truncated):
            self.lengths.append(int(running[index]))
        if before is not None:
            self.changes = self.changes or not np.array_equal(before, arrival.observations)


@dataclass(eq=False)
class ClientCheck:
    """Plays with one client at a time, and reports whether it follows the protocol.

    steps: steps of the first stream. wait_s: longest wait for a client and for each of its steps.
    """

    door: Door
    steps: int
    wait_s: float
    seed: int = 1
    clock: Callable[[], float] = time.monotonic

    def run(self) -> Iterator[Finding]:
        """Yield the findings, one after the other. Ends after the first failure that makes later rules useless."""
        self.door.admit(Host("external/check", "check"))
        self._rng = np.random.default_rng(self.seed)
        seen = _Seen()
        session = self._play(seen, self.steps)
        if session is None or seen.steps < self.steps:
            what = "a client" if session is None else f"{self.steps} steps, got {seen.steps}"
            yield self._missing("open" if session is None else "steps", what)
            return
        spec = session.spaces.spec
        yield Finding("open", True, _spaces_text(spec, session))
        yield from self._findings(seen, spec)
        self.door.disconnect(UnavailableError("the check breaks the stream once: connect again"))
        again = _Seen()
        if self._play(again, _AGAIN, session) is None or again.steps < _AGAIN:
            yield self._missing("reconnects", f"a new stream with {_AGAIN} steps after UNAVAILABLE, got {again.steps}")
            return
        yield Finding("reconnects", True, "connected again after UNAVAILABLE, with the same spaces")
        refused = self.door.refused
        self.door.end(None)
        self._until_gone(_QUIET_S)
        back = self.door.refused > refused
        yield Finding(
            "ends",
            not back,
            "connected again after OK, but the run is over" if back else "stayed away after OK, the end of the run",
        )

    def _play(self, seen: _Seen, steps: int, old: PlaySession | None = None) -> PlaySession | None:
        """Play `steps` steps with the next client. Stops early when it leaves, is refused or takes too long.

        old: an ended stream, whose last messages may still come.
        """
        session: PlaySession | None = None
        before: NDArray[Any] | None = None
        running = np.zeros(0, np.int64)
        answered = self.clock()
        while seen.steps < steps:
            taken = self._take()
            if session is not None and session in taken.left:
                return session
            for found, arrival in taken.arrivals:
                if session is None and found is not old:
                    session, running = found, np.zeros(found.count, np.int64)
                if session is None or found is not session:
                    continue
                if seen.steps:
                    seen.seconds.append(self.clock() - answered)
                seen.add(arrival, before, running)
                before = arrival.observations
                self._answer(session, arrival)
                answered = self.clock()
            if not taken:
                return session
        return session

    def _take(self) -> Taken:
        """The next events; empty after `wait_s` seconds, after a refused client, and at the end."""
        until, refused = self.clock() + self.wait_s, self.door.refused
        while not (taken := self.door.take(max(0.0, until - self.clock()))) and self.clock() < until:
            if self.door.ended or self.door.refused > refused:
                break
        return taken

    def _until_gone(self, seconds: float) -> None:
        until = self.clock() + seconds
        while (left := until - self.clock()) > 0:
            self.door.take(left)

    def _answer(self, session: PlaySession, arrival: Arrival) -> None:
        spec, count = session.spaces.spec, session.count
        actions = random_actions(spec, arrival.observations, self._rng)
        versions, evaluating = np.ones(count, np.int64), np.zeros(count, np.bool_)
        self.door.answer([(session, wire.PlayAnswer(actions, versions, "fp32", evaluating))])

    def _findings(self, seen: _Seen, spec: EnvironmentSpec) -> Iterator[Finding]:
        yield Finding("steps", True, f"{seen.steps} steps, {seen.transitions} transitions, all within the spaces")
        if seen.lengths:
            ends = ", ".join(f"{count} {name}" for name, count in seen.ends.items())
            yield Finding("episodes", True, f"{len(seen.lengths)} ended ({ends}), {median(seen.lengths):g} steps each")
        else:
            limited = 0 < spec.max_episode_steps <= self.steps
            rule = f"none ended, although the time limit is {spec.max_episode_steps}" if limited else "none ended"
            yield Finding("episodes", False if limited else None, f"{rule}; give --steps to see more")
        yield Finding("observations", seen.changes, "they change" if seen.changes else "never change")
        if len(seen.rewards) == 1:
            yield Finding("rewards", None, f"all are {next(iter(seen.rewards)):g}")
        times = np.sort(seen.seconds) * 1e3
        yield Finding(
            "speed", None, f"{median(times):.3g} ms from an action to the next step; 99% within {_p99(times)}"
        )

    def _missing(self, name: str, expected: str) -> Finding:
        problem = self.door.problem or f"no message for {self.wait_s:g} s"
        return Finding(name, False, one_line(f"expected {expected}; {problem}", _MOST_BYTES))


def random_actions(spec: EnvironmentSpec, observations: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Uniformly random legal actions [n, *action]."""
    count = len(observations)
    low, high = spec.actions.bounds()
    if not spec.sizes:
        return rng.uniform(low, high, (count, *spec.actions.shape)).astype(np.float32)
    width = sum(spec.sizes)
    allowed = np.ones((count, width), np.bool_) if spec.mask is None else mask_of(spec, observations)
    choices = allowed_choices(allowed, rng.random((count, len(spec.sizes))), spec.sizes)
    if not spec.components:
        return choices.reshape(count, *spec.actions.shape)
    first = len(spec.sizes)
    numbers = rng.uniform(low[first:], high[first:], (count, spec.components))
    return np.concatenate((choices, numbers), axis=1, dtype=np.float32)


def _spaces_text(spec: EnvironmentSpec, session: PlaySession) -> str:
    return f"{spec.observations_text}; actions: {spec.actions_text}; {session.count} environments"


def _p99(times: NDArray[np.float64]) -> str:
    return f"{times[int(0.99 * (len(times) - 1))]:.3g} ms"
