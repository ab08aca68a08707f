"""Policies made with onnx.helper, for the tests of the actor's room."""

import hashlib
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from actor_service.acting.behaviors import behavior_policy
from actorq.domain.policy import FLOAT32, FidelityReport, LayerReport, Policy, PolicyDescriptor
from actorq.domain.signature import NEXT_STATE, Role
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration

NO_ERROR = FidelityReport(1, 0.0, 0.0, 0.0, 0.0, 1.0, ())


def as_policy(model: bytes, version: int = 1, scheme: str = "int8-weights", snapshot_at: float = 0.0) -> Policy:
    """A model with its description."""
    digest = hashlib.sha256(model).digest()
    return Policy(
        PolicyDescriptor("run", version, version * 10, scheme, digest, len(model), len(model), snapshot_at, NO_ERROR),
        model,
    )


def all_in_float(policy: Policy, scheme: str) -> Policy:
    """The policy under the name of a scheme that has quantized nothing of it."""
    fidelity = replace(NO_ERROR, layers=(LayerReport("layer", FLOAT32, "fidelity gate"),))
    return replace(policy, descriptor=replace(policy.descriptor, scheme=scheme, fidelity=fidelity))


def linear_policy(
    weights: NDArray[np.float32],
    bias: NDArray[np.float32],
    version: int = 1,
    element_type: int = TensorProto.FLOAT,
    output: str = "q_values",
) -> Policy:
    """output = flattened observations @ weights + bias; integer observations are cast first."""
    cast = [helper.make_node("Cast", ["observations"], ["floats"], to=TensorProto.FLOAT)]
    flatten = helper.make_node("Flatten", ["floats"], ["rows"])
    nodes = [*cast, flatten, helper.make_node("Gemm", ["rows", "weights", "bias"], [output])]
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("observations", element_type, None)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", len(bias)])],
        [
            onnx.numpy_helper.from_array(weights.astype(np.float32), "weights"),
            onnx.numpy_helper.from_array(bias.astype(np.float32), "bias"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return as_policy(model.SerializeToString(), version)


def constant_policy(values: list[float], observation_size: int = 4, version: int = 1) -> Policy:
    """A policy with the same action values for all observations."""
    return linear_policy(np.zeros((observation_size, len(values)), np.float32), np.array(values, np.float32), version)


def random_policy(observation_size: int, actions: int, seed: int = 0, version: int = 1) -> Policy:
    """Random linear action values."""
    rng = np.random.default_rng(seed)
    return linear_policy(
        rng.standard_normal((observation_size, actions)).astype(np.float32), np.zeros(actions, np.float32), version
    )


def noisy_policy(observation_size: int, actions: int, version: int = 1, greedy: bool = False) -> Policy:
    """A stochastic policy: every component is the sum of the observation's plus its noise.

    greedy: whether it has a second output, the same without noise.
    """
    values = [
        helper.make_tensor_value_info("observations", TensorProto.FLOAT, ["batch", observation_size]),
        helper.make_tensor_value_info("noise", TensorProto.FLOAT, ["batch", actions]),
        helper.make_tensor_value_info("actions", TensorProto.FLOAT, ["batch", actions]),
    ]
    nodes = [
        helper.make_node("ReduceSum", ["observations", "axes"], ["sums"], keepdims=1),
        helper.make_node("Add", ["noise", "sums"], ["actions"]),
    ]
    if greedy:
        values.append(helper.make_tensor_value_info("greedy_actions", TensorProto.FLOAT, ["batch", actions]))
        nodes.append(helper.make_node("Sub", ["actions", "noise"], ["greedy_actions"]))
    axes = onnx.numpy_helper.from_array(np.array([1]), "axes")
    graph = helper.make_graph(nodes, "policy", values[:2], values[2:], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return as_policy(model.SerializeToString(), version)


def logits_policy(logits: list[float], observation_size: int = 4, version: int = 1) -> Policy:
    """A policy with the same distribution of discrete actions for all observations."""
    weights = np.zeros((observation_size, len(logits)), np.float32)
    return linear_policy(weights, np.array(logits, np.float32), version, output="logits")


def gaussian_policy(
    mean: list[float], log_std: list[float], observation_size: int = 4, version: int = 1, rows: int | None = None
) -> Policy:
    """A policy with a Gaussian distribution: its mean is `mean` plus the sum of an observation.

    Its actions without noise are the mean clipped to [-1, 1].

    rows: fixed number of rows of log_std, for a policy that does not fit its batch; None for a row per observation.
    """
    arrays = {
        "axes": np.array([1]),
        "shift": np.array(mean, np.float32),
        "levels": np.array([log_std] * (rows or 1), np.float32),
        "none": np.float32(0),
        "low": np.float32(-1),
        "high": np.float32(1),
    }
    nodes = [
        helper.make_node("ReduceSum", ["observations", "axes"], ["sums"], keepdims=1),
        helper.make_node("Add", ["sums", "shift"], ["mean"]),
        helper.make_node("Clip", ["mean", "low", "high"], ["actions"]),
        helper.make_node("Mul", ["mean", "none"], ["zeros"]),
        helper.make_node("Identity" if rows else "Add", ["levels"] if rows else ["zeros", "levels"], ["log_std"]),
    ]
    observations = helper.make_tensor_value_info("observations", TensorProto.FLOAT, ["batch", observation_size])
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows if name == "log_std" else None, len(mean)])
        for name in ("actions", "mean", "log_std")
    ]
    tensors = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "policy", [observations], outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return as_policy(model.SerializeToString(), version)


def recurrent_policy(size: int, observation_size: int = 4, choices: int = 2, version: int = 1) -> Policy:
    """next_state = state + the sum of the observations; the values are zero."""
    arrays = {"axes": np.asarray([1]), "none": np.zeros((size, choices), np.float32)}
    nodes = [
        helper.make_node("ReduceSum", ["observations", "axes"], ["sums"], keepdims=1),
        helper.make_node("Add", ["state", "sums"], [NEXT_STATE]),
        helper.make_node("MatMul", [NEXT_STATE, "none"], ["q_values"]),
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]) for name, width in each]
        for each in (
            [("observations", observation_size), (Role.STATE, size)],
            [("q_values", choices), (NEXT_STATE, size)],
        )
    )
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "policy", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return as_policy(model.SerializeToString(), version)


def sampler_needs(spec: EnvironmentSpec) -> Collection[str]:
    """Roles that actors need of a policy where they draw actions."""
    exploration = Exploration((), (), sampling="clipped")
    return behavior_policy(spec, exploration, 1, np.random.default_rng(0)).needs
