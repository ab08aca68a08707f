"""A topology changes as in the papers: dropped weights, grown weights, times and amounts."""

import math

import pytest
import torch
from torch import Tensor, nn

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.algorithms.trained import Minimizer
from learner_service.kernels.parameters import FlatParameters
from learner_service.sparsity import NetworkSparsity, Topology
from learner_service.sparsity.evolution import Unstructured, at_random, by_gradient
from learner_service.sparsity.topology import CosineSchedule
from learner_service.sparsity.weights import Weight, maskable_weights

# The default of a learner's process. More threads only wait for each other on networks this small.
torch.set_num_threads(1)

SPEC = EnvironmentSpec("Arms-v0", ArraySpec((6,), "float32"), ArraySpec((2,), "float32", (-1.0,), (1.0,)), ())
END = 10


def test_a_weight_is_kept_if_it_is_large_and_grown_where_the_gradient_is() -> None:
    weight = Weight("layer", 0, 2, 5)
    vector = torch.tensor([0.5, -4.0, 0.1, 3.0, 0.0, 0.0, -0.2, 0.0, 0.0, 2.0])
    mask = (vector != 0).float()
    gradient = torch.tensor([9.0, 9.0, 0.3, 9.0, -0.4, 0.1, 0.2, -7.0, 0.0, 9.0])
    # Half of 6: of those that are left out, 0.5, 0.1 and -0.2, the first is grown again.
    Unstructured((weight,), (6,)).change(mask, vector, gradient, 0.5, by_gradient)
    assert mask.tolist() == [1, 1, 0, 1, 1, 0, 0, 1, 0, 1]


def test_random_growth_drops_by_size_only() -> None:
    weight = Weight("layer", 0, 10, 20)
    vector = torch.zeros(200)
    vector[:60] = torch.arange(1.0, 61.0)
    grown = torch.zeros(200)
    for seed in range(50):
        mask = (vector != 0).float()
        generator = torch.Generator().manual_seed(seed)
        Unstructured((weight,), (60,)).change(mask, vector, torch.full((200,), torch.nan), 0.5, at_random(generator))
        assert mask.sum() == 60
        assert mask[30:60].all()
        grown += mask
    # 30 of 170 places, 50 times: 8.8 on average, 2.7 standard deviation.
    assert 0 < grown[:30].mean() < 17.6
    assert grown[60:].max() < 8.8 + 5 * 2.7


def test_shares_fall_as_a_cosine_until_the_end() -> None:
    schedule = CosineSchedule(period=10, replaced=0.5, end=40)
    due = {after: share for after in range(1, 100) if (share := schedule.share(after - 1, after))}
    assert due == pytest.approx({t: 0.25 * (1 + math.cos(math.pi * t / 40)) for t in (10, 20, 30)})


def test_a_network_that_steps_less_often_changes_as_often_per_update() -> None:
    schedule = CosineSchedule(period=10, replaced=0.5, end=1000)
    every_third = [after for after in range(3, 100, 3) if schedule.share(after - 3, after)]
    assert every_third == [12, 21, 30, 42, 51, 60, 72, 81, 90]


def test_updates_of_a_run_are_those_that_the_rate_limiter_admits() -> None:
    config = RunConfig.model_validate(
        {"algorithm": "td3", "max_environment_steps": 300_000, "rate_limiter": {"samples_per_insert": 128.0}}
    )
    assert config.planned_updates(batch_size=256) == 150_000


class Regression:
    """A network of one hidden layer, its target and minimizer, with masks that change every third step."""

    def __init__(self, method: str = "rigl") -> None:
        torch.manual_seed(0)
        self.module, self.target = (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(2))
        self.parameters, target = FlatParameters(self.module), FlatParameters(self.target)
        config = RunConfig.model_validate(
            {"sparsity": {"method": method, "actor": 0.5, "period_updates": 3}, "algorithm": "td3"}
        )
        topology = NetworkSparsity(config, SPEC, batch_size=1).topology("actor", self.parameters, target)
        assert isinstance(topology, Topology)
        self.topology = topology
        self.minimizer = Minimizer(self.parameters, 0.01, topology)
        self.inputs = torch.randn(16, 6)

    def step(self) -> None:
        self.minimizer.minimize((self.module(self.inputs) - self.inputs[:, :2]).square().mean())

    def dense_gradient(self) -> Tensor:
        self.parameters.gradient.zero_()
        torch.autograd.backward((self.module(self.inputs) - self.inputs[:, :2]).square().mean())
        return self.parameters.gradient.clone()


def test_a_change_makes_no_step_and_grown_weights_start_at_0() -> None:
    run = Regression()
    run.step()
    run.step()
    before, mask, gradient = run.minimizer.state(), run.topology.mask.clone(), run.dense_gradient()
    run.step()
    after = run.minimizer.state()
    assert after["step"] == before["step"] == 2
    kept = (mask * run.topology.mask).bool()
    assert torch.equal(after["parameters"][kept], before["parameters"][kept])
    assert torch.equal(after["exp_avg"][kept], before["exp_avg"][kept])
    grown, dropped = (run.topology.mask > mask), (run.topology.mask < mask)
    assert grown.any()
    assert dropped.any()
    for part in ("parameters", "exp_avg", "exp_avg_sq"):
        assert not after[part][~kept].any()
    # The best of each layer that were not active, by the dense gradient of this very step.
    for weight in maskable_weights(run.module):
        inactive = weight.of(mask) == 0
        left = inactive & (weight.of(run.topology.mask) == 0)
        assert weight.of(gradient).abs()[weight.of(grown)].min() >= weight.of(gradient).abs()[left].max()
    run.step()
    assert run.minimizer.state()["parameters"][grown].all()


def test_targets_are_masked_with_their_network() -> None:
    run = Regression()
    for _ in range(4):
        run.step()
    values = torch.cat([parameter.detach().flatten() for parameter in run.target.parameters()])
    inactive = run.topology.mask == 0
    assert not values[inactive].any()


def test_masked_gradients_are_the_ones_that_are_clipped() -> None:
    torch.manual_seed(0)
    module = nn.Linear(6, 8)
    parameters = FlatParameters(module)
    config = RunConfig.model_validate({"sparsity": {"method": "static", "actor": 0.5}, "algorithm": "td3"})
    topology = NetworkSparsity(config, SPEC, batch_size=1).topology("actor", parameters)
    minimizer = Minimizer(parameters, 0.01, topology, max_gradient_norm=1e-3)
    minimizer.minimize(module(torch.randn(16, 6)).square().sum())
    assert torch.linalg.vector_norm(parameters.gradient) == pytest.approx(1e-3, rel=1e-3)


def test_biases_and_normalization_stay_dense() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 4))
    parameters = FlatParameters(module)
    config = RunConfig.model_validate({"sparsity": {"method": "static", "actor": 0.9}, "algorithm": "td3"})
    topology = NetworkSparsity(config, SPEC, batch_size=1).topology("actor", parameters)
    assert topology is not None
    sparse = torch.zeros(len(parameters.vector), dtype=torch.bool)
    for weight in maskable_weights(module):
        sparse[weight.start : weight.start + weight.size] = True
    assert topology.mask[~sparse].all()
    assert topology.mask[sparse].sum() == 8
