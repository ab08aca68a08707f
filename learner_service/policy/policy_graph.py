"""Exports a policy module once as an ONNX graph without weights, and copies its weights for each version."""

import contextlib
import copy
import inspect
import io
import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actorq.domain.leaves import OBSERVATIONS, places
from actorq.domain.policy import PolicyGraph
from actorq.domain.signature import NEXT_STATE, Role, RowGroup, Signature, signature_of
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from actorq.quantization.signatures import signed_graph
from learner_service.kernels.linear import Linear
from learner_service.policy.graph_operations import UnknownOperationError
from learner_service.policy.graph_writer import OPSET, write_graph

_Make = Callable[[nn.Module, dict[str, Tensor], list[str]], onnx.ModelProto]


def data_inputs(spec: EnvironmentSpec, takes_noise: bool, state_size: int = 0) -> dict[str, ArraySpec]:
    """The inputs of a policy, by name and in order.

    A policy may have inputs for its state, and for noise of each component of an action. state_size: numbers in a
    state; 0 without memory.
    """
    inputs = dict(spec.policy_observations.inputs)
    if state_size:
        inputs[Role.STATE] = ArraySpec((state_size,), "float32")
    if takes_noise:
        inputs[Role.NOISE] = ArraySpec((math.prod(spec.actions.shape),), "float32")
    return inputs


def state_size_of(policy: nn.Module) -> int:
    """Numbers in the state of a policy; 0 without memory. Own policies with memory have the attribute `state_size`."""
    return int(getattr(policy, "state_size", 0))


def calibration_batch(
    observations: NDArray[Any],
    spec: EnvironmentSpec,
    takes_noise: bool,
    seed: int,
    states: NDArray[np.float32] | None = None,
) -> dict[str, NDArray[Any]]:
    """For each data input, copies of observations [B, *policy_observation], or standard normal noise [B, ...].

    states: float32[B, S] before each of these observations, for a policy with memory. Empty without observations.
    """
    rows = with_a_row(observations, spec)
    batch = {name: np.array(values, order="C") for name, values in spec.policy_observations.split(rows).items()}
    if states is not None:
        batch[Role.STATE] = np.array(states if len(states) else np.zeros((len(rows), states.shape[1]), np.float32))
    if takes_noise:
        shape = data_inputs(spec, takes_noise)[Role.NOISE].shape
        batch[Role.NOISE] = np.random.default_rng(seed).standard_normal((len(rows), *shape), np.float32)
    return batch


def with_a_row(observations: NDArray[Any], spec: EnvironmentSpec) -> NDArray[Any]:
    """Observations [B, *policy_observation]. If B is 0: one observation of zeros, with all choices legal."""
    if len(observations):
        return observations
    seen = spec.policy_observations
    row = np.zeros((1, *seen.shape), seen.dtype)
    if spec.mask is not None:
        row[..., places(spec.leaves)[spec.mask.name]] = 1
    return row


def export_policy_graph(
    policy: nn.Module, spec: EnvironmentSpec, takes_noise: bool = False, greedy: bool = False
) -> PolicyGraph:
    """The graph of `policy`. Every parameter and buffer is a graph input with its own name.

    takes_noise: the second input of the policy is noise. greedy: the graph of a stochastic policy has a second output,
        the actions without noise. No effect on other policies.
    Raises RuntimeError when the exporter has folded a parameter into a constant, because later versions cannot replace
    it. Raises UserError when a stochastic policy needs `with_greedy` and lacks it.
    """
    try:
        return graph_by(write_graph, policy, spec, takes_noise, greedy)
    except UnknownOperationError:
        return graph_by(export_graph, policy, spec, takes_noise, greedy)


def graph_by(make: _Make, policy: nn.Module, spec: EnvironmentSpec, takes_noise: bool, greedy: bool) -> PolicyGraph:
    """The same graph, made in one way: with `write_graph` in milliseconds if possible, or with `export_graph` in
    seconds.
    """
    acted = as_acted(policy, spec, takes_noise and greedy)
    signature = _signature(policy, spec, takes_noise, takes_noise and greedy)
    examples = example_inputs(spec, takes_noise, state_size_of(policy))
    model = make(acted, examples, [port.name for port in signature.outputs])
    graph = signed_graph(model, signature)
    onnx.checker.check_model(model, full_check=True)
    return graph


