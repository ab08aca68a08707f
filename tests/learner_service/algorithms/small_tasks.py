"""Two tasks that on-policy algorithms solve in seconds, as environments of which a rollout is collected."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from learner_service.algorithms.policy_gradient import PolicyGradient
from learner_service.batch import Batch
from tests.learner_service.algorithms.on_policy_parts import draw

STATES = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1]], np.float32)


class Chain:
    """Five states in a row, from the first one. Action 0 moves back, 1 stays, 2 moves forward.

    Moving forward from the last state ends the episode with a reward of 1. After 20 steps the time is over.
    """

    limit = 20

    def __init__(self, environments: int) -> None:
        self.places = np.zeros(environments, np.int64)
        self.ages = np.zeros(environments, np.int64)
        self.resets = np.zeros(environments, np.bool_)

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Rewards, terminated, truncated, valid."""
        valid = ~self.resets
        self.ages = np.where(valid, self.ages + 1, 0)
        moved = np.where(valid, np.maximum(self.places + actions - 1, 0), 0)
        terminated = moved == len(STATES)
        self.places = np.minimum(moved, len(STATES) - 1)
        truncated = valid & ~terminated & (self.ages == self.limit)
        self.resets = terminated | truncated
        return terminated.astype(np.float32), terminated, truncated, valid


def collect(
    actor: PolicyGradient, chain: Chain, rng: np.random.Generator, steps: int, temperature: float = 1.0
) -> Batch:
    """A rollout in which `actor` acts; see `draw` for the temperature."""
    observations, rows = [STATES[chain.places]], []
    for _ in range(steps):
        actions, logarithms = draw(actor, observations[-1], rng, temperature)
        rows.append((actions, logarithms, *chain.step(actions)))
        observations.append(STATES[chain.places])
    actions, logarithms, rewards, terminated, truncated, valid = map(np.stack, zip(*rows, strict=True))
    return Batch(
        observations=np.stack(observations),
        actions=actions,
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        log_probabilities=logarithms,
        policy_versions=np.ones(rewards.shape, np.int64),
        senders=np.zeros(rewards.shape, np.uint64),
    )


CONTEXTS = np.array([[1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]], np.float32)
BEST = np.array([[0.5, -0.25], [-0.5, 0.75]], np.float32)


def bandit(
    actor: PolicyGradient, rng: np.random.Generator, steps: int, environments: int, temperature: float = 1.0
) -> Batch:
    """One continuous action in one of two contexts, and the end. The reward is minus its squared distance from BEST.

    Values beyond the bounds count as they were drawn, so that no reward is constant there.
    """
    contexts = rng.integers(2, size=(steps + 1, environments))
    actions, logarithms = draw(actor, CONTEXTS[contexts[:-1].ravel()], rng, temperature)
    rows = steps, environments
    actions = actions.reshape(*rows, -1)
    always = np.ones(rows, np.bool_)
    return Batch(
        observations=CONTEXTS[contexts],
        actions=actions,
        rewards=-np.square(actions - BEST[contexts[:-1]]).sum(2).astype(np.float32),
        terminated=always,
        truncated=~always,
        valid=always,
        log_probabilities=logarithms.reshape(rows),
        policy_versions=np.ones(rows, np.int64),
        senders=np.zeros(rows, np.uint64),
    )
