"""IQL's update against its equations, written out with separate networks, one transition after another."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from learner_service.algorithms.offline.iql import IQL
from learner_service.batch import Batch
from tests.learner_service.algorithms.algorithm_parts import (
    BATCH,
    BOUNDED,
    CONTINUOUS,
    act,
    make,
    of_the_cpu,
    ones,
    random_batch,
)

EXPECTILE, BETA, MOST, RATE, LEARNING_RATE = 0.8, 2.0, 1.5, 0.1, 1e-2


def make_iql(**changes: Any) -> IQL:
    defaults = {
        "expectile": EXPECTILE,
        "inverse_temperature": BETA,
        "max_weight": MOST,
        "target_rate": RATE,
        "learning_rate": LEARNING_RATE,
    }
    algorithm = make("iql", BOUNDED, **{**defaults, **changes})
    assert isinstance(algorithm, IQL)
    return algorithm


class Reference:
    """Algorithm 1 of arXiv 2110.06169, with the modules of an algorithm."""

    def __init__(self, iql: IQL) -> None:
        self.policy, self.critics = copy.deepcopy(iql.policy), copy.deepcopy(iql._q.network)
        self.target = copy.deepcopy(self.critics)
        self.deviation = torch.zeros(2, requires_grad=True)
        own = [*self.policy.parameters(), self.deviation]
        self._policy_adam = torch.optim.Adam(own, lr=LEARNING_RATE, fused=False)
        self._critic_adam = torch.optim.Adam(self.critics.parameters(), lr=LEARNING_RATE, fused=False)
        low, high = (torch.from_numpy(bound) for bound in BOUNDED.actions.bounds())
        self._middle, self._half = (low + high) / 2, (high - low) / 2

    def update(self, batch: Batch, weights: Any) -> list[float]:
        rows = [self._row(batch, index) for index in range(BATCH)]
        losses, priorities = [], []
        for index, (observation, action, following) in enumerate(rows):
            judged = float(self.target.critics(observation, action).detach().min())
            advantage = judged - self.critics.value(observation)
            share = abs(EXPECTILE - float(float(advantage) < 0))
            bootstrap = float(self.critics.value(following).detach())
            target = float(batch.returns[index]) + float(batch.bootstrap_discounts[index]) * bootstrap
            errors = target - self.critics.critics(observation, action)
            loss = share * advantage.square().sum() + errors.square().sum()
            losses.append(float(weights[index]) * loss)
            priorities.append(float(errors.detach().abs().mean()))
        _descend(self._critic_adam, torch.stack(losses).mean())
        terms = []
        for observation, action, _ in rows:
            with torch.no_grad():
                advantage = self.target.critics(observation, action).min() - self.critics.value(observation)
                weight = min(math.exp(BETA * float(advantage)), MOST)
            mean = (self.policy(observation) - self._middle) / self._half
            normal = torch.distributions.Normal(mean, self.deviation.exp())
            terms.append(-weight * normal.log_prob(action).sum())  # type: ignore[no-untyped-call]
        _descend(self._policy_adam, torch.stack(terms).mean())
        with torch.no_grad():
            for value, online in zip(self.target.parameters(), self.critics.parameters(), strict=True):
                value.lerp_(online, RATE)
        return priorities

    def _row(self, batch: Batch, index: int) -> tuple[Tensor, Tensor, Tensor]:
        action = (torch.from_numpy(batch.actions[index : index + 1]) - self._middle) / self._half
        observation, following = (
            torch.from_numpy(column[index : index + 1]) for column in (batch.observations, batch.bootstrap_observations)
        )
        return observation, action, following


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()


@of_the_cpu
def test_updates_are_those_of_the_paper() -> None:
    iql, rng = make_iql(), np.random.default_rng(0)
    reference = Reference(iql)
    for _ in range(5):
        batch, weights = random_batch(rng, BOUNDED, BATCH), rng.random(BATCH, np.float32)
        priorities = iql.update(batch, weights).priorities
        np.testing.assert_allclose(priorities, reference.update(batch, weights), rtol=1e-3, atol=1e-4)
        for ours, theirs in (
            (iql.policy.parameters(), reference.policy.parameters()),
            (iql._q.network.parameters(), reference.critics.parameters()),
            (iql._q.target.critics.parameters(), reference.target.critics.parameters()),
            ((iql._log_deviation.values,), (reference.deviation,)),
        ):
            for value, expected in zip(ours, theirs, strict=True):
                torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("expectile", "value"), [(0.5, 0.0), (0.99, 1.0), (0.01, -1.0)])
def test_values_are_the_expectile_of_the_stored_actions(expectile: float, value: float) -> None:
    """Rewards of one step are +1 or -1 in the same state, by the action."""
    algorithm, rng = make("iql", CONTINUOUS, expectile=expectile, target_rate=0.5), np.random.default_rng(0)
    assert isinstance(algorithm, IQL)
    for _ in range(60):
        batch = random_batch(rng, CONTINUOUS, 10 * BATCH)
        batch.observations[:], batch.bootstrap_discounts[:] = 0.5, 0.0
        batch.actions[:] = rng.choice([-0.8, 0.8], 10 * BATCH)[:, None]
        batch.returns[:] = np.sign(batch.actions[:, 0])
        algorithm.update(batch, ones(10 * BATCH))
    with torch.no_grad():
        found = float(algorithm._q.network.value(torch.full((1, 3), 0.5, device=algorithm._device)))
    assert found == pytest.approx(value, abs=0.15)
    # The better actions have more weight.
    assert act(algorithm, np.full((1, 3), 0.5, np.float32))[0, 0] > 0.3
