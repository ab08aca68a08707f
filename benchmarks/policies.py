"""Policy networks for benchmarks, and their conversion from a torch module to a model of any scheme."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from actorq.arithmetic import arithmetic
from actorq.config.run_config import RunConfig
from actorq.domain.policy import Checkpoint, FidelityReport, Policy, PolicyDescriptor, PolicyGraph, variant_of
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Emission, Options, scheme_named
from actorq.quantization.schemes.base import Plan
from actorq.weightencoding import in_weight_encoding
from learner_service.networks import QNetwork
from learner_service.networks.observations import feature_layers
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from quantizer_service.emission.fidelity import measure
from quantizer_service.emission.reference import Reference
from quantizer_service.store.reader import PolicyReader

# Observations and actions of dm_control's walker, a common size.
OBSERVATION_SIZE, ACTION_SIZE = 24, 6
FRAMES = (4, 84, 84)


def relu_mlp(width: int, observations: int = OBSERVATION_SIZE, actions: int = ACTION_SIZE) -> nn.Sequential:
    """Three hidden layers of `width` with ReLU: float32[B, observations] -> float32[B, actions]."""
    layers: list[nn.Module] = []
    for inputs, units in pairwise((observations, width, width, width)):
        layers += [nn.Linear(inputs, units), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, actions))


def d4pg_policy(width: int, observations: int = OBSERVATION_SIZE, actions: int = ACTION_SIZE) -> nn.Sequential:
    """Acme's policy for D4PG (arXiv 2006.00979, `LayerNormMLP`): float32[B, observations] -> [-1, 1].

    Three hidden layers of `width`, LayerNorm and tanh after the first, ELU after the others, tanh at the end.
    """
    first = [nn.Linear(observations, width), nn.LayerNorm(width), nn.Tanh()]
    others = [nn.Linear(width, width), nn.ELU(), nn.Linear(width, width), nn.ELU()]
    return nn.Sequential(*first, *others, nn.Linear(width, actions), nn.Tanh())


def nature_cnn(actions: int = ACTION_SIZE) -> QNetwork:
    """DQN's action values from frames (Mnih et al., Nature 518, 2015): uint8[B, 4, 84, 84] -> [B, actions]."""
    spec = environment_spec(FRAMES, "uint8", actions, discrete=True)
    return QNetwork(spec, (), dueling=False, layers=feature_layers(RunConfig(), spec))


@dataclass(frozen=True)
class PolicyNetwork:
    """A torch policy with its observation spec, and observations for calibration and timing.

    observations: spec for one environment; calibration: [B, *observation].
    """

    name: str
    module: nn.Module
    spec: EnvironmentSpec
    calibration: NDArray[Any]


def environment_spec(shape: tuple[int, ...], dtype: str, actions: int, discrete: bool) -> EnvironmentSpec:
    """The environment spec with these observations and actions."""
    action = ArraySpec((), "int64") if discrete else ArraySpec((actions,), "float32", (-1.0,), (1.0,))
    return EnvironmentSpec("benchmark", ArraySpec(shape, dtype), action, (actions,) if discrete else ())


def vector_network(kind: str, width: int, seed: int = 0) -> PolicyNetwork:
    """An untrained "mlp" or "d4pg" network and standard normal observations of its size."""
    torch.manual_seed(seed)
    module = {"mlp": relu_mlp, "d4pg": d4pg_policy}[kind](width)
    rows = np.random.default_rng(seed).standard_normal((256, OBSERVATION_SIZE)).astype(np.float32)
    return PolicyNetwork(
        f"{kind} {width}", module, environment_spec((OBSERVATION_SIZE,), "float32", ACTION_SIZE, False), rows
    )


def frame_network(seed: int = 0) -> PolicyNetwork:
    """An untrained Nature CNN and random frames."""
    torch.manual_seed(seed)
    frames = np.random.default_rng(seed).integers(0, 256, (128, *FRAMES), dtype=np.uint8)
    return PolicyNetwork("cnn", nature_cnn(), environment_spec(FRAMES, "uint8", ACTION_SIZE, False), frames)


def checkpoint_of(network: PolicyNetwork) -> tuple[PolicyGraph, Checkpoint]:
    """The graph that a learner would publish for this network, and its first version."""
    graph = export_policy_graph(network.module, network.spec)
    parameters = snapshot_parameters(network.module)
    return graph, Checkpoint(1, 1, graph.digest, parameters, {graph.signature.inputs[0].name: network.calibration}, 0.0)


def emit(graph: PolicyGraph, checkpoint: Checkpoint, scheme: str, options: Options | None = None) -> Emission:
    """That version in a scheme, calibrated on its own calibration batch, without the gate."""
    plan = Plan(Graph.parse(graph), scheme_named(scheme), options)
    _, statistics = Reference(plan.graph).observe(checkpoint.parameters, checkpoint.calibration, plan.observed)
    return plan.emit(checkpoint.parameters, statistics, "benchmark", checkpoint.version)


def fidelity_of(
    graph: PolicyGraph,
    checkpoint: Checkpoint,
    emission: Emission,
    observations: Mapping[str, NDArray[Any]],
    call_rows: int = 0,
) -> FidelityReport:
    """Errors of an emitted model on these observations, as the quantizer measures them.

    call_rows: observations per call; 0 for all in one call.
    """
    expected = Reference(Graph.parse(graph)).run(checkpoint.parameters, observations)
    return measure(emission, expected, observations, graph.signature, call_rows)


def as_policy(graph: PolicyGraph, checkpoint: Checkpoint, scheme: str, emission: Emission) -> Policy:
    """An emitted model as an actor on this processor receives it, with its errors on the calibration batch.

    Its int8 weights are in the encoding that this processor computes exactly.
    """
    descriptor = PolicyDescriptor(
        run_id="benchmark",
        version=checkpoint.version,
        learner_step=checkpoint.learner_step,
        scheme=scheme,
        sha256=b"",
        size_bytes=len(emission.model),
        fp32_size_bytes=sum(array.nbytes for array in checkpoint.parameters.values()),
        snapshot_at=checkpoint.snapshot_at,
        fidelity=fidelity_of(graph, checkpoint, emission, checkpoint.calibration),
        graph_digest=graph.digest,
    )
    return _exact_here(Policy(descriptor, emission.model))


def stored_policy(store: PolicyReader, version: int, scheme: str) -> Policy | None:
    """A policy of a run as an actor on this processor receives it, from any stored encoding; None without one."""
    wanted = variant_of(scheme, arithmetic().weight_encoding)
    found = (store.policy(version, each) for each in (wanted, *wanted.siblings))
    policy = next((each for each in found if each is not None), None)
    return policy and _exact_here(policy)


def _exact_here(policy: Policy) -> Policy:
    """The policy with its int8 weights in the encoding that this processor computes exactly."""
    own = variant_of(policy.descriptor.scheme, arithmetic().weight_encoding)
    return in_weight_encoding(policy, own.weight_encoding)
