"""The networks that benchmarks measure come out of every scheme as actors can run them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from actor_service.policies.policy import OnnxPolicy
from actorq.arithmetic import arithmetic
from actorq.quantization.schemes import SCHEMES
from benchmarks.policies import PolicyNetwork, as_policy, checkpoint_of, emit, frame_network, vector_network

NETWORKS: dict[str, Callable[[], PolicyNetwork]] = {
    "mlp": lambda: vector_network("mlp", 32),
    "d4pg": lambda: vector_network("d4pg", 32),
    "cnn": frame_network,
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_scheme_acts_nearly_as_torch_does(kind: str) -> None:
    network = NETWORKS[kind]()
    rows = network.calibration[:8]
    with torch.inference_mode():
        expected = network.module.eval()(torch.from_numpy(rows)).numpy()
    graph, checkpoint = checkpoint_of(network)
    for scheme in (each for each in SCHEMES if each not in arithmetic().inexact_schemes):
        policy = as_policy(graph, checkpoint, scheme, emit(graph, checkpoint, scheme))
        got = OnnxPolicy(policy, network.spec.observations, 8)(rows)
        # int4 has 15 levels; the others 255.
        tolerance = 1e-5 if scheme == "fp32" else 0.2 if scheme == "int4" else 0.05
        assert np.abs(got - expected).max() <= tolerance * np.ptp(expected), scheme
        assert policy.descriptor.effective_scheme == scheme


def test_equal_seeds_give_equal_networks() -> None:
    first, second, other = (vector_network("mlp", 8, seed) for seed in (1, 1, 2))
    assert torch.equal(first.module[0].weight, second.module[0].weight)  # type: ignore[index]
    assert not torch.equal(first.module[0].weight, other.module[0].weight)  # type: ignore[index]
