"""The graph of a policy with memory is one step. ONNX Runtime and the learner's network agree over many steps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorq.config.memory import MemoryConfig
from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.signature import NEXT_STATE, Role
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.algorithms import make_algorithm
from learner_service.networks import DiagonalGaussianPolicy, SoftmaxPolicy
from learner_service.networks.continuous import sample_of
from learner_service.policy.graph_operations import UnknownOperationError
from learner_service.policy.graph_writer import write_graph
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, graph_by, snapshot_parameters
from tests.learner_service.algorithms.replayed_parts import run_of
from tests.learner_service.learner_parts import SPEC

CONTINUOUS = EnvironmentSpec("C-v0", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", (-1.0,), (2.0,)), ())
STEPS, ROWS, UNITS = 1_000, 3, 32


def policy_of(spec: EnvironmentSpec, kind: Any) -> SoftmaxPolicy | DiagonalGaussianPolicy:
    torch.manual_seed(0)
    memory, made = MemoryConfig(kind=kind, units=UNITS), SoftmaxPolicy if spec.sizes else DiagonalGaussianPolicy
    return made(spec, (16,), activation="tanh", memory=memory)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("spec", [SPEC, CONTINUOUS], ids=["discrete", "continuous"])
def test_onnx_runtime_and_the_unrolled_network_agree_over_a_thousand_steps(spec: EnvironmentSpec, kind: str) -> None:
    policy = policy_of(spec, kind)
    # The actions of a Gaussian policy are its first output, and their mean is the second.
    check_steps(policy, spec, policy.computed, output=0 if spec.sizes else 1)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("name", ["dqn", "sac", "td3"])
def test_policies_with_a_replay_agree_over_a_thousand_steps(name: str, kind: str) -> None:
    check_replayed(name, kind)


def test_a_cell_after_own_layers_agrees_in_the_graph_of_pytorchs_exporter() -> None:
    check_replayed("sac", "lstm", network="own_algorithms:random_features")


def check_replayed(name: str, kind: str, **run: str) -> None:
    """`check_steps` of a small algorithm with a replay. run: its network, whose operations the graph writer lacks."""
    spec, takes_noise = SPEC if name == "dqn" else CONTINUOUS, name == "sac"
    algorithm = make_algorithm(run_of(name, {"kind": kind, "units": UNITS}, run=run), spec)
    if run:
        with pytest.raises(UnknownOperationError):
            graph_by(write_graph, algorithm.policy, spec, takes_noise, greedy=False)
    noise = np.random.default_rng(1).standard_normal((STEPS, ROWS, 2), np.float32) if takes_noise else None
    check_steps(algorithm.policy, spec, partial(learned, algorithm, noise), noise=noise)


def learned(algorithm: Any, noise: NDArray[np.float32] | None, observations: Tensor, outputs: Tensor) -> Tensor:
    """The values or actions that the losses read. outputs: of the unrolled cell, float32[B, U]."""
    policy = algorithm.policy
    if algorithm.name == "dqn":
        values: Tensor = policy.valued(observations, outputs)
        return values
    if noise is None:
        squashed = policy.squashed(observations, outputs)
    else:
        squashed, _ = sample_of(policy.computed(observations, outputs), torch.from_numpy(noise).flatten(0, 1))
    actions: Tensor = policy.scale(squashed)
    return actions


def check_steps(
    policy: Any,
    spec: EnvironmentSpec,
    learned: Callable[[Tensor, Tensor], Tensor],
    output: int = 0,
    noise: NDArray[np.float32] | None = None,
) -> None:
    """Make the steps with the policy's graph in ONNX Runtime, and with the learner's unrolled cell.

    learned: one output of all steps, from the observations and the outputs of the cell. output: its place in the graph.
    noise: standard normal, float32[STEPS, ROWS, components].
    """
    graph = export_policy_graph(policy, spec, takes_noise=noise is not None)
    session = onnxruntime.InferenceSession(graph.model, providers=["CPUExecutionProvider"])
    rng, parameters = np.random.default_rng(0), snapshot_parameters(policy)
    observations = rng.standard_normal((STEPS, ROWS, *spec.observations.shape), np.float32)
    begins = rng.random((STEPS, ROWS)) < 0.005
    outputs, state = [], np.zeros((ROWS, policy.state_size), np.float32)
    for t in range(STEPS):
        state[begins[t]] = 0
        feeds = {OBSERVATIONS: observations[t], Role.STATE: state, **parameters}
        told = session.run(None, feeds if noise is None else {**feeds, Role.NOISE: noise[t]})
        outputs.append(told[output])
        state = told[-1]
    with torch.no_grad():
        starts, rows = torch.zeros(ROWS, policy.state_size), torch.from_numpy(observations)
        unrolled = policy.unrolled(rows, starts, torch.from_numpy(begins))
        expected = learned(rows.flatten(0, 1), unrolled.outputs.flatten(0, 1))
    assert float(expected.std()) > 0.01
    np.testing.assert_allclose(np.concatenate(outputs), expected.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state, unrolled.states[-1].numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_graph_is_written_as_linear_layers_and_elementwise_operations(kind: str) -> None:
    policy = policy_of(SPEC, kind)
    graph = graph_by(write_graph, policy, SPEC, takes_noise=False, greedy=False)
    operators = {node.op_type for node in onnx.load_from_string(graph.model).graph.node}
    assert operators <= {"Gemm", "Split", "Concat", "Sigmoid", "Tanh", "Add", "Sub", "Mul"}
    inputs, outputs = graph.signature.inputs, graph.signature.outputs
    assert [(port.name, port.role) for port in inputs] == [
        (OBSERVATIONS, Role.OBSERVATION),
        (Role.STATE, Role.STATE),
    ]
    assert [(port.name, port.role) for port in outputs] == [("logits", Role.LOGITS), (NEXT_STATE, Role.STATE)]


def test_calibration_rows_have_states() -> None:
    observations, states = np.zeros((4, 4), np.float32), np.ones((4, UNITS), np.float32)
    batch = calibration_batch(observations, SPEC, takes_noise=False, seed=0, states=states)
    np.testing.assert_array_equal(batch[Role.STATE], states)
    empty = calibration_batch(observations[:0], SPEC, takes_noise=False, seed=0, states=states[:0])
    assert {name: each.shape for name, each in empty.items()} == {OBSERVATIONS: (1, 4), Role.STATE: (1, UNITS)}
