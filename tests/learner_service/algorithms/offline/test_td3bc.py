"""The policy's loss of TD3+BC against its equations. The critics are those of TD3."""

from typing import Any

import numpy as np
import torch

from learner_service.algorithms.offline.td3bc import TD3BC
from tests.learner_service.algorithms.algorithm_parts import (
    BATCH,
    BOUNDED,
    CONTINUOUS,
    act,
    make,
    on_device,
    ones,
    random_batch,
)


def make_td3bc(**changes: Any) -> TD3BC:
    algorithm = make("td3bc", changes.pop("spec", None), **changes)
    assert isinstance(algorithm, TD3BC)
    return algorithm


def test_the_critics_are_those_of_td3() -> None:
    batch = random_batch(np.random.default_rng(0), CONTINUOUS, 2 * BATCH)
    ours, td3 = make_td3bc(policy_delay=5), make("td3", policy_delay=5)
    np.testing.assert_array_equal(
        ours.update(batch, ones(2 * BATCH)).priorities, td3.update(batch, ones(2 * BATCH)).priorities
    )
    for name in ("critic.parameters", "target_critic"):
        assert torch.equal(ours.state()[name], td3.state()[name])


def test_the_policys_loss_is_equation_3_of_the_paper() -> None:
    algorithm = make_td3bc(spec=BOUNDED, alpha=1.5)
    batch = random_batch(np.random.default_rng(0), BOUNDED, BATCH)
    observations, actions = on_device(batch.observations), on_device(batch.actions)
    loss, distance = algorithm._cloning_loss(observations, actions)
    low, high = (torch.from_numpy(bound) for bound in BOUNDED.actions.bounds())
    with torch.no_grad():
        taken = 2 * (algorithm.policy(observations).cpu() - low) / (high - low) - 1
        stored = 2 * (actions.cpu() - low) / (high - low) - 1
        values = algorithm._q(observations, taken.to(observations.device))[0].cpu()
    weight = 1.5 / values.abs().mean()
    squares = (taken - stored).square().mean()
    torch.testing.assert_close(distance.cpu(), squares, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss.detach().cpu(), squares - weight * values.mean(), rtol=1e-4, atol=1e-4)


def test_without_weight_of_values_the_policy_clones_the_stored_actions() -> None:
    algorithm, rng = make_td3bc(alpha=1e-6, policy_delay=1), np.random.default_rng(0)
    for _ in range(60):
        batch = random_batch(rng, CONTINUOUS, 10 * BATCH)
        batch.actions[:] = 0.5 * np.tanh(batch.observations[:, :2])
        losses = algorithm.update(batch, ones(10 * BATCH))
    assert losses.figures["distance"] < 1e-3
    batch = random_batch(rng, CONTINUOUS, BATCH)
    np.testing.assert_allclose(act(algorithm, batch.observations), 0.5 * np.tanh(batch.observations[:, :2]), atol=0.1)
