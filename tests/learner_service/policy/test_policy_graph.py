"""The exported graph with a copy of the weights is the policy, and contains nothing else."""

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from actorq.domain.policy import PolicyGraph
from actorq.domain.signature import METADATA
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from learner_service.networks import DeterministicPolicy, GaussianPolicy, QNetwork
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, snapshot_parameters
from tests.learner_service.learner_parts import SPEC

IMAGES = EnvironmentSpec("Images-v0", ArraySpec((6, 5, 3), "uint8"), ArraySpec((), "int64"), sizes=(4,))


@dataclass(frozen=True)
class Exported:
    spec: EnvironmentSpec
    policy: nn.Module
    graph: PolicyGraph

    @property
    def model(self) -> onnx.ModelProto:
        return onnx.load_from_string(self.graph.model)

    def observations(self, batch: int) -> NDArray[np.generic]:
        rng, shape = np.random.default_rng(batch), (batch, *self.spec.observations.shape)
        if self.spec.observations.dtype == "uint8":
            return rng.integers(256, size=shape, dtype=np.uint8)
        return rng.standard_normal(shape, np.float32)


@pytest.fixture(scope="module", params=["vectors", "vectors, one head", "images"])
def exported(request: pytest.FixtureRequest) -> Exported:
    spec = IMAGES if request.param == "images" else SPEC
    torch.manual_seed(0)
    policy = QNetwork(spec, (24, 16), dueling="one head" not in request.param)
    return Exported(spec, policy, export_policy_graph(policy, spec))


@pytest.mark.parametrize("batch", [1, 2, 7, 256])
def test_graph_and_snapshot_together_compute_the_policy(exported: Exported, batch: int) -> None:
    session = onnxruntime.InferenceSession(exported.graph.model, providers=["CPUExecutionProvider"])
    observations = exported.observations(batch)
    (actual,) = session.run(None, {"observations": observations, **snapshot_parameters(exported.policy)})
    with torch.no_grad():
        expected = exported.policy(torch.from_numpy(observations)).numpy()
    assert actual.shape == (batch, exported.spec.acting_size)
    # Image pixels go up to 255, and so do the sums that are rounded.
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_its_inputs_are_the_observations_and_every_parameter_by_name(exported: Exported) -> None:
    parameters = snapshot_parameters(exported.policy)
    inputs = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in exported.model.graph.input
    }
    assert [port.name for port in exported.graph.signature.inputs] == ["observations"]
    assert next(iter(inputs)) == "observations"
    assert set(inputs) == {"observations", *parameters}
    for name, value in parameters.items():
        assert tuple(inputs[name]) == value.shape
    assert [output.name for output in exported.model.graph.output] == ["q_values"]
    assert exported.graph.signature.is_discrete


def test_it_holds_no_weights_and_nothing_of_this_machine(exported: Exported) -> None:
    model, names = exported.model, set(snapshot_parameters(exported.policy))
    assert not names & {tensor.name for tensor in model.graph.initializer}
    assert sum(np.prod(tensor.dims, dtype=int) for tensor in model.graph.initializer) <= 16
    assert [entry.key for entry in model.metadata_props] == [METADATA]
    assert not model.graph.metadata_props
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)
    folders = Path(__file__).parents[3], Path(tempfile.gettempdir())
    for trace in (b".py", *(os.fsencode(folder) for folder in folders), b"site-packages", b'File "', b"pkg.torch"):
        assert trace not in exported.graph.model


def test_graphs_of_equal_networks_have_one_digest() -> None:
    torch.manual_seed(0)
    first, second = (QNetwork(SPEC, (8,), dueling=False) for _ in range(2))
    assert export_policy_graph(first, SPEC).digest == export_policy_graph(second, SPEC).digest


def test_a_snapshot_is_a_copy(exported: Exported) -> None:
    before = snapshot_parameters(exported.policy)
    kept = {name: value.copy() for name, value in before.items()}
    with torch.no_grad():
        for parameter in exported.policy.parameters():
            parameter.add_(1.0)
    for name, value in before.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, kept[name])
        assert not np.array_equal(snapshot_parameters(exported.policy)[name], value)


