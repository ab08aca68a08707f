"""Small on-policy algorithms, rollouts for them, and small tasks in which they act themselves."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from learner_service.algorithms.impala import IMPALA
from learner_service.algorithms.policy_gradient import PolicyGradient
from learner_service.algorithms.ppo import PPO
from learner_service.batch import Batch
from tests.learner_service.algorithms.algorithm_parts import BOUNDED, CONTINUOUS, DEVICE, DISCRETE, on_device

torch.set_num_threads(1)

CLASSES: Mapping[str, type[PolicyGradient]] = {"ppo": PPO, "impala": IMPALA}
SPECS = {"discrete": DISCRETE, "continuous": CONTINUOUS, "bounded": BOUNDED}
T, N = 16, 8
_SMALL = {"hidden_sizes": (32, 32), "value_sizes": (32, 32), "learning_rate": 3e-3}
_SECTIONS: dict[str, dict[str, Any]] = {
    "ppo": {"batch_size": 32, "epochs": 4, "rollout_size": 10_000},
    "impala": {"batch_size": 64, "rollout_size": 10_000},
}
# Settings of the run, not of the algorithm.
OF_THE_RUN = ("normalize_observations", "network", "learner", "sparsity")


def make(name: str, spec: EnvironmentSpec = DISCRETE, seed: int = 1, **changes: Any) -> PolicyGradient:
    """A small algorithm; `changes` are to its section, or to one of the run's own settings."""
    run = {key: changes.pop(key) for key in OF_THE_RUN if key in changes}
    section = {**_SMALL, **_SECTIONS[name], **changes}
    # An environment without a preset, so that all other settings are the defaults.
    given = {"environment": "Small-v0", "algorithm": name, name: section, "seed": seed}
    config = RunConfig.model_validate({**given, **run})
    return CLASSES[name](config, spec, DEVICE)


def random_trajectories(
    rng: np.random.Generator, spec: EnvironmentSpec, steps: int = T, environments: int = N
) -> Batch:
    """Random observations, actions and rewards. Some episodes end, each with a reset after it."""
    rows = steps, environments
    shape = (steps + 1, environments, *spec.policy_observations.shape)
    if spec.observations.dtype == "uint8":
        observations: NDArray[Any] = rng.integers(256, size=shape, dtype=np.uint8)
    else:
        observations = rng.standard_normal(shape).astype(spec.observations.dtype)
    ends = rng.random(rows) < 0.15
    ends[1:] &= ~ends[:-1]
    valid = np.ones(rows, np.bool_)
    valid[1:] = ~ends[:-1]
    terminated = ends & (rng.random(rows) < 0.5)
    actions: NDArray[Any] = rng.standard_normal((*rows, *spec.actions.shape)).astype(np.float32)
    if spec.sizes:
        actions = rng.integers(spec.acting_size, size=rows)
    return Batch(
        observations=observations,
        actions=actions,
        rewards=rng.standard_normal(rows).astype(np.float32),
        terminated=terminated,
        truncated=ends & ~terminated,
        valid=valid,
        log_probabilities=(-1.5 + 0.3 * rng.standard_normal(rows)).astype(np.float32),
        policy_versions=np.ones(rows, np.int64),
        senders=np.zeros(rows, np.uint64),
    )


def random_rollout(rng: np.random.Generator, spec: EnvironmentSpec) -> list[Batch]:
    """Two segments."""
    return [random_trajectories(rng, spec) for _ in range(2)]


def as_acted(algorithm: PolicyGradient, steps: Batch) -> Batch:
    """The same trajectories with the probabilities of the present policy."""
    rows = steps.rewards.shape
    seen, actions = (each.reshape(-1, *each.shape[2:]) for each in (steps.observations[:-1], steps.actions))
    return steps.with_columns(log_probabilities=algorithm.log_probabilities(seen, actions, {}).reshape(rows))


def trained(algorithm: PolicyGradient, spec: EnvironmentSpec, rollouts: int = 2) -> PolicyGradient:
    """The algorithm after some random rollouts."""
    rng = np.random.default_rng(7)
    for _ in range(rollouts):
        algorithm.learn(random_rollout(rng, spec), 0.0)
    return algorithm


def assert_equal_states(actual: PolicyGradient, expected: PolicyGradient) -> None:
    """Of the same names, and equal to the last bit."""
    state, other = actual.state(), expected.state()
    assert state.keys() == other.keys()
    for key, value in state.items():
        assert torch.equal(value, other[key]), key


def greedy(algorithm: PolicyGradient, observations: NDArray[Any]) -> NDArray[Any]:
    """Actions without noise: [B] or [B, *action]."""
    with torch.no_grad():
        outputs: Any = algorithm.policy(on_device(observations))
    values: NDArray[Any] = (outputs if isinstance(outputs, torch.Tensor) else outputs[0]).cpu().numpy()
    return values.argmax(1) if isinstance(outputs, torch.Tensor) else values


def draw(
    algorithm: PolicyGradient, observations: NDArray[Any], rng: np.random.Generator, temperature: float = 1.0
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Actions of a behaviour policy, and the logarithms of their probabilities: [B, *action] and float32[B].

    temperature: divides logits, and multiplies standard deviations.
    """
    with torch.no_grad():
        outputs = algorithm.policy(on_device(observations))
    if isinstance(outputs, torch.Tensor):
        logarithms = torch.log_softmax(outputs / temperature, 1).cpu().numpy()
        actions = (logarithms + rng.gumbel(size=logarithms.shape)).argmax(1)
        return actions, logarithms[np.arange(len(actions)), actions]
    mean, std = outputs[1].cpu().numpy(), temperature * np.exp(outputs[2].cpu().numpy())
    noise = rng.standard_normal(mean.shape, np.float32)
    densities = -0.5 * noise**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    return (mean + std * noise).astype(np.float32), densities.sum(1).astype(np.float32)
