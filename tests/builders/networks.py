"""A learner's network as an actor gets it, in FP32."""

import onnx
from onnx import numpy_helper
from torch import nn

from actorq.domain.policy import Policy
from actorq.domain.spaces import EnvironmentSpec
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from tests.actor_service.actor_policies import as_policy


def as_emitted(network: nn.Module, spec: EnvironmentSpec, takes_noise: bool = False) -> Policy:
    """The network's graph with its parameters."""
    graph = export_policy_graph(network, spec, takes_noise)
    model = onnx.load_from_string(graph.model)
    inputs = [value for value in model.graph.input if value.name in [port.name for port in graph.signature.inputs]]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in snapshot_parameters(network).items()
    )
    return as_policy(model.SerializeToString())
