"""Structured policies: equal fan-in, and layers that become narrow."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.algorithms.trained import Minimizer
from learner_service.kernels.parameters import FlatParameters
from learner_service.networks import DeterministicPolicy, LayerNormPolicy, QNetwork
from learner_service.sparsity import NetworkSparsity, Topology
from learner_service.sparsity.evolution import by_gradient
from learner_service.sparsity.structured import Structured
from learner_service.sparsity.trace import trace
from learner_service.sparsity.weights import Weight, maskable_weights

# The default of a learner's process. More threads only wait for each other on networks this small.
torch.set_num_threads(1)

# Observations and actions of HalfCheetah, Hopper and InvertedPendulum.
SIZES = [(17, 6, 0.9), (17, 6, 0.96), (11, 3, 0.98), (4, 1, 0.9), (17, 6, 0.99)]


def spec(observations: int, actions: int) -> EnvironmentSpec:
    bounds = ((-1.0,) * actions, (1.0,) * actions)
    return EnvironmentSpec("Arms-v0", ArraySpec((observations,), "float32"), ArraySpec((actions,), "float32", *bounds))


class Training:
    """A policy of 256-256 that learns to do something with its observations; masks change every second step."""

    def __init__(self, observations: int, actions: int, sparsity: float, **settings: Any) -> None:
        torch.manual_seed(0)
        environment = spec(observations, actions)
        self.policy = DeterministicPolicy(environment, (256, 256))
        self.parameters = FlatParameters(self.policy)
        self.weights = maskable_weights(self.policy)
        tree = {"method": "rlx2", "actor": sparsity, "structured": True, "period_updates": 2, **settings}
        config = RunConfig.model_validate({"algorithm": "td3", "sparsity": tree, "max_environment_steps": 60})
        network_sparsity = NetworkSparsity(config, environment, batch_size=256)
        topology = network_sparsity.topology("actor", self.parameters)
        assert isinstance(topology, Topology)
        self.topology = topology
        self.cost = network_sparsity.cost("actor", self.parameters, topology)
        self.minimizer = Minimizer(self.parameters, 1e-3, topology)
        self.inputs = torch.randn(64, observations)
        self.outputs = torch.tanh(self.inputs @ torch.randn(observations, actions))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.minimizer.minimize((self.policy(self.inputs) - self.outputs).square().mean())

    def masks(self) -> list[Tensor]:
        return [weight.of(self.topology.mask) for weight in self.weights]

    def widths(self) -> list[int]:
        """Living units of each layer."""
        return [int(mask.any(1).sum()) for mask in self.masks()]


def fan_ins(mask: Tensor) -> set[float]:
    """How many inputs living units have."""
    return set(mask.sum(1)[mask.any(1)].tolist())


@pytest.mark.parametrize(("observations", "actions", "sparsity"), SIZES)
def test_all_living_units_of_a_layer_have_equally_many_inputs_and_all_of_them_live(
    observations: int, actions: int, sparsity: float
) -> None:
    training = Training(observations, actions, sparsity)
    total = sum(weight.size for weight in training.weights)
    for _ in range(12):
        masks = training.masks()
        for mask in masks:
            assert len(fan_ins(mask)) == 1
        for below, above in pairwise(masks):
            assert not above[:, ~below.any(1)].any()
        assert masks[-1].any(1).all()
        active = sum(training.topology.active)
        assert active <= round((1 - sparsity) * total) + 1
        assert active > (1 - sparsity) * total - sum(training.widths())
        training.steps(3)


@pytest.mark.parametrize(("observations", "actions", "sparsity"), SIZES)
def test_hidden_layers_become_narrow(observations: int, actions: int, sparsity: float) -> None:
    """From 256 to less than half, where nearly half of the weights between living units are active."""
    training = Training(observations, actions, sparsity)
    widths = [training.widths()]
    for _ in range(20):
        training.steps(3)
        widths.append(training.widths())
    assert all(after <= before for one, two in pairwise(widths) for before, after in zip(one, two, strict=True))
    first, second, _ = widths[-1]
    assert 32 <= first < 128
    assert 32 <= second < 128
    living = first * observations + first * second + second * actions
    assert sum(training.topology.active) > 0.38 * living
    assert training.cost().ratio < 1.05 * (1 - sparsity)


def test_ablated_units_stay_dead_and_the_remaining_network_computes_the_same() -> None:
    training = Training(17, 6, 0.9)
    training.steps(6)
    before = [mask.any(1) for mask in training.masks()]
    training.steps(30)
    after = [mask.any(1) for mask in training.masks()]
    assert all(not (later & ~earlier).any() for earlier, later in zip(before, after, strict=True))
    first, second = (training.policy.get_submodule(f"torso.{index}") for index in (0, 2))
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    expected = training.policy(training.inputs)
    with torch.no_grad():
        hidden = torch.relu(training.inputs @ first.weight[after[0]].T + first.bias[after[0]])
        hidden = torch.relu(hidden @ second.weight[after[1]][:, after[0]].T + second.bias[after[1]])
        head = training.policy.head
        actions = torch.tanh(hidden @ head.weight[:, after[1]].T + head.bias)
    torch.testing.assert_close(actions, expected, rtol=1e-5, atol=1e-6)


def test_units_with_the_fewest_salient_weights_are_ablated() -> None:
    """Of four hidden units of two inputs each one has small weights and no gradient anywhere."""
    hidden, head = Weight("hidden", 0, 16, 16), Weight("head", 256, 2, 16)
    layers = Structured((hidden, head), (32, 4), (None, 0))
    mask, generator = torch.ones(288), torch.Generator().manual_seed(0)
    layers.initial(mask, generator)
    vector = mask * (1 + torch.rand(288, generator=generator))
    gradient = 1 + torch.rand(288, generator=generator)
    hidden.of(vector)[[3, 7]] *= 1e-3
    hidden.of(gradient)[[3, 7]] = 0.0
    # A quarter of the weights, so at most an eighth of the units.
    layers.change(mask, vector, gradient, 0.25, by_gradient)
    gone = (~hidden.of(mask).any(1)).nonzero().flatten().tolist()
    assert gone == [3, 7]
    assert not head.of(mask)[:, [3, 7]].any()


def test_masks_of_set_are_structured_too() -> None:
    training = Training(17, 6, 0.9, method="set")
    training.steps(20)
    assert all(len(fan_ins(mask)) == 1 for mask in training.masks())
    assert training.widths()[0] < 200


def test_layers_are_followed_through_functions_of_single_units_only() -> None:
    environment = spec(5, 2)
    sources = {
        name: each.source for name, each in trace(DeterministicPolicy(environment, (8, 9)), torch.zeros(1, 5)).items()
    }
    assert sources == {"torso.0": None, "torso.2": "torso.0", "head": "torso.2"}
    sources = {
        name: each.source for name, each in trace(LayerNormPolicy(environment, (8, 9, 7)), torch.zeros(1, 5)).items()
    }
    assert sources == {"torso.0": None, "torso.3": None, "torso.5": "torso.3", "head": "torso.5"}
    discrete = EnvironmentSpec("Levers-v0", ArraySpec((5,), "float32"), ArraySpec((), "int64"), sizes=(4,))
    sources = {name: each.source for name, each in trace(QNetwork(discrete, (8,), True), torch.zeros(1, 5)).items()}
    assert sources == {"torso.0": None, "advantage": "torso.0", "value": "torso.0"}


class Residual(nn.Module):
    """A hidden layer that the next layer and a sum read. Only the head reads the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.first(x))
        h = self.last(self.relu(self.inner(h))) + h
        outputs: Tensor = self.head(self.relu(h))
        return outputs


def test_units_that_something_else_reads_too_are_no_source() -> None:
    sources = {name: each.source for name, each in trace(Residual(), torch.randn(2, 3)).items()}
    assert sources == {"first": None, "inner": None, "last": "inner", "head": None}


def test_a_layer_that_is_called_twice_has_no_source_and_is_no_source() -> None:
    class Twice(Residual):
        def forward(self, x: Tensor) -> Tensor:
            h = self.relu(self.first(x))
            h = self.relu(self.inner(self.relu(self.inner(h))))
            outputs: Tensor = self.head(self.relu(self.last(h)))
            return outputs

    traced = trace(Twice(), torch.randn(2, 3))
    assert {name: each.source for name, each in traced.items()} == {
        "first": None,
        "inner": None,
        "last": None,
        "head": "last",
    }
    assert traced["inner"].positions == 2


def test_tracing_leaves_a_network_and_the_generators_alone() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 2))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    traced = trace(network, torch.zeros(1, 3))
    assert torch.equal(torch.rand(2), expected)
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert {name: each.source for name, each in traced.items()} == {"0": None, "3": None}
