"""Gives each step of an ended episode other goals, which the episode achieved later (arXiv 1707.01495)."""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from actor_service.goals.rewards import GoalRewards
from actorq.domain.goals import Goal, HindsightColumns
from actorq.domain.trajectory import Segment


@dataclass(eq=False)
class Hindsight:
    """Adds the hindsight columns to segments, in the order of the segments.

    A segment is held until the episodes of all its steps have ended. Then each step gets goals that its own episode
    achieved after that step. They are drawn uniformly from the step's end to the end of the episode (strategy
    "future"). The environment itself computes the rewards. If a fault or the actor's end cuts off an episode, the
    columns repeat the step's own goal, reward and end.

    names: of the columns. rewards: of the environment. rng: draws the goals.
    watched: context of each call to the environment, for a watchdog.
    """

    goal: Goal
    environments: int
    names: HindsightColumns
    rewards: GoalRewards
    rng: np.random.Generator
    watched: AbstractContextManager[Any] = field(default_factory=nullcontext)

    def __post_init__(self) -> None:
        self._held: deque[_Held] = deque()
        # The running episode of each environment: segments, with its first step and the step after its last one.
        self._running: list[list[tuple[_Held, int, int]]] = [[] for _ in range(self.environments)]

    def add(self, segment: Segment) -> Iterator[Segment]:
        """Add the next segment. Yields the segments that are now complete. Raises UserError as `GoalRewards` does."""
        if not segment.follows:
            self._cut_all()
        held = _Held(segment, self.goal, self.names.copies)
        self._held.append(held)
        ends = segment.terminated | segment.truncated
        for environment in range(segment.environments):
            begun = 0
            for step in np.flatnonzero(ends[:, environment] | ~segment.valid[:, environment]).tolist():
                is_end = bool(ends[step, environment])
                self._extend(environment, held, begun, step + is_end)
                if is_end:
                    self._relabel(environment)
                self._forget(environment)
                begun = step + 1
            self._extend(environment, held, begun, segment.steps)
        yield from self._complete()

    def flush(self) -> Iterator[Segment]:
        """Yield all held segments. The running episodes count as cut off."""
        self._cut_all()
        yield from self._complete()

    def _extend(self, environment: int, held: "_Held", first: int, stop: int) -> None:
        if first < stop:
            self._running[environment].append((held, first, stop))
            held.waits_for.add(environment)

    def _relabel(self, environment: int) -> None:
        """Draw other goals for the steps of the environment's ended episode."""
        pieces, copies = self._running[environment], self.names.copies
        achieved = np.concatenate([held.achieved[first:stop, environment] for held, first, stop in pieces])
        steps = len(achieved)
        later = self.rng.integers(np.arange(steps)[:, None], steps, size=(steps, copies))
        goals = achieved[later]
        with self.watched:
            rewards, terminated = self.rewards(np.repeat(achieved, copies, axis=0), goals.reshape(steps * copies, -1))
        rewards = rewards.reshape(steps, copies)
        done = 0
        for held, first, stop in pieces:
            ours = slice(done, done + stop - first)
            held.goals[first:stop, environment] = goals[ours]
            held.rewards[first:stop, environment] = rewards[ours]
            if terminated is not None:
                held.terminated[first:stop, environment] = terminated.reshape(steps, copies)[ours]
            done = ours.stop

    def _forget(self, environment: int) -> None:
        for held, _, _ in self._running[environment]:
            held.waits_for.discard(environment)
        self._running[environment].clear()

    def _cut_all(self) -> None:
        for environment in range(len(self._running)):
            self._forget(environment)

    def _complete(self) -> Iterator[Segment]:
        names = self.names
        while self._held and not self._held[0].waits_for:
            held = self._held.popleft()
            further = {names.goals: held.goals, names.rewards: held.rewards, names.terminated: held.terminated}
            yield held.segment.with_columns(**further)


class _Held:
    """A segment whose steps wait for the end of their episodes, with its hindsight columns.

    achieved: the goals achieved after each step, [T, N, size]. waits_for: environments whose running episode has steps
        in it.
    """

    def __init__(self, segment: Segment, goal: Goal, copies: int) -> None:
        self.segment = segment
        self.waits_for: set[int] = set()
        # Rows of context are before the first step of the segment.
        before = len(segment.observations) - segment.steps - 1
        self.achieved = goal.achieved_of(segment.observations[before + 1 :])
        desired = goal.desired_of(segment.observations[before:-1])
        self.goals = np.repeat(desired[:, :, None], copies, axis=2)
        self.rewards = np.repeat(segment.rewards[:, :, None], copies, axis=2)
        self.terminated = np.repeat(segment.terminated[:, :, None], copies, axis=2)
