"""Graphs as torch.onnx.export makes them, with their initializers turned into inputs as the learner does."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper
from policy_graphs import emitted, float_layers, fp32_outputs, outputs_of
from torch import nn

from actorq.policy import PolicyGraph
from quantizer_service.graph import Graph
from quantizer_service.plan import Plan
from quantizer_service.schemes import scheme_named


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
    return PolicyGraph(model.SerializeToString(), ("observation",), True), state


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
    error = np.abs(outputs_of(emitted(int8, parameters), observations) - expected).max()
    assert error < 0.03 * np.ptp(expected)
    # Nothing of the exporter's stack traces goes out to actors.
    assert b"pkg.torch" not in emitted(int8, parameters)
