"""Graphs as torch.onnx.export makes them, with their initializers turned into inputs as the learner does."""

import io
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper
from torch import nn

from actorq.domain.policy import PolicyGraph
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import SCHEMES, Options, scheme_named
from actorq.quantization.schemes.base import Plan
from quantizer_service.emission.reference import Reference
from tests.builders.graphs import graph_of
from tests.quantizer_service.policy_runs import (
    all_outputs_of,
    emitted,
    float_layers,
    fp32_outputs,
    outputs_of,
    random_inputs,
)

pytestmark = pytest.mark.usefixtures("operators_parsed_once")


class Dueling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.torso = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.value, self.advantage = nn.Linear(64, 1), nn.Linear(64, 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        hidden = self.torso(observation)
        advantage: torch.Tensor = self.advantage(hidden)
        output: torch.Tensor = self.value(hidden) + advantage - advantage.mean(1, keepdim=True)
        return output


class D4PGPolicy(nn.Sequential):
    """LayerNorm and tanh after the first layer, ELU, tanh output, as in Acme."""

    def __init__(self) -> None:
        layers = [nn.Linear(4, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 64), nn.ELU()]
        super().__init__(*layers, nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 2), nn.Tanh())


def exported(policy: nn.Module) -> tuple[PolicyGraph, dict[str, NDArray[Any]]]:
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        policy,
        (torch.zeros(3, 4),),
        input_names=["observation"],
        output_names=["q_values"],
        dynamic_shapes=({0: batch},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    model = onnx.ModelProto.FromString(program.model_proto.SerializeToString())
    state = {name: tensor.detach().numpy().copy() for name, tensor in policy.state_dict().items()}
    constants = [tensor for tensor in model.graph.initializer if tensor.name not in state]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    for name, array in state.items():
        model.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape))
    return graph_of(model.SerializeToString()), state


@pytest.mark.parametrize(
    ("policy", "in_float"), [(Dueling, ("torso.0", "advantage", "value")), (D4PGPolicy, ("0", "7"))]
)
def test_an_exported_policy_is_quantized_and_computes_what_torch_computes(
    policy: type[nn.Module], in_float: tuple[str, ...]
) -> None:
    torch.manual_seed(0)
    module = policy().eval()
    source, parameters = exported(module)
    observations = {"observation": np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)}
    with torch.no_grad():
        expected = module(torch.from_numpy(observations["observation"])).numpy()

    graph = Graph.parse(source)
    int8 = Plan(graph, scheme_named("int8"))
    fp32 = Plan(graph, scheme_named("fp32"))

    assert float_layers(int8) == in_float
    assert np.allclose(fp32_outputs(graph, parameters, observations), expected, atol=1e-5)
    assert np.allclose(outputs_of(emitted(fp32, parameters), observations), expected, atol=1e-5)
    # Nothing of the exporter's stack traces goes out to actors.
    assert b"pkg.torch" not in emitted(int8, parameters)
    error = np.abs(outputs_of(emitted(int8, parameters), observations) - expected).max()
    assert error < 0.03 * np.ptp(expected)


class NatureCnn(nn.Module):
    """As CleanRL and Stable-Baselines3 have it: frames are scaled inside."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 6)),
        )

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.network(observation.float() / 255.0)
        return output


class Squashed(nn.Module):
    """Normalized observations and a goal, GELU and LayerNorm, a mean and a clamped log standard deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.scale = nn.Buffer(torch.randn(4)), nn.Buffer(torch.rand(4) + 0.5)
        self.torso = nn.Sequential(nn.Linear(6, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.SiLU())
        self.head, self.log_std = nn.Linear(64, 3), nn.Linear(64, 3)

    def forward(self, observation: torch.Tensor, goal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.torso(torch.cat([(observation - self.mean) / self.scale, goal], dim=1))
        return torch.tanh(self.head(x)), self.log_std(x).clamp(-5.0, 2.0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("opset", "batch"), [(13, "free"), (20, "one")])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("policy", [D4PGPolicy, NatureCnn, Squashed])
def test_a_complete_model_of_torchscript_is_quantized(
    policy: type[nn.Module], scheme: str, batch: str, opset: int
) -> None:
    torch.manual_seed(0)
    module = policy().eval()
    examples = {
        D4PGPolicy: (torch.zeros(1, 4),),
        NatureCnn: (torch.zeros(1, 4, 36, 36, dtype=torch.uint8),),
        Squashed: (torch.zeros(1, 4), torch.zeros(1, 2)),
    }[policy]
    names = ["observation", "goal"][: len(examples)]
    file = io.BytesIO()
    axes = {name: {0: "batch"} for name in names} if batch == "free" else None
    torch.onnx.export(
        module,
        examples,
        file,  # type: ignore[arg-type]
        input_names=names,
        dynamic_axes=axes,
        opset_version=opset,
        dynamo=False,
    )

    graph, parameters = Graph.from_model(file.getvalue(), discrete_actions=policy is NatureCnn)

    inputs = random_inputs(graph, 64)
    with torch.no_grad():
        outputs = module(*(torch.from_numpy(array) for array in inputs.values()))
    expected = [output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]
    Reference(graph)
    plan = Plan(graph, scheme_named(scheme), Options(ends=True))
    model = emitted(plan, parameters, inputs)
    bound = {"fp32": 1e-5, "int4": 0.2}.get(scheme, 0.04)
    for got, wanted in zip(all_outputs_of(model, inputs), expected, strict=True):
        assert np.abs(got - wanted).max() <= bound * np.ptp(wanted)
    # Convolutions only in int8-static, and no blocks of 16 of 4 or 6 observations.
    if scheme != "fp32":
        narrow_or_convolutions = scheme == "int4" or (scheme == "int8" and policy is NatureCnn)
        assert bool(float_layers(plan)) == narrow_or_convolutions
