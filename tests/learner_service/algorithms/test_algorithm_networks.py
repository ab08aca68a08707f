"""What every algorithm makes of a network that a user brings."""

import pytest
import torch
from torch import nn

from learner_service.algorithms import Algorithm
from tests.learner_service.algorithms.algorithm_parts import ALGORITHMS, make, spec_of, trained

# Attributes of the algorithms: networks, and the target networks that begin as copies of them.
TARGETS = {
    "dqn": {"policy": "_target"},
    "d4pg": {"policy": "_target_policy", "_critic": "_target_critic"},
    "td3": {"policy": "_target_policy", "_critic": "_target_critic"},
    "sac": {"_critic": "_target_critic"},
}


@pytest.fixture(params=ALGORITHMS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_target_networks_begin_as_copies_with_what_is_drawn_and_never_trained(name: str) -> None:
    algorithm = make(name, network="own_algorithms:random_features")
    for online, target in TARGETS[name].items():
        values, copied = (getattr(algorithm, attribute).state_dict() for attribute in (online, target))
        assert any("projections" in key for key in values)
        assert all(torch.equal(copied[key], value) for key, value in values.items())


def frozen_weights(algorithm: Algorithm) -> list[torch.Tensor]:
    """Of the layers that are not to be trained, of all networks."""
    networks = [network for network in vars(algorithm).values() if isinstance(network, nn.Module)]
    return [
        module.weight.detach().clone()
        for network in networks
        for module in network.modules()
        if isinstance(module, nn.Linear) and module.weight.shape == (16, 3)
    ]


def test_layers_that_are_not_to_be_trained_stay_as_they_are(name: str) -> None:
    algorithm = make(name, network="own_algorithms:half_frozen")
    before = frozen_weights(algorithm)
    assert len(before) == sum(len(pair) for pair in TARGETS[name].items()) + (name == "sac")
    trained(algorithm, spec_of(name))
    assert all(torch.equal(after, weight) for after, weight in zip(frozen_weights(algorithm), before, strict=True))
