"""The baseline in PyTorch: the same actions as ONNX Runtime's, for all policies that a learner makes."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from actor_service.policies.policy import load_policy
from actorq.config.run_config import RunConfig
from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.policy import Checkpoint, Policy
from actorq.domain.signature import Role
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import InvalidInputError
from benchmarks.policies import as_policy, checkpoint_of, emit, environment_spec, frame_network, vector_network
from benchmarks.speedup.torch_network import TorchNetwork
from benchmarks.speedup.torch_policy import TOLERANCE, TorchLoader, TorchPolicy, difference
from learner_service.algorithms import make_algorithm
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters

BATCH = 4
SPECS = {
    "plain": environment_spec((3,), "float32", 2, discrete=False),
    "float64": environment_spec((3,), "float64", 2, discrete=False),
    "matrix": environment_spec((4, 2), "float32", 2, discrete=False),
    "frames": replace(environment_spec((40, 40), "uint8", 2, discrete=False), frame_stack=2),
}
BOUNDS = ArraySpec((2,), "float32", (-2.0, 1.0), (0.5, 4.0))


def observed(spec: EnvironmentSpec, seed: int = 0) -> NDArray[Any]:
    seen, rng = spec.policy_observations, np.random.default_rng(seed)
    shape = (BATCH, *seen.shape)
    return (
        rng.integers(256, size=shape, dtype=np.uint8)
        if seen.dtype == "uint8"
        else rng.normal(size=shape).astype(seen.dtype)
    )


def learned(algorithm: str, kind: str, version: int = 1, normalize: bool = True) -> tuple[Policy, EnvironmentSpec]:
    """A policy that a learner of that algorithm begins with, as an fp32 actor gets it."""
    spec = SPECS[kind]
    spec = (
        replace(spec, actions=ArraySpec((), "int64"), discrete_actions=2)
        if algorithm == "dqn"
        else replace(spec, actions=BOUNDS)
    )
    config = RunConfig(algorithm=algorithm, normalize_observations=normalize, seed=version)
    made = make_algorithm(config, spec, torch.device("cpu"))
    graph = export_policy_graph(made.policy, spec, made.stochastic)
    calibration = {OBSERVATIONS: observed(spec), Role.NOISE: np.ones((BATCH, 2), np.float32)}
    checkpoint = Checkpoint(
        *(version, version, graph.topology, snapshot_parameters(made.policy)),
        *({name: calibration[name] for name in [port.name for port in graph.signature.inputs]}, 0.0),
    )
    return as_policy(graph, checkpoint, "fp32", emit(graph, checkpoint, "fp32")), spec


@pytest.mark.parametrize("algorithm", ["dqn", "d4pg", "td3", "sac"])
@pytest.mark.parametrize("kind", SPECS)
def test_outputs_are_those_of_onnx_runtime(algorithm: str, kind: str) -> None:
    policy, spec = learned(algorithm, kind)
    ours, reference = TorchLoader()(policy, spec, BATCH), load_policy(policy, spec, BATCH)
    assert ours.takes_noise is reference.takes_noise is (algorithm == "sac")
    assert difference(ours, reference, observed(spec, seed=7)) <= TOLERANCE
    if ours.takes_noise:
        noise = np.random.default_rng(1).standard_normal((BATCH, 2), np.float32)
        np.testing.assert_allclose(ours(observed(spec), noise), reference(observed(spec), noise), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("network", [vector_network("d4pg", 64), frame_network()], ids=lambda network: network.name)
def test_a_chain_of_layers_is_one_sequential_as_its_author_would_write_it(network: Any) -> None:
    graph, checkpoint = checkpoint_of(network)
    model = onnx.load_from_string(emit(graph, checkpoint, "fp32").model)
    layers = TorchNetwork(model).layers
    assert len(layers) == 1
    assert isinstance(layers[0], nn.Sequential)
    assert sum(isinstance(layer, nn.Linear | nn.Conv2d) for layer in layers[0]) >= 4


def test_only_the_first_version_of_a_topology_is_checked(caplog: pytest.LogCaptureFixture) -> None:
    loader = TorchLoader()
    with caplog.at_level(logging.INFO):
        policies = [loader(*learned("d4pg", "plain", version), BATCH) for version in (1, 2)]
    assert len([line for line in caplog.messages if line.startswith("acting in PyTorch")]) == 1
    rows = observed(SPECS["plain"])
    assert not np.allclose(policies[0](rows), policies[1](rows))


def test_a_wrong_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, spec = learned("d4pg", "plain")
    right = TorchPolicy.__call__
    monkeypatch.setattr(TorchPolicy, "__call__", lambda self, rows, noise=None: right(self, rows, noise) + 1e-3)
    with pytest.raises(
        InvalidInputError, match="PyTorch must give ONNX Runtime's outputs within 1e-05, got a difference"
    ):
        TorchLoader()(policy, spec, BATCH)


def test_a_quantized_policy_and_an_unknown_operator_are_refused() -> None:
    network = vector_network("mlp", 32)
    graph, checkpoint = checkpoint_of(network)
    quantized = as_policy(graph, checkpoint, "int8", emit(graph, checkpoint, "int8"))
    with pytest.raises(InvalidInputError, match="must be in fp32, got int8"):
        TorchPolicy(quantized, network.spec, BATCH)
    model = onnx.load_from_string(emit(graph, checkpoint, "fp32").model)
    model.graph.node[1].op_type = "Erf"
    with pytest.raises(InvalidInputError, match="got the operator Erf: compare without the scheme torch"):
        TorchNetwork(model)
