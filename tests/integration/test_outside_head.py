"""A distribution of actions from another package: head, sampler and divergence. No code of ActorQ names it."""

import math
import threading
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from actor_service.acting.behavior import BehaviorPolicy
from actor_service.acting.behaviors import SAMPLERS, behavior_policy
from actor_service.acting.collector import SegmentCollector
from actor_service.acting.turns import PolicyTurns
from actor_service.environments import make_environments
from actor_service.policies.policy import OnnxPolicy, PolicySlot, load_policy
from actorq.config.run_config import RunConfig
from actorq.domain.columns import LOG_PROBABILITIES
from actorq.domain.signature import Role
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration
from actorq.errors import UserError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import scheme_named
from actorq.quantization.schemes.base import Plan
from learner_service.algorithms.ppo import PPO
from learner_service.batch import Batch
from learner_service.networks.distributions import DiagonalGaussianPolicy
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from quantizer_service.emission.divergence import DIVERGENCES
from quantizer_service.emission.fidelity import measure
from quantizer_service.emission.reference import Reference
from tests.actor_service.actor_policies import as_policy

OUTPUTS = ("center", "log_scale")
N, LENGTH = 4, 8


class LaplacePolicy(DiagonalGaussianPolicy):
    """A Laplace distribution of independent components."""

    output_names: ClassVar[tuple[str, ...]] = (Role.ACTIONS, *OUTPUTS)

    @staticmethod
    def log_probabilities(actions: Tensor, center: Tensor, log_scale: Tensor) -> Tensor:
        return torch.sum(-(actions - center).abs() / log_scale.exp() - log_scale - math.log(2), 1)

    @staticmethod
    def entropies(center: Tensor, log_scale: Tensor) -> Tensor:
        return torch.zeros_like(center[:, 0]) + torch.sum(log_scale + 1 + math.log(2))


class LaplacePPO(PPO):
    """PPO with that head."""

    name = "laplace-ppo"
    heads: ClassVar[Any] = {**PPO.heads, "continuous": LaplacePolicy}
    sampling = "laplace"


class LaplaceSampler(BehaviorPolicy):
    """Draws its actions."""

    needs = OUTPUTS

    def __init__(self, spec: EnvironmentSpec, environments: int, rng: np.random.Generator) -> None:
        self._rng, self._bounds = rng, spec.actions.bounds()
        self._drawn = np.zeros((environments, spec.components), np.float32)
        self._told = np.zeros(environments, np.float32)
        self.columns = {"actions": self._drawn, LOG_PROBABILITIES: self._told}

    def __call__(self, policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
        policy(observations)
        center, log_scale = (policy.outputs[name] for name in OUTPUTS)
        self._drawn[:] = center + np.exp(log_scale) * self._rng.laplace(size=center.shape)
        self._told[:] = (-np.abs(self._drawn - center) / np.exp(log_scale) - log_scale - np.log(2)).sum(1)
        low, high = self._bounds
        return np.clip(self._drawn, -1, 1) * (high - low) / 2 + (high + low) / 2


def divergence(center: Any, log_scale: Any, other: Any, other_log_scale: Any) -> NDArray[np.float64]:
    """KL of two Laplace distributions."""
    apart, ratio = np.abs(center - other), np.exp(log_scale - other_log_scale)
    found: NDArray[np.float64] = (
        ratio * np.exp(-apart / np.exp(log_scale)) + apart / np.exp(other_log_scale) - np.log(ratio) - 1
    ).sum(1)
    return found


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SAMPLERS, "laplace", LaplaceSampler)
    monkeypatch.setitem(DIVERGENCES, OUTPUTS, divergence)


@pytest.fixture
def algorithm() -> LaplacePPO:
    environments = make_environments("Pendulum-v1", 1)
    environments.close()
    config = RunConfig.model_validate({"environment": "Pendulum-v1", "algorithm": "ppo", "seed": 3})
    return LaplacePPO(config, environments.spec, torch.device("cpu"))


def emitted(algorithm: LaplacePPO, scheme: str) -> tuple[Any, Any]:
    """The report on the policy in a scheme, and the policy."""
    graph, parameters = export_policy_graph(algorithm.policy, algorithm._spec), snapshot_parameters(algorithm.policy)
    plan = Plan(Graph.parse(graph), scheme_named(scheme))
    seen = {"observations": np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)}
    expected, statistics = Reference(plan.graph).observe(parameters, seen, plan.observed)
    emission = plan.emit(parameters, statistics, "run", 1)
    return measure(emission, expected, seen, graph.signature), as_policy(emission.model)


def test_a_head_needs_a_policy_a_sampler_and_a_divergence(algorithm: LaplacePPO) -> None:
    assert 0 < emitted(algorithm, "int8")[0].mean_kl < 1e-2

    environments, slot = make_environments("Pendulum-v1", N), PolicySlot()
    exploration = Exploration((), (), sampling=algorithm.sampling)
    explore = behavior_policy(environments.spec, exploration, N, np.random.default_rng(1))
    slot.put(load_policy(emitted(algorithm, "fp32")[1], environments.spec, N, explore.needs))
    collector = SegmentCollector(
        environments, PolicyTurns(slot), explore, LENGTH, 1, columns=explore.columns, sampled=True
    )
    segment = collector.collect(threading.Event())
    environments.close()
    assert segment is not None
    segment.check(environments.spec)
    seen, drawn = (segment.columns[name].reshape(-1, size) for name, size in (("observations", 3), ("actions", 1)))
    again = algorithm.log_probabilities(seen[: len(drawn)], drawn, {})
    np.testing.assert_allclose(np.asarray(segment.columns[LOG_PROBABILITIES], np.float32).ravel(), again, atol=1e-4)


def test_the_outside_head_learns_rewarded_actions(algorithm: LaplacePPO) -> None:
    rng = np.random.default_rng(2)
    for _ in range(8):
        observations = rng.standard_normal((33, 16, 3)).astype(np.float32)
        seen = torch.from_numpy(observations[:-1].reshape(-1, 3))
        with torch.no_grad():
            center, log_scale = algorithm.policy.distribution(seen)
        actions = (center + log_scale.exp() * torch.from_numpy(rng.laplace(size=center.shape))).float().detach().numpy()
        ends = np.ones((32, 16), np.bool_)
        steps = Batch(
            observations=observations,
            actions=actions.reshape(32, 16, 1),
            rewards=(actions > 0).astype(np.float32).reshape(32, 16),
            terminated=ends,
            truncated=~ends,
            valid=ends,
            log_probabilities=algorithm.log_probabilities(seen.numpy(), actions, {}).reshape(32, 16),
        )
        algorithm.learn([steps], 0.0)
    with torch.no_grad():
        assert float(algorithm.policy.distribution(seen)[0].mean()) > 0.5


def test_an_actor_without_the_sampler_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, algorithm: LaplacePPO
) -> None:
    monkeypatch.delitem(SAMPLERS, "laplace")
    exploration = Exploration((), (), sampling="laplace")
    with pytest.raises(UserError, match=r"'laplace'.*clipped, squashed"):
        behavior_policy(algorithm._spec, exploration, N, np.random.default_rng(1))