def test_an_exported_policy_is_still_in_training_mode(exported: Exported) -> None:
    assert exported.policy.training


def test_double_precision_observations_are_cast() -> None:
    spec = replace(SPEC, observations=ArraySpec((4,), "float64"))
    policy = QNetwork(spec, (8,), dueling=True)
    observations = np.random.default_rng(0).standard_normal((3, 4))
    assert policy(torch.from_numpy(observations)).dtype == torch.float32


BOX = ArraySpec((3,), "float32")
ARMS = EnvironmentSpec("Arms-v0", BOX, ArraySpec((2,), "float32", (-1.0,), (1.0,)))


class Noisy(nn.Module):
    """A stochastic policy whose observations are normalized: mean(s) + noise / 2."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("mean", torch.tensor([1.0, -2.0, 3.0]))
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 1.0]))

    def forward(self, observations: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        actions: torch.Tensor = self.layer((observations - self.mean) * self.scale)
        return torch.tanh(actions if noise is None else actions + noise / 2)


@pytest.mark.parametrize("batch", [1, 5])
def test_a_stochastic_policy_takes_noise_and_buffers_are_published_as_parameters_are(batch: int) -> None:
    torch.manual_seed(0)
    policy = Noisy()
    graph = export_policy_graph(policy, ARMS, takes_noise=True)
    assert [port.role for port in graph.signature.inputs] == ["observation", "noise"]
    session = onnxruntime.InferenceSession(graph.model, providers=["CPUExecutionProvider"])
    assert {value.name for value in session.get_inputs()} == {"observations", "noise", *policy.state_dict()}
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((batch, 3), np.float32)
    # Of a normalizer that has changed since the export.
    policy.mean.copy_(torch.tensor([0.0, 5.0, -1.0]))
    for noise in (rng.standard_normal((batch, 2), np.float32), np.zeros((batch, 2), np.float32)):
        inputs = {"observations": observations, "noise": noise, **snapshot_parameters(policy)}
        (actual,) = session.run(None, inputs)
        with torch.no_grad():
            expected = policy(torch.from_numpy(observations), torch.from_numpy(noise)).numpy()
        np.testing.assert_allclose(actual, expected, atol=1e-6)
    with torch.no_grad():
        np.testing.assert_allclose(actual, policy(torch.from_numpy(observations)).numpy(), atol=1e-6)


@pytest.mark.parametrize("low", [-1.0, -3.0], ids=["unit", "scaled"])
def test_a_stochastic_policy_outputs_greedy_actions_on_request(low: float) -> None:
    spec = replace(ARMS, actions=ArraySpec((2,), "float32", (low,), (1.0,)))
    torch.manual_seed(0)
    policy = GaussianPolicy(spec, (16, 16))
    plain, graph = (export_policy_graph(policy, spec, takes_noise=True, greedy=greedy) for greedy in (False, True))
    models = [onnx.load_from_string(each.model).graph for each in (plain, graph)]
    assert [[output.name for output in model.output] for model in models] == [
        ["actions"],
        ["actions", "greedy_actions"],
    ]
    # The layers are passed through once, and parameters have the names that they had.
    gemms = [sum(node.op_type in ("Gemm", "MatMul") for node in model.node) for model in models]
    assert gemms == [3, 3]
    assert [value.name for value in models[0].input] == [value.name for value in models[1].input]
    rng = np.random.default_rng(0)
    observations, noise = (rng.standard_normal((5, size), np.float32) for size in (3, 2))
    inputs = {"observations": observations, "noise": noise, **snapshot_parameters(policy)}
    session = onnxruntime.InferenceSession(graph.model, providers=["CPUExecutionProvider"])
    actions, greedy = session.run(None, inputs)
    with torch.no_grad():
        expected = policy(torch.from_numpy(observations), torch.from_numpy(noise)).numpy()
        np.testing.assert_allclose(greedy, policy(torch.from_numpy(observations)).numpy(), atol=1e-6)
    np.testing.assert_allclose(actions, expected, atol=1e-6)
    assert np.abs(actions - greedy).max() > 0.1


def test_the_actions_of_a_deterministic_policy_are_without_noise_already() -> None:
    torch.manual_seed(0)
    graph = export_policy_graph(DeterministicPolicy(ARMS, (8,)), ARMS, greedy=True)
    assert [output.name for output in onnx.load_from_string(graph.model).graph.output] == ["actions"]


def test_a_stochastic_policy_without_greedy_actions_is_refused() -> None:
    with pytest.raises(UserError, match=r"dynamic_capacity.*with_greedy.*Noisy"):
        export_policy_graph(Noisy(), ARMS, takes_noise=True, greedy=True)


def test_a_policy_on_stacked_frames_has_stacks_as_input() -> None:
    spec = replace(IMAGES, frame_stack=4)
    graph = export_policy_graph(nn.Sequential(Floats(), nn.Flatten(), nn.Linear(4 * 6 * 5 * 3, 4)), spec)
    (value, *_) = onnx.load_from_string(graph.model).graph.input
    dimensions = value.type.tensor_type.shape.dim
    assert [dimension.dim_value for dimension in dimensions[1:]] == [4, 6, 5, 3]


class Floats(nn.Module):
    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return frames.to(torch.float32) / 255


def test_a_calibration_batch_has_rows_for_every_input() -> None:
    observations = np.random.default_rng(0).standard_normal((40, 3), np.float32)
    batch = calibration_batch(observations, ARMS, takes_noise=True, seed=3)
    assert list(batch) == ["observations", "noise"]
    np.testing.assert_array_equal(batch["observations"], observations)
    assert not np.shares_memory(batch["observations"], observations)
    assert batch["noise"].shape == (40, 2)
    assert batch["noise"].dtype == np.float32
    assert abs(batch["noise"].std() - 1) < 0.3
    assert list(calibration_batch(observations, ARMS, takes_noise=False, seed=3)) == ["observations"]


def test_before_the_first_observation_the_calibration_batch_is_zeros() -> None:
    stacked = replace(IMAGES, frame_stack=4)
    nothing = np.empty((0, 4, 6, 5, 3), np.uint8)
    batch = calibration_batch(nothing, stacked, takes_noise=False, seed=0)["observations"]
    assert batch.shape == (1, 4, 6, 5, 3)
    assert batch.dtype == np.uint8
    assert not batch.any()


@pytest.mark.parametrize(
    ("actions", "discrete", "spans"),
    [
        (ArraySpec((2,), "float32", low=(-1.0,), high=(1.0,)), 0, (2.0, 2.0)),
        (ArraySpec((2, 2), "float32", low=(-2.0,), high=(1.5,)), 0, (3.5,) * 4),
        (ArraySpec((1,), "float32", low=(-1.0,)), 0, ()),
        (ArraySpec((1,), "float32", low=(1.0,), high=(1.0,)), 0, ()),
        (ArraySpec((), "int64", low=(0.0,), high=(3.0,)), 4, ()),
    ],
    ids=["bounded", "a matrix", "unbounded", "no room", "discrete"],
)
def test_the_graph_has_the_ranges_of_continuous_actions(
    actions: ArraySpec, discrete: int, spans: tuple[float, ...]
) -> None:
    spec = EnvironmentSpec("Any-v0", BOX, actions, (discrete,) * bool(discrete))
    assert (
        export_policy_graph(nn.Linear(3, discrete or int(np.prod(actions.shape))), spec).signature.acting.spans == spans
    )


def test_parameters_of_equal_values_stay_apart() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 2)
    policy = nn.Sequential(first, nn.LayerNorm(4), nn.Tanh(), second)
    for layer in (first, second):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    before = snapshot_parameters(policy)
    model = onnx.load_from_string(export_policy_graph(policy, SPEC).model)
    assert {tensor.name for tensor in model.graph.input} == {"observations", *before}
    for name, value in snapshot_parameters(policy).items():
        np.testing.assert_array_equal(value, before[name])
