"""XQC learns Pendulum within a few episodes."""

from typing import Any

import gymnasium
import numpy as np
import torch

from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.algorithms.xqc import XQC
from learner_service.batch import Batch
from tests.learner_service.algorithms.algorithm_parts import of_the_cpu, ones
from tests.learner_service.algorithms.xqc_reference import make_xqc

pytestmark = of_the_cpu
PENDULUM = EnvironmentSpec("Pendulum-v1", ArraySpec((3,), "float32"), ArraySpec((1,), "float32", (-2.0,), (2.0,)), ())


def test_pendulum_is_learned_in_twenty_episodes() -> None:
    small: dict[str, Any] = {
        "policy_sizes": (32, 32),
        "critic_sizes": (64, 64),
        "batch_size": 64,
        "learning_rate": 1e-3,
    }
    values: dict[str, Any] = {
        "atoms": 101,
        "value_min": -1500.0,
        "value_max": 0.0,
        "target_rate": 0.01,
        "policy_delay": 2,
    }
    returns = returns_of(make_xqc(PENDULUM, **small, **values), episodes=20)
    # A random policy gets about -1,200.
    assert np.mean(returns[-4:]) > -400


def returns_of(xqc: XQC, episodes: int, random_steps: int = 256) -> list[float]:
    """The returns of episodes of Pendulum.

    After the random steps, the policy acts with noise, with an update after each step.
    """
    environment, rng = gymnasium.make(PENDULUM.environment_id), np.random.default_rng(1)
    steps: list[tuple[Any, ...]] = []
    returns = []
    for episode in range(episodes):
        observation, _ = environment.reset(seed=episode)
        total, ended = 0.0, False
        while not ended:
            noise = torch.from_numpy(rng.standard_normal((1, 1), np.float32))
            with torch.no_grad():
                action = xqc.policy(torch.from_numpy(observation[None]), noise).numpy()[0]
            if len(steps) < random_steps:
                action = rng.uniform(-2.0, 2.0, 1).astype(np.float32)
            following, reward, _, ended, _ = environment.step(action)
            steps.append((observation, action, np.float32(reward), np.float32(0.99), following))
            observation, total = following, total + float(reward)
            if len(steps) > random_steps:
                chosen = [steps[index] for index in rng.integers(len(steps), size=xqc.batch_size)]
                names = ("observations", "actions", "returns", "bootstrap_discounts", "bootstrap_observations")
                columns = dict(zip(names, map(np.stack, zip(*chosen, strict=True)), strict=True))
                versions = np.ones(xqc.batch_size, np.int64)
                xqc.update(Batch(**columns, policy_versions=versions), ones(xqc.batch_size))
        returns.append(total)
    environment.close()
    return returns
