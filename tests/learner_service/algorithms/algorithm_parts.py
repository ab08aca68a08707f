"""Small algorithms of every kind, batches for them, and a measure of their learning that needs no internals."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actorq.config.run_config import RunConfig
from actorq.domain.limits import LARGEST_NUMBER
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.algorithms import Algorithm, make_algorithm
from learner_service.batch import Batch

# The default of a learner's process. More threads only wait for each other on networks this small.
torch.set_num_threads(1)

# The device of all algorithms made here.
DEVICE = torch.device(os.environ.get("TEST_DEVICE", "cpu"))

# For tests that compare with a reference on the CPU, or that are about the CPU's products.
of_the_cpu = pytest.mark.skipif(DEVICE.type != "cpu", reason="is about the CPU")

ALGORITHMS = ("dqn", "d4pg", "td3", "sac")
# For stored data. Their policies stay near its actions.
STORED_DATA = ("td3bc", "iql")
# With those that support dense networks on vectors only.
ALL_ALGORITHMS = (*ALGORITHMS, *STORED_DATA, "xqc")
BATCH = 32
# The lowest return that D4PG's critic can express here, used to probe all algorithms.
LOWEST = -10.0

DISCRETE = EnvironmentSpec("Discrete-v0", ArraySpec((3,), "float32"), ArraySpec((), "int64"), sizes=(3,))
CONTINUOUS = EnvironmentSpec(
    "Continuous-v0", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", (-1.0, -1.0), (1.0, 1.0)), ()
)
# No two components alike, one of them without 0.
BOUNDED = replace(CONTINUOUS, actions=ArraySpec((2,), "float32", (-2.0, 1.0), (0.5, 4.0)))

_SECTIONS: dict[str, dict[str, Any]] = {
    "dqn": {"hidden_sizes": (32, 32), "learning_rate": 3e-3, "target_update_period": 10},
    "d4pg": {
        "policy_sizes": (32, 32),
        "critic_sizes": (32, 32),
        "policy_learning_rate": 3e-3,
        "critic_learning_rate": 3e-3,
        "target_update_period": 10,
        "value_min": LOWEST,
        "value_max": 10.0,
    },
    "td3": {"hidden_sizes": (32, 32), "learning_rate": 3e-3, "target_rate": 0.05},
    # So little entropy that values and best actions are those of the rewards alone.
    "sac": {"hidden_sizes": (32, 32), "learning_rate": 3e-3, "target_rate": 0.05, "temperature": 1e-3},
    "td3bc": {"hidden_sizes": (32, 32), "learning_rate": 3e-3, "target_rate": 0.05},
    "iql": {"hidden_sizes": (32, 32), "learning_rate": 3e-3, "target_rate": 0.05},
    "xqc": {
        **{"policy_sizes": (32, 32), "critic_sizes": (32, 32), "learning_rate": 3e-3, "target_rate": 0.05},
        **{"learning_rate_end": 1e-4, "learning_rate_updates": 8, "value_min": LOWEST, "value_max": 10.0},
    },
}


def spec_of(name: str) -> EnvironmentSpec:
    """An environment that the algorithm can act in."""
    return DISCRETE if name == "dqn" else CONTINUOUS


def hidden(name: str, *units: int) -> dict[str, Any]:
    """The settings of an algorithm for the units of all hidden layers."""
    return dict.fromkeys(("policy_sizes", "critic_sizes") if name in ("d4pg", "xqc") else ("hidden_sizes",), units)


def make(name: str, spec: EnvironmentSpec | None = None, seed: int = 1, **changes: Any) -> Algorithm:
    """A small algorithm of one-step returns; `changes` are to its section, or to one of the run's own settings."""
    own = ("normalize_observations", "network", "learner", "sparsity")
    run = {key: changes.pop(key) for key in own if key in changes}
    section = {"batch_size": BATCH, "n_step": 1, **_SECTIONS[name], **changes}
    config = RunConfig.model_validate(
        {"algorithm": name, name: section, "seed": seed, "normalize_observations": False, **run}
    )
    return make_algorithm(config, spec or spec_of(name), DEVICE)


def on_device(array: NDArray[Any]) -> torch.Tensor:
    """The array on the algorithms' device."""
    return torch.from_numpy(array).to(DEVICE)


