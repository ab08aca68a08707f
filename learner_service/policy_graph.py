"""Exports a policy module once as an ONNX graph without weights, and snapshots its weights for each version."""

import contextlib
import io
import logging
import math
import warnings
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

from actorq.policy import PolicyGraph
from actorq.trajectory import EnvironmentSpec

_INPUT = "observations"
_OPSET = 21


def export_policy_graph(policy: nn.Module, spec: EnvironmentSpec) -> PolicyGraph:
    """Trace `policy` and return its graph with every parameter as a graph input of the parameter's own name.

    Raises RuntimeError when a parameter does not appear in the graph under its name, that is, when the exporter
    folded it into a constant that later versions could not replace.
    """
    example = torch.zeros((2, *spec.observations.shape), dtype=getattr(torch, spec.observations.dtype))
    model = _export(policy, example, "q_values" if spec.discrete_actions else "actions")
    graph, names = model.graph, set(snapshot_parameters(policy))
    parameters = [tensor for tensor in graph.initializer if tensor.name in names]
    missing = names - {tensor.name for tensor in parameters}
    if missing:
        raise RuntimeError(f"the exported graph lacks the parameters {sorted(missing)} under their names")
    constants = [tensor for tensor in graph.initializer if tensor.name not in names]
    del graph.initializer[:]
    graph.initializer.extend(constants)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in parameters
    )
    _strip(model)
    onnx.checker.check_model(model, full_check=True)
    return PolicyGraph(
        model=model.SerializeToString(deterministic=True),
        inputs=(_INPUT,),
        discrete_actions=bool(spec.discrete_actions),
        action_spans=_action_spans(spec),
    )


def snapshot_parameters(policy: nn.Module) -> dict[str, NDArray[Any]]:
    """Copies of all parameters and buffers as float32 arrays, by name."""
    return {
        name: np.array(tensor.detach().cpu().numpy(), dtype=np.float32, copy=True)
        for name, tensor in policy.state_dict().items()
    }


def _action_spans(spec: EnvironmentSpec) -> tuple[float, ...]:
    """Highest minus lowest action of each component; empty for discrete actions and those without bounds."""
    low, high = spec.actions.low, spec.actions.high
    if spec.discrete_actions or low is None or high is None or high <= low:
        return ()
    return (high - low,) * math.prod(spec.actions.shape)


def _export(policy: nn.Module, example: torch.Tensor, output: str) -> onnx.ModelProto:
    policy.eval()
    try:
        # The exporter prints its progress and warns about packages that nothing here uses.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            program = torch.onnx.export(
                policy,
                (example,),
                input_names=[_INPUT],
                output_names=[output],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                opset_version=_OPSET,
                dynamo=True,
                verbose=False,
            )
    finally:
        policy.train()
    assert program is not None
    return program.model_proto


def _strip(model: onnx.ModelProto) -> None:
    """Drop what the exporter notes for debugging: source paths and stack traces, which differ between machines."""
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    parts: tuple[Any, ...] = (*model.graph.node, *model.graph.input, *model.graph.output)
    for part in parts:
        del part.metadata_props[:]
        part.doc_string = ""
    del model.graph.value_info[:]
