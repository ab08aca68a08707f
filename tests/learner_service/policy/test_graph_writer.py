"""Graphs that are written are those of PyTorch's exporter; a policy that cannot be written exactly is not written."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

from actorq.domain.leaves import Image
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.networks import (
    DeterministicPolicy,
    DiagonalGaussianPolicy,
    GaussianPolicy,
    LayerNormPolicy,
    PartwisePolicy,
    QNetwork,
    SoftmaxPolicy,
)
from learner_service.networks.encoders import Encoders, image_layers
from learner_service.networks.normalizer import Normalizer
from learner_service.policy.graph_operations import UnknownOperationError
from learner_service.policy.graph_writer import write_graph
from learner_service.policy.policy_graph import example_inputs, export_graph, graph_by
from tests.builders.structured import ALL, CATEGORY, NUMBERS, discrete, mixed
from tests.learner_service.learner_parts import SPEC

pytestmark = pytest.mark.usefixtures("operators_parsed_once")

STACKED = replace(SPEC, observations=ArraySpec((4,), "float64"), frame_stack=3)
FRAMES = EnvironmentSpec("Frames-v0", ArraySpec((36, 36), "uint8"), ArraySpec((), "int64"), sizes=(4,), frame_stack=2)
IMAGES = EnvironmentSpec("Images-v0", ArraySpec((36, 40, 3), "uint8"), ArraySpec((), "int64"), sizes=(4,))
PLANES = EnvironmentSpec("Planes-v0", ArraySpec((10, 10, 4), "bool"), ArraySpec((), "int64"), sizes=(4,))
ARMS = EnvironmentSpec("Arms-v0", ArraySpec((3, 2), "float32"), ArraySpec((2, 2), "float32", (-1.0,), (3.0,)), ())
REACH = EnvironmentSpec("Reach-v0", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", (-1.0,), (1.0,)), ())
PARTS = discrete(*ALL, choices=(2, 3), masked=True)
STACKS = discrete(*ALL, masked=True, frame_stack=2)
MASKED = discrete(NUMBERS, masked=True)
MIXED = mixed(NUMBERS, CATEGORY)


def encoders(spec: EnvironmentSpec) -> tuple[nn.Module, int]:
    made = Encoders(spec)
    return made, made.features


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    spec: EnvironmentSpec
    takes_noise: bool = False


CASES = {
    "dueling, normalized stacks": Case(lambda: QNetwork(STACKED, (8, 8), True, Normalizer(STACKED)), STACKED),
    "one head": Case(lambda: QNetwork(SPEC, (8,), dueling=False), SPEC),
    "frames": Case(lambda: QNetwork(FRAMES, (), True, None, image_layers(Image(2, 36, 36))), FRAMES),
    "images": Case(lambda: QNetwork(IMAGES, (), False, None, image_layers(Image(3, 36, 40, "channels-last"))), IMAGES),
    "planes": Case(lambda: QNetwork(PLANES, (), False, None, image_layers(Image(4, 10, 10, "channels-last"))), PLANES),
    "deterministic": Case(lambda: DeterministicPolicy(ARMS, (8,)), ARMS),
    "layer norm": Case(lambda: LayerNormPolicy(ARMS, (8, 8)), ARMS),
    "gaussian": Case(lambda: GaussianPolicy(ARMS, (8,), Normalizer(ARMS)), ARMS, takes_noise=True),
    "softmax": Case(lambda: SoftmaxPolicy(STACKED, (8, 8), Normalizer(STACKED), activation="tanh"), STACKED),
    "softmax, images": Case(
        lambda: SoftmaxPolicy(IMAGES, (), None, image_layers(Image(3, 36, 40, "channels-last"))), IMAGES
    ),
    "clipped": Case(lambda: DiagonalGaussianPolicy(ARMS, (8, 8), activation="tanh"), ARMS),
    "arrays": Case(lambda: QNetwork(PARTS, (8, 8), True, Normalizer(PARTS), encoders(PARTS)), PARTS),
    "stacks of arrays": Case(lambda: SoftmaxPolicy(STACKS, (8, 8), None, encoders(STACKS)), STACKS),
    "masked vector": Case(lambda: QNetwork(MASKED, (8, 8), False, Normalizer(MASKED)), MASKED),
    "mixed actions": Case(lambda: PartwisePolicy(MIXED, (8, 8), None, encoders(MIXED)), MIXED),
    "squashed": Case(lambda: DiagonalGaussianPolicy(REACH, (8,), squash=True), REACH),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_written_graph_is_the_exported_one(case: Case) -> None:
    torch.manual_seed(0)
    arguments = (case.make(), case.spec, case.takes_noise, case.takes_noise)
    written, exported = graph_by(write_graph, *arguments), graph_by(export_graph, *arguments)
    assert replace(written, model=b"") == replace(exported, model=b"")
    assert shape_of(written.model) == shape_of(exported.model)


def shape_of(model: bytes) -> Any:
    """The content of a graph, without the names of its own tensors and the order of its inputs."""
    graph = onnx.load_from_string(model).graph
    constants = {each.name: (each.data_type, numpy_helper.to_array(each).tolist()) for each in graph.initializer}
    names: dict[str, Any] = {value.name: value.name for value in graph.input} | constants
    nodes = []
    for number, node in enumerate(graph.node):
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        nodes.append((node.op_type, [names[name] for name in node.input], attributes))
        names |= {name: (number, output) for output, name in enumerate(node.output)}
    inputs = {value.name: value.type.SerializeToString(deterministic=True) for value in graph.input}
    outputs = [(each.name, names[each.name], each.type.SerializeToString(deterministic=True)) for each in graph.output]
    return nodes, inputs, outputs


class Own(nn.Module):
    """A user's policy on four numbers: each test has another body."""

    def __init__(self, forward: Callable[["Own", torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.other = nn.ReLU()
        self.body = forward

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.body(self, observations)


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Without a call that can be recorded, as an extension in C++ may do."""
    with torch._C.DisableTorchFunction():
        return x * 2


def with_first_row_set(policy: Own, x: torch.Tensor) -> torch.Tensor:
    x[0] = 1.0
    return plain(policy, x)


def with_parts(policy: Own, **parts: nn.Module) -> Own:
    for name, part in parts.items():
        setattr(policy, name, part)
    return policy


def plain(policy: Own, x: torch.Tensor) -> torch.Tensor:
    return policy.other(policy.layer(x))  # type: ignore[no-any-return]


UNKNOWN = {
    "another function": Own(lambda policy, x: torch.sin(plain(policy, x))),
    "rows that move": Own(lambda policy, x: plain(policy, x).view(1, -1)),
    "a value that depends on the number of rows": Own(lambda policy, x: plain(policy, x) + x.shape[0]),
    "a branch on values": Own(lambda policy, x: plain(policy, x) if x.sum() > 0 else x),
    "a number that was a tensor": Own(lambda policy, x: plain(policy, x) + float(x[0, 0])),
    "NumPy": Own(lambda policy, x: plain(policy, x) + torch.from_numpy(x.numpy()[:, :2])),
    "a call that is not seen": Own(lambda policy, x: plain(policy, doubled(x))),
    "a weight that is not seen": Own(lambda policy, x: plain(policy, x) + doubled(policy.layer.bias)),
    "random numbers": Own(lambda policy, x: plain(policy, x) + torch.rand(2)),
    "the input itself": Own(lambda policy, x: x),
    "mean over rows": Own(lambda policy, x: plain(policy, x) - plain(policy, x).mean(dim=0, keepdim=True)),
    "an operation in place": with_parts(Own(plain), other=nn.ReLU(inplace=True)),
    "a method in place": Own(lambda policy, x: plain(policy, x).add_(1)),
    "an item that is set": Own(with_first_row_set),
    "no bias": with_parts(Own(plain), layer=nn.Linear(4, 2, bias=False)),
    "an unused parameter": with_parts(Own(plain), third=nn.Linear(1, 1)),
    "a softmax": with_parts(Own(plain), other=nn.Softmax(dim=1)),
}


@pytest.mark.parametrize("policy", UNKNOWN.values(), ids=UNKNOWN)
def test_a_policy_that_cannot_be_written_exactly_is_refused(policy: nn.Module) -> None:
    with pytest.raises(UnknownOperationError):
        write_graph(policy.eval(), example_inputs(SPEC, takes_noise=False), ["q_values"])


def test_a_user_s_policy_of_known_layers_is_written() -> None:
    shift = torch.tensor([0.5, -0.5])
    policy = Own(lambda policy, x: (plain(policy, x).view(x.shape[0], 2) * 3 - shift).clamp(-1.0, 1.0)).eval()
    model = write_graph(policy, example_inputs(SPEC, takes_noise=False), ["q_values"])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rows = np.random.default_rng(0).standard_normal((9, 4), np.float32)
    parameters = {name: tensor.numpy() for name, tensor in policy.state_dict().items()}
    (values,) = session.run(None, {"observations": rows, **parameters})
    with torch.no_grad():
        np.testing.assert_allclose(values, policy(torch.from_numpy(rows)).numpy(), rtol=1e-5, atol=1e-6)
