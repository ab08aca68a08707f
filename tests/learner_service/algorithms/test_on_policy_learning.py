"""PPO and IMPALA solve small tasks, even if the actors' policy is old and rounded."""

from typing import Any

import numpy as np
import pytest

from learner_service.algorithms.policy_gradient import PolicyGradient
from tests.learner_service.algorithms.algorithm_parts import BOUNDED, DISCRETE
from tests.learner_service.algorithms.on_policy_parts import CLASSES, greedy, make
from tests.learner_service.algorithms.small_tasks import BEST, CONTEXTS, STATES, Chain, bandit, collect

# Versions between the policy that acts and the learner's, and the temperature of its actions.
STALE = {"newest": (0, 1.0), "old": (3, 1.0), "old and noisy": (3, 1.5)}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"discount": 0.9, "learning_rate": 1e-2, "batch_size": 64},
    "impala": {"discount": 0.9, "learning_rate": 1e-2, "batch_size": 128, "max_gradient_norm": 1.0},
}


@pytest.fixture(params=CLASSES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("kind", STALE)
def test_a_chain_is_learned(name: str, kind: str) -> None:
    """At the end the policy moves forward in each state, and values equal the discounted reward."""
    lag, temperature = STALE[kind]
    learner, actor = (make(name, DISCRETE, entropy_cost=0.003, **SETTINGS[name]) for _ in range(2))
    chain, rng, states = Chain(32), np.random.default_rng(0), [learner.state()]
    for _ in range(40 if name == "ppo" else 80):
        actor.load_state(states[-1 - min(lag, len(states) - 1)])
        learner.learn([collect(actor, chain, rng, 16, temperature)], 0.0)
        states.append(learner.state())
    assert greedy(learner, STATES).tolist() == [2] * 5
    np.testing.assert_allclose(values(learner), 0.9 ** np.arange(4, -1, -1), atol=0.1)


def values(algorithm: PolicyGradient) -> Any:
    """Of the states of the chain."""
    rollout = collect(algorithm, Chain(1), np.random.default_rng(0), 1)
    observations = np.stack([STATES, STATES])
    return algorithm.present_values(rollout.with_columns(observations=observations))[0]


@pytest.mark.parametrize("kind", ["newest", "old and noisy"])
def test_a_bandit_of_continuous_actions_is_learned(name: str, kind: str) -> None:
    """The mean comes within 0.12 of the best action, in units of half its range, and the deviation falls."""
    lag, temperature = STALE[kind]
    learner, actor = (make(name, BOUNDED, **{**SETTINGS[name], "learning_rate": 3e-3}) for _ in range(2))
    rng, states = np.random.default_rng(0), [learner.state()]
    for _ in range(60 if name == "ppo" else 200):
        actor.load_state(states[-1 - min(lag, len(states) - 1)])
        learner.learn([bandit(actor, rng, 4, 128, temperature)], 0.0)
        states.append(learner.state())
    low, high = BOUNDED.actions.bounds()
    actions = 2 * (greedy(learner, CONTEXTS) - low) / (high - low) - 1
    np.testing.assert_allclose(actions, BEST, atol=0.12)
    assert float(dict(learner.policy.named_parameters())["shared_log_std"].detach().max()) < -0.5