def random_actions(rng: np.random.Generator, spec: EnvironmentSpec, size: int) -> NDArray[Any]:
    """Uniform over all actions."""
    if spec.sizes:
        return rng.integers(spec.acting_size, size=size)
    low, high = spec.actions.bounds()
    return rng.uniform(low, high, (size, *spec.actions.shape)).astype(spec.actions.dtype)


def random_batch(rng: np.random.Generator, spec: EnvironmentSpec, size: int) -> Batch:
    """Random transitions; about a third of them end in a terminal state."""

    def observations() -> NDArray[Any]:
        shape = (size, *spec.policy_observations.shape)
        if spec.observations.dtype == "uint8":
            return rng.integers(256, size=shape, dtype=np.uint8)
        return rng.standard_normal(shape).astype(spec.observations.dtype)

    return Batch(
        observations=observations(),
        actions=random_actions(rng, spec, size),
        returns=rng.standard_normal(size, np.float32),
        bootstrap_discounts=np.where(rng.random(size) < 0.3, 0.0, 0.9).astype(np.float32),
        bootstrap_observations=observations(),
        policy_versions=np.ones(size, np.int64),
    )


def with_windows(rng: np.random.Generator, batch: Batch, n_step: int) -> Batch:
    """The same transitions with random observations in between, and windows of all lengths up to n."""
    size = len(batch.returns)
    steps = rng.integers(1, n_step + 1, size)
    later = np.arange(1, n_step)
    return Batch(
        **batch.columns,
        between_observations=rng.standard_normal((size, n_step - 1, *batch.observations.shape[1:]), np.float32),
        between_discounts=np.where(later < steps[:, None], 0.9**later, 0.0).astype(np.float32),
    )


def spoil(rng: np.random.Generator, numbers: NDArray[Any]) -> None:
    """Replace a fifth of the numbers by the largest and the smallest number that the learner accepts from an actor."""
    places = rng.random(numbers.shape) < 0.2
    numbers[places] = rng.choice([-LARGEST_NUMBER, LARGEST_NUMBER], size=int(places.sum()))


def trained(algorithm: Algorithm, spec: EnvironmentSpec, updates: int = 5) -> Algorithm:
    """The algorithm after some updates on random transitions."""
    rng = np.random.default_rng(7)
    for _ in range(updates):
        algorithm.update(random_batch(rng, spec, algorithm.batch_size), ones())
    return algorithm


def assert_equal_states(actual: Algorithm, expected: Algorithm) -> None:
    """Of the same names, and equal to the last bit."""
    state, other = actual.state(), expected.state()
    assert state.keys() == other.keys()
    for key, value in state.items():
        assert torch.equal(value, other[key]), key


def ones(size: int = BATCH) -> NDArray[np.float32]:
    """Importance weights that change nothing."""
    return np.ones(size, np.float32)


def rows(batch: Batch, chosen: slice) -> Batch:
    """Some rows of a batch."""
    return batch[chosen]


def values(algorithm: Algorithm, observations: NDArray[Any], actions: NDArray[Any]) -> NDArray[np.float32]:
    """The algorithm's values of these actions, float32[B]; the mean of two critics.

    Derived from the priorities of terminal transitions whose return is so low that |TD error| = value - return. The
    algorithm is not changed.
    """
    size = len(observations)
    padded = -(-size // algorithm.batch_size) * algorithm.batch_size
    index = np.arange(padded) % size
    probe = Batch(
        observations=observations[index],
        actions=actions[index],
        returns=np.full(padded, LOWEST, np.float32),
        bootstrap_discounts=np.zeros(padded, np.float32),
        bootstrap_observations=observations[index],
        policy_versions=np.ones(padded, np.int64),
    )
    before = algorithm.state()
    priorities = np.concatenate(
        [
            _probe(algorithm, rows(probe, slice(start, start + algorithm.batch_size)), before)
            for start in range(0, padded, algorithm.batch_size)
        ]
    )
    return priorities[:size] + np.float32(LOWEST)


def _probe(algorithm: Algorithm, batch: Batch, before: dict[str, torch.Tensor]) -> NDArray[np.float32]:
    priorities = algorithm.update(batch, ones(algorithm.batch_size)).priorities
    algorithm.load_state(before)
    return priorities


def act(algorithm: Algorithm, observations: NDArray[Any]) -> NDArray[Any]:
    """What the algorithm's policy does, without noise: actions [B] or [B, *action]."""
    with torch.no_grad():
        output: NDArray[Any] = algorithm.policy(on_device(observations)).cpu().numpy()
    return output.argmax(1) if "discrete" in algorithm.action_spaces else output
