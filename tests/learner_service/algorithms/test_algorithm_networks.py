"""What every algorithm makes of a network that a user brings."""

import pytest
import torch
from torch import nn

from learner_service.algorithms import Algorithm, GradientAlgorithm
from tests.learner_service.algorithms.algorithm_parts import ALGORITHMS, make, spec_of, trained


@pytest.fixture(params=ALGORITHMS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def networks(algorithm: Algorithm) -> list[tuple[nn.Module, nn.Module]]:
    """All networks with their targets."""
    assert isinstance(algorithm, GradientAlgorithm)
    return [(trained.network, trained.target) for trained in algorithm.networks.values()]


def test_target_networks_start_as_copies_including_random_buffers(name: str) -> None:
    for network, target in networks(make(name, network="own_algorithms:random_features")):
        values, copied = network.state_dict(), target.state_dict()
        assert any("projections" in key for key in values)
        assert all(torch.equal(copied[key], value) for key, value in values.items())


def frozen_weights(algorithm: Algorithm) -> list[torch.Tensor]:
    """Of the layers that are not to be trained, of all networks."""
    return [
        module.weight.detach().clone()
        for pair in networks(algorithm)
        for network in dict.fromkeys(pair)
        for module in network.modules()
        if isinstance(module, nn.Linear) and module.weight.shape == (16, 3)
    ]


def test_frozen_layers_are_not_changed(name: str) -> None:
    algorithm = make(name, network="own_algorithms:half_frozen")
    before = frozen_weights(algorithm)
    assert len(before) == {"dqn": 2, "d4pg": 4, "td3": 4, "sac": 3}[name]
    trained(algorithm, spec_of(name))
    assert all(torch.equal(after, weight) for after, weight in zip(frozen_weights(algorithm), before, strict=True))
