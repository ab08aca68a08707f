"""One stream of a simulator, as the server sees it: which step comes next, and who gets the answer."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actor_service.external.streams.spaces import SimulatorSpaces
from actorq import wire
from actorq.domain.limits import LARGEST_NUMBER, all_within_numbers, within_numbers
from actorq.errors import InvalidInputError

# Weight of the newest step in the mean time of a simulator's steps.
_NEWEST = 0.2


class Arrival(NamedTuple):
    """A checked step of the n environments of a stream.

    observations: [n, *observation], as in segments. rewards: float64[n]. terminated, truncated: bool[n].
    ends: bool[n], terminated or truncated.
    begins: bool[n], environments whose first observation of an episode this is; they have no reward and no flags.
    some_end, some_begin: whether there are any. Most steps have none.
    successes: bool[n]; None if the simulator does not report success.
    """

    observations: NDArray[np.generic]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    ends: NDArray[np.bool_]
    begins: NDArray[np.bool_]
    some_end: bool
    some_begin: bool
    successes: NDArray[np.bool_] | None


@dataclass(frozen=True)
class Ending:
    """The end of a stream by the actor. error: the reason; None if the run is over."""

    error: Exception | None = None


Reply = wire.PlayAnswer | Ending


class PlaySession:
    """One stream. The server's thread calls `accept`; the door has the other attributes.

    count: environments of the stream. explore: whether its episodes are training data.
    reply: called with each answer and with the end, on the thread that the door's `post` chooses.
    step_s: mean seconds from an answer to the next step; infinite before the first.
    arrived_at: time of the last step. answered_at: time of the last answer; infinite while a step waits for its answer.
    """

    def __init__(self, spaces: SimulatorSpaces, opening: wire.PlayOpening, reply: Callable[[Reply], None]) -> None:
        self.spaces = spaces
        self.count = opening.environments
        self.explore = opening.explore
        self.reply = reply
        self.step_s = math.inf
        self.arrived_at = 0.0
        self.answered_at = math.inf
        self._begins = np.ones(self.count, np.bool_)
        self._some_begin = True
        self._steps = 0

    def accept(self, step: wire.PlayStep) -> Arrival:
        """Check the next step. Raises InvalidInputError, with the number of the step, for one that does not fit."""
        self._steps += 1
        try:
            return self._accept(step)
        except InvalidInputError as error:
            raise InvalidInputError(f"step {self._steps}: {error}") from None

    def _accept(self, step: wire.PlayStep) -> Arrival:
        count, begins, some_begin = self.count, self._begins, self._some_begin
        rewards, terminated, truncated, successes = step[1:]
        if not (len(rewards) == len(terminated) == len(truncated) == count and len(successes) in (0, count)):
            raise self._wrong_number(step)
        if some_begin:
            rewards, terminated, truncated = np.where(begins, 0.0, rewards), terminated & ~begins, truncated & ~begins
        if not all_within_numbers(rewards):
            environment = int(np.flatnonzero(~within_numbers(rewards))[0])
            raise InvalidInputError(
                f"step.rewards: must be from {-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}, got {rewards[environment]:g} "
                f"in environment {environment}; scale them in the simulator"
            )
        ends = terminated | truncated
        observations = self.spaces.packed(step, count, ends)
        self._begins, self._some_begin = ends, bool(np.count_nonzero(ends))
        flags = terminated, truncated, ends, begins, self._some_begin, some_begin
        return Arrival(observations, rewards, *flags, successes if len(successes) else None)

    def _wrong_number(self, step: wire.PlayStep) -> InvalidInputError:
        names = ("rewards", "terminated", "truncated", "successes")
        name = next(name for name in names if len(getattr(step, name)) != self.count)
        return InvalidInputError(
            f"step.{name}: expected one for each of {self.count} environments, got {len(getattr(step, name))}"
        )

    def is_quick(self, now: float, wait_s: float) -> bool:
        """Whether the next step probably comes within `wait_s` seconds of the last answer, and may still come."""
        return self.step_s < wait_s and 0.0 <= now - self.answered_at < 2 * wait_s

    def arrived(self, now: float) -> None:
        """Record the arrival of a step."""
        if self.answered_at < math.inf:
            took = now - self.answered_at
            self.step_s = took if math.isinf(self.step_s) else (1 - _NEWEST) * self.step_s + _NEWEST * took
        self.arrived_at, self.answered_at = now, math.inf
