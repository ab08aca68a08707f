"""Plays an environment with random actions, and measures what a run will meet there."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.environments.interface import Environments, Step
from actorq.domain.trajectory import EnvironmentSpec

# Steps of each of the episodes that are compared.
_COMPARED = 200
# The launcher waits for a word this often.
_PERIOD_S = 1.0
_MOST_REASONS = 5


def play(environments: Environments, steps: int, seconds: float, alive: Callable[[], None]) -> dict[str, Any]:
    """Figures of random actions in one environment, as JSON has them.

    steps, seconds: the trial ends with the first of both.
    alive: called at least once a second, between steps.

    Returns the steps and their seconds; the lengths, returns and kinds of ended episodes; the lowest and highest reward
    and observation, and the components of observations that never changed; failed steps by reason; and whether a seed
    repeats an episode, and whether another seed changes it. Raises as the environment does.
    """
    draw = np.random.default_rng(0)
    first = environments.reset(0)[0].copy()
    lowest, highest = first.copy(), first.copy()
    returns: list[float] = []
    lengths: list[int] = []
    rewards: list[float] = []
    faults: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    begun = told = time.perf_counter()
    taken = 0
    while taken < steps and told - begun < seconds:
        taken += 1
        step = environments.step(_action(environments.spec, draw))
        observation = step.observations[0]
        np.minimum(lowest, observation, out=lowest)
        np.maximum(highest, observation, out=highest)
        if step.valid[0]:
            rewards.append(float(step.rewards[0]))
        kinds.update(terminated=int(step.terminated[0]), truncated=int(step.truncated[0]))
        returns += [episode.episode_return for episode in step.episodes]
        lengths += [episode.length for episode in step.episodes]
        faults.update(fault.reason for fault in step.faults)
        if (now := time.perf_counter()) - told > _PERIOD_S:
            told = now
            alive()
    took = time.perf_counter() - begun
    constant = np.flatnonzero(lowest.reshape(-1) == highest.reshape(-1))
    return {
        "steps": taken,
        "seconds": took,
        "terminated": kinds["terminated"],
        "truncated": kinds["truncated"],
        "returns": returns,
        "lengths": lengths,
        "rewards": [min(rewards), max(rewards)] if rewards else [],
        "observations": [float(lowest.min()), float(highest.max())],
        "components": lowest.size,
        "constant": constant.tolist(),
        "faults": dict(faults.most_common(_MOST_REASONS)),
        **_repeats(environments, alive),
    }


def _action(spec: EnvironmentSpec, draw: np.random.Generator) -> NDArray[Any]:
    """A random action for one environment, [1, *action]."""
    if spec.discrete_actions:
        return draw.integers(spec.discrete_actions, size=1)
    low, high = spec.actions.bounds()
    # The difference of two bounds can overflow float32.
    share = draw.random(spec.actions.shape)
    return (low * (1 - share) + high * share).astype(spec.actions.dtype)[None]


def _repeats(environments: Environments, alive: Callable[[], None]) -> dict[str, bool]:
    """Whether the same seed and actions give the same steps, and whether another seed gives others."""

    def episode(seed: int) -> list[NDArray[Any]]:
        draw = np.random.default_rng(1)
        seen = [environments.reset(seed).copy()]
        for _ in range(_COMPARED):
            seen += _copied(environments.step(_action(environments.spec, draw)))
        alive()
        return seen

    one, same, other = episode(7), episode(7), episode(8)
    return {"repeats": _equal(one, same), "seeds_differ": not _equal(one, other)}


def _copied(step: Step) -> list[NDArray[Any]]:
    return [array.copy() for array in (step.observations, step.rewards, step.terminated, step.truncated)]


def _equal(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
