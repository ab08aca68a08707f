"""Simulators for tests: their messages, and CartPole as a simulator."""

import queue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.environments import make_environments
from actor_service.external.streams.door import Door, Host
from actor_service.external.streams.session import Arrival, Ending, PlaySession, Reply
from actorq import wire
from actorq.config.sections import ExternalConfig
from actorq.domain.environments import NO_ARGUMENTS
from actorq.domain.leaves import Leaf
from actorq.domain.spaces import ArraySpec, EnvironmentSpec

DEADLINE_S = 30.0
NAME = "external/pole"
NUMBERS = Leaf("", "numbers", (4,), "float32")
SPEC = EnvironmentSpec(NAME, ArraySpec((4,), "float32"), ArraySpec((), "int64"), (2,), 500, 475.0)


def opening(environments: int = 1, **changed: Any) -> wire.PlayOpening:
    """The first message of a cart-pole."""
    given: dict[str, Any] = {
        "protocol": wire.PROTOCOL,
        "environments": environments,
        "observations": (NUMBERS,),
        "actions": ArraySpec((), "int64"),
        "sizes": (2,),
        "max_episode_steps": 500,
        "reward_threshold": 475.0,
    }
    return wire.PlayOpening(**{**given, **changed})


def step(
    *observations: NDArray[Any],
    rewards: float | list[float] = 1.0,
    terminated: int | list[int] = 0,
    truncated: int | list[int] = 0,
    successes: list[int] | None = None,
) -> wire.PlayStep:
    """A step of all environments, by default of one cart-pole at zero. A number holds for all of them."""
    arrays = observations or (np.zeros((1, 4), np.float32),)
    count = len(arrays[0])
    flags = [
        np.array([value] * count if isinstance(value, int) else value, np.bool_) for value in (terminated, truncated)
    ]
    given = np.array([rewards] * count if isinstance(rewards, float) else rewards, np.float64)
    return wire.PlayStep(arrays, given, flags[0], flags[1], np.array(successes or [], np.bool_))


def door(environment: str = NAME, admitted: bool = True, **limits: Any) -> Door:
    """A door, by default for a run."""
    made = Door(ExternalConfig(**limits))
    if admitted:
        made.admit(Host(environment, "run", NO_ARGUMENTS))
    return made


class Simulator:
    """A simulator at a door: sends steps, and waits for the replies."""

    def __init__(self, at: Door, given: wire.PlayOpening | None = None) -> None:
        self.door = at
        self.replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self.session: PlaySession
        self.session, self.ready = at.open(given or opening(), self.replies.put)

    def offer(self, given: wire.PlayStep) -> Arrival:
        """Send a step, and do not wait."""
        arrival = self.session.accept(given)
        self.door.offer(self.session, arrival)
        return arrival

    def reply(self) -> Reply:
        """Wait for the next reply."""
        return self.replies.get(timeout=DEADLINE_S)

    def answer(self) -> wire.PlayAnswer:
        """Wait for the next reply, which must be an answer."""
        found = self.reply()
        assert isinstance(found, wire.PlayAnswer), found
        return found

    def ending(self) -> Ending:
        """Wait for the next reply, which must be the end."""
        found = self.reply()
        assert isinstance(found, Ending), found
        return found

    def play(self, given: wire.PlayStep) -> wire.PlayAnswer:
        """Send a step, and wait for its answer."""
        self.offer(given)
        return self.answer()

    def leave(self) -> None:
        """Close the stream."""
        self.door.leave(self.session)


class CartPoles:
    """Gymnasium's cart-poles as a simulator."""

    def __init__(self, count: int, seed: int) -> None:
        self._environments = make_environments("CartPole-v1", count)
        self.first = step(self._environments.reset(seed).copy(), rewards=0.0)

    def step(self, actions: NDArray[Any]) -> wire.PlayStep:
        """The message about the next step."""
        taken = self._environments.step(actions)
        return wire.PlayStep(
            (taken.observations.copy(),),
            taken.rewards.astype(np.float64),
            taken.terminated.copy(),
            taken.truncated.copy(),
            np.zeros(0, np.bool_),
        )
