"""Algorithms compute the same on a GPU as on the CPU, and states move between both.

`TEST_DEVICE=cuda` runs all other tests of this folder that make an algorithm on a GPU, too.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorq.config.run_config import RunConfig
from learner_service.algorithms.d4pg import D4PG
from learner_service.algorithms.dqn import DQN
from learner_service.algorithms.gradient import GradientAlgorithm
from learner_service.algorithms.offline.iql import IQL
from learner_service.algorithms.offline.td3bc import TD3BC
from learner_service.algorithms.sac import SAC
from learner_service.algorithms.td3 import TD3
from learner_service.algorithms.xqc import XQC
from learner_service.networks.precision import Shape, measure
from learner_service.policy.policy_graph import snapshot_parameters
from tests.learner_service.algorithms import on_policy_parts
from tests.learner_service.algorithms.algorithm_parts import hidden, ones, random_batch, spec_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CPU, GPU = torch.device("cpu"), torch.device("cuda")
CLASSES: dict[str, type[GradientAlgorithm]] = {
    "dqn": DQN,
    "d4pg": D4PG,
    "td3": TD3,
    "sac": SAC,
    "xqc": XQC,
    "td3bc": TD3BC,
    "iql": IQL,
}
# So wide that hidden layers may be in bfloat16.
BATCH, SIZES = 256, (256, 256)


@pytest.fixture(params=CLASSES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make(name: str, device: torch.device, precision: str = "fp32", **run: Any) -> GradientAlgorithm:
    """An algorithm with the same noise on every device and in every update."""

    def noise(self: GradientAlgorithm, rows: int) -> Tensor:
        shape = rows, math.prod(spec_of(name).actions.shape)
        return torch.randn(shape, generator=torch.Generator().manual_seed(rows)).to(device)

    section = {"batch_size": BATCH, "n_step": 1, **hidden(name, *SIZES)}
    given = {"algorithm": name, name: section, "seed": 1, "learner": {"precision": precision}, **run}
    algorithm: type[GradientAlgorithm] = type("SameNoise", (CLASSES[name],), {"noise": noise})
    return algorithm(RunConfig.model_validate(given), spec_of(name), device)


def compare(
    algorithm: GradientAlgorithm, other: GradientAlgorithm, name: str, tolerance: float, updates: int = 12
) -> None:
    """Both make the same updates. Their priorities and policies are to differ by at most this share of their norms."""
    rng = np.random.default_rng(0)
    for _ in range(updates // 4):
        batch, weights = random_batch(rng, spec_of(name), 4 * BATCH), rng.random(4 * BATCH, np.float32)
        expected, losses = algorithm.update(batch, weights), other.update(batch, weights)
        assert distance(losses.priorities, expected.priorities) <= tolerance
        assert losses.loss == pytest.approx(expected.loss, rel=tolerance)
    published = snapshot_parameters(other.policy)
    for key, value in snapshot_parameters(algorithm.policy).items():
        assert distance(published[key], value) <= tolerance, key


def distance(array: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The norm of the difference, relative to the norm of the expected array."""
    return float(np.linalg.norm(array - expected) / max(float(np.linalg.norm(expected)), 1e-3))


@pytest.mark.parametrize("method", ["dense", "rigl"])
def test_updates_are_those_of_the_cpu(name: str, method: str) -> None:
    if method not in CLASSES[name].sparsity_methods:
        pytest.skip(f"networks of {name} are dense")
    sparsity = {"method": method, "period_updates": 50}
    cpu, cuda = (make(name, device, sparsity=sparsity) for device in (CPU, GPU))
    compare(cpu, cuda, name, tolerance=2e-3)


@pytest.mark.parametrize("updates", [0, 4])
def test_a_state_moves_between_devices(name: str, updates: int) -> None:
    cpu, cuda = (make(name, device) for device in (CPU, GPU))
    batch = random_batch(np.random.default_rng(1), spec_of(name), 4 * BATCH)
    for algorithm, other in ((cuda, cpu), (cpu, cuda)):
        if updates:
            algorithm.update(batch, ones(4 * BATCH))
        state = {key: torch.from_numpy(value.cpu().numpy().copy()) for key, value in algorithm.state().items()}
        other.load_state(state)
        for key, value in other.state().items():
            assert key == "generator" or torch.equal(value.cpu(), state[key]), key
        compare(algorithm, other, name, tolerance=2e-3)


def test_wide_layers_in_bfloat16_are_close_to_float32(name: str) -> None:
    fp32, bf16 = (make(name, GPU, precision) for precision in ("fp32", "bf16"))
    assert (fp32.precision, bf16.precision) == ("fp32", "bf16")
    compare(fp32, bf16, name, tolerance=0.1, updates=4)


def test_auto_times_the_products_of_the_gpu() -> None:
    seconds = measure(Shape(BATCH, *SIZES), GPU)
    assert 0.0 < seconds.fp32 < 0.1
    assert 0.0 < seconds.bf16 < 0.1


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("on_policy", on_policy_parts.CLASSES)
def test_the_probabilities_of_rollouts_are_those_of_the_cpu(on_policy: str, kind: str) -> None:
    spec, rng = on_policy_parts.SPECS[kind], np.random.default_rng(0)
    config = RunConfig.model_validate({"environment": "Small-v0", "algorithm": on_policy, "seed": 1})
    cpu, cuda = (on_policy_parts.CLASSES[on_policy](config, spec, device) for device in (CPU, GPU))
    on_policy_parts.trained(cpu, spec)
    cuda.load_state(cpu.state())
    steps = on_policy_parts.random_trajectories(rng, spec, 64, 1)
    rows = steps.observations[:-1, 0], steps.actions[:, 0]
    expected = cpu.log_probabilities(*rows, {})
    np.testing.assert_allclose(cuda.log_probabilities(*rows, {}), expected, rtol=1e-3, atol=1e-4)
    earlier = {key: torch.from_numpy(value) for key, value in snapshot_parameters(cpu.policy).items()}
    on_policy_parts.trained(cuda, spec)
    np.testing.assert_allclose(cuda.log_probabilities(*rows, earlier), expected, rtol=1e-3, atol=1e-4)