def as_acted(policy: nn.Module, spec: EnvironmentSpec, greedy: bool) -> nn.Module:
    """A copy of a policy as actors run it: on the CPU, in eval mode, with plain layers.

    With observations of several arrays, each array is an argument of the forward pass, in the order of `data_inputs`.
    greedy: the forward pass is `with_greedy`, with its second output. Raises UserError without such a method.
    """
    copied = copy.deepcopy(policy).to("cpu").eval()
    for module in copied.modules():
        # Our Linear computes the same, but exporters do not know its faster products.
        if type(module) is Linear:
            module.__class__ = nn.Linear  # type: ignore[assignment]
    if greedy:
        both = getattr(copied, "with_greedy", None)
        if both is None:
            raise UserError(
                "dynamic_capacity needs a stochastic policy with a method with_greedy(observations, noise) that "
                f"returns the actions with noise and the actions without noise; {type(policy).__name__} has none"
            )
        copied.forward = both
    if spec.leaves:
        names, forward = tuple(spec.policy_observations.inputs), copied.forward

        def of_inputs(*inputs: Tensor) -> Any:
            return forward(dict(zip(names, inputs, strict=False)), *inputs[len(names) :])

        copied.forward = of_inputs
    return copied


def example_inputs(spec: EnvironmentSpec, takes_noise: bool, state_size: int = 0) -> dict[str, Tensor]:
    """Two rows of zeros for each data input, by name and in order."""
    inputs = data_inputs(spec, takes_noise, state_size)
    return {name: torch.zeros((2, *each.shape), dtype=getattr(torch, each.dtype)) for name, each in inputs.items()}


def snapshot_parameters(policy: nn.Module) -> dict[str, NDArray[Any]]:
    """Copies of all parameters and buffers as float32 arrays, by name."""
    return {
        name: np.array(tensor.detach().cpu().numpy(), dtype=np.float32, copy=True)
        for name, tensor in policy.state_dict().items()
    }


def _signature(policy: nn.Module, spec: EnvironmentSpec, takes_noise: bool, greedy: bool) -> Signature:
    """The signature of the policy's graph. Its `output_names`, if it has them, are names of roles.

    With memory, the next state is the last output.
    """
    outputs = getattr(policy, "output_names", None)
    if outputs is None:
        acting = Role.VALUES if spec.sizes else Role.ACTIONS
        outputs = (acting, Role.GREEDY_ACTIONS) if greedy else (acting,)
    spans: tuple[float, ...] = ()
    if not spec.sizes and spec.actions.bounded:
        low, high = spec.actions.bounds()
        spans = tuple((high - low).ravel().tolist())
    size = state_size_of(policy)
    outputs = (*outputs, NEXT_STATE) if size else outputs
    signature = signature_of(data_inputs(spec, takes_noise, size), outputs, bool(spec.sizes), spans, spec.sizes)
    numbers = next((leaf.input for leaf in spec.encoded if leaf.kind == "numbers"), OBSERVATIONS)
    groups = (RowGroup(each.name, numbers, spec.first_bit + index) for index, each in enumerate(spec.groups))
    return replace(signature, groups=tuple(groups))


def export_graph(policy: nn.Module, inputs: dict[str, Tensor], outputs: list[str]) -> onnx.ModelProto:
    """The graph from PyTorch's exporter. Parameters and errors as in `write_graph` and `export_policy_graph`."""
    _make_distinct(policy)
    rows: tuple[Any, ...] = tuple({0: torch.export.Dim("batch")} for _ in inputs)
    if any(each.kind is each.VAR_POSITIONAL for each in inspect.signature(policy.forward).parameters.values()):
        rows = (rows,)
    # The exporter prints its progress, and warns about unused packages.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            policy,
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=rows,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model, names = program.model_proto, policy.state_dict().keys()
    parameters = [tensor for tensor in model.graph.initializer if tensor.name in names]
    if missing := names - {tensor.name for tensor in parameters}:
        raise RuntimeError(f"the exported graph lacks the parameters {sorted(missing)} under their names")
    constants = [tensor for tensor in model.graph.initializer if tensor.name not in names]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in parameters
    )
    _strip(model)
    return model


def _make_distinct(policy: nn.Module) -> None:
    """Give all parameters and buffers different values, because the exporter merges equal ones, such as biases of 0."""
    generator = torch.Generator().manual_seed(0)
    for tensor in policy.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5, generator=generator)


def _strip(model: onnx.ModelProto) -> None:
    """Drop the exporter's debugging notes: source paths and stack traces, which differ between machines."""
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    parts: tuple[Any, ...] = (*model.graph.node, *model.graph.input, *model.graph.output)
    for part in parts:
        del part.metadata_props[:]
        part.doc_string = ""
    del model.graph.value_info[:]
