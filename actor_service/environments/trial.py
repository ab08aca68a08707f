"""Plays an environment with random actions, and measures its speed, rewards and observations for a run."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.environments.interface import Environments, Step
from actorq.domain.leaves import VECTOR, views
from actorq.domain.spaces import EnvironmentSpec, allowed_choices
from actorq.domain.trajectory import Episode

# Steps of each of the three compared episodes, and the seconds for all of them.
_COMPARED, _COMPARED_S = 200, 3.0
# Seconds between messages to the launcher.
_PERIOD_S = 1.0
_MOST_REASONS = 5


def play(environments: Environments, steps: int, seconds: float, alive: Callable[[], None]) -> dict[str, Any]:
    """Measurements of random actions in one environment, as JSON values.

    steps, seconds: the trial ends at the limit that comes first.
    alive: called once a second, between steps.

    Returns:
    - the steps and their total seconds
    - the lengths, returns and kinds of ended episodes
    - the lowest and highest reward and observation
    - the components of observations that never changed
    - failed steps by reason
    - whether a seed repeats an episode, and whether another seed changes it

    Raises as the environment does.
    """
    stepper = _Stepper(environments, alive)
    spec = environments.spec
    first = _numbers(spec, stepper.begin(0, actions=0)[0])
    lowest, highest = first.copy(), first.copy()
    episodes: list[Episode] = []
    rewards: list[float] = []
    faults: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    taken = 0
    while taken < steps and stepper.seconds < seconds:
        taken += 1
        step = stepper.step()
        observation = _numbers(spec, step.observations[0])
        np.minimum(lowest, observation, out=lowest)
        np.maximum(highest, observation, out=highest)
        rewards += step.rewards[step.valid].tolist()
        # The last agents of an episode decide its kind.
        terminated, over = bool(step.terminated.any()), not spec.agents or bool(step.episodes)
        truncated = bool(step.truncated.any()) and not (spec.agents and terminated)
        kinds.update(terminated=int(terminated and over), truncated=int(truncated and over))
        episodes += step.episodes
        faults.update(fault.reason for fault in step.faults)
    took = stepper.seconds
    constant = np.flatnonzero(lowest.reshape(-1) == highest.reshape(-1))
    return {
        "steps": taken,
        "seconds": took,
        "terminated": kinds["terminated"],
        "truncated": kinds["truncated"],
        "returns": [episode.episode_return for episode in episodes],
        "lengths": [episode.length for episode in episodes],
        "rewards": [min(rewards), max(rewards)] if rewards else [],
        "observations": [float(lowest.min()), float(highest.max())] if lowest.size else [],
        "components": lowest.size,
        "constant": constant.tolist(),
        "faults": dict(faults.most_common(_MOST_REASONS)),
        **_repeats(stepper, max(1, min(_COMPARED, int(_COMPARED_S / 3 * taken / took)))),
    }


def first_step(environments: Environments, tell: Callable[[str], None] = lambda call: None) -> NDArray[Any]:
    """Take one good step, and return the observations after it. Raises UserError when several actions fail.

    tell: called with the name of each call before it.
    """
    spec, rng = environments.spec, np.random.default_rng(0)
    tell("its first reset")
    observations = environments.reset(0)
    tell("its first step")
    if spec.sizes:
        actions = random_actions(spec, observations, rng)
    else:
        low, high = spec.actions.bounds()
        # The bounds are halved first, because their sum can overflow.
        actions = np.repeat((low / 2 + high / 2)[None], environments.rows, axis=0)
    while (step := environments.step(actions)).faults:
        actions = random_actions(spec, step.observations, rng)
    return step.observations


class _Stepper:
    """Takes random steps in one environment, and informs the launcher once a second. seconds: spent in steps."""

    def __init__(self, environments: Environments, alive: Callable[[], None]) -> None:
        self._environments = environments
        self._alive = alive
        self._draw = np.random.default_rng()
        self._told = time.perf_counter()
        self._seen: NDArray[Any] = np.empty(0)
        self.seconds = 0.0

    def begin(self, seed: int, actions: int) -> NDArray[Any]:
        """Reset the environment with a seed. The random actions have another seed."""
        self._draw = np.random.default_rng(actions)
        self._seen = self._environments.reset(seed)
        return self._seen

    def step(self) -> Step:
        """Take a random action."""
        action = random_actions(self._environments.spec, self._seen, self._draw)
        begun = time.perf_counter()
        step = self._environments.step(action)
        self._seen = step.observations
        ended = time.perf_counter()
        self.seconds += ended - begun
        if ended - self._told > _PERIOD_S:
            self._told = ended
            self._alive()
        return step


def random_actions(spec: EnvironmentSpec, observations: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Uniformly random legal actions, [N, *action], after these observations."""
    count, parts = len(observations), list[NDArray[Any]]()
    if spec.sizes:
        allowed = np.ones((count, spec.acting_size), np.bool_)
        if spec.mask is not None:
            allowed = views(spec.leaves, observations)[spec.mask.name]
        parts.append(allowed_choices(allowed, rng.random((count, len(spec.sizes))), spec.sizes))
        if not spec.components:
            return parts[0].reshape(count, *spec.actions.shape)
    low, high = (bound[..., len(spec.sizes) :] for bound in spec.actions.bounds())
    # The difference of two bounds can overflow float32.
    share = rng.random((count, *low.shape))
    parts.append(low * (1 - share) + high * share)
    return np.concatenate(parts, axis=1).astype(spec.actions.dtype) if spec.sizes else parts[0].astype(low.dtype)


def _numbers(spec: EnvironmentSpec, observation: NDArray[Any]) -> NDArray[Any]:
    """The numbers of an observation as one array; without images and other arrays, if it has several."""
    if not spec.leaves:
        return observation.copy()
    return views(spec.leaves, observation).get(VECTOR, np.empty(0)).copy()


def _repeats(stepper: _Stepper, steps: int) -> dict[str, bool]:
    """Whether the same seed and actions give the same steps, and whether another seed gives other steps."""

    def episode(seed: int) -> list[NDArray[Any]]:
        seen = [stepper.begin(seed, actions=1).copy()]
        for _ in range(steps):
            step = stepper.step()
            seen += [each.copy() for each in (step.observations, step.rewards, step.terminated, step.truncated)]
        return seen

    def equal(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))

    one, same, other = episode(7), episode(7), episode(8)
    return {"repeats": equal(one, same), "seeds_differ": not equal(one, other)}
