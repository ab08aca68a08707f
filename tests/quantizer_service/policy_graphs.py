"""Policy graphs as learners publish them, and checkpoints of them, for the tests of this room."""

from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from actorq.policy import Checkpoint, PolicyGraph
from quantizer_service.graph import Graph
from quantizer_service.plan import Plan
from quantizer_service.reference import Reference

Tensors = dict[str, NDArray[Any]]
OBSERVATION_SIZE, ACTIONS = 5, 3


def policy_graph(
    nodes: list[onnx.NodeProto],
    parameters: dict[str, list[int]],
    observation: tuple[int | str, ...] = ("batch", OBSERVATION_SIZE),
    output: str = "q_values",
    discrete_actions: bool = True,
) -> PolicyGraph:
    """A graph with the data input `observation` and the parameters as further inputs."""
    inputs = [helper.make_tensor_value_info("observation", TensorProto.FLOAT, observation)]
    inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in parameters.items()]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", "units"])]
    body = helper.make_graph(nodes, "policy", inputs, outputs)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return PolicyGraph(model.SerializeToString(), ("observation",), discrete_actions)


def mlp(*hidden: int) -> PolicyGraph:
    """Gemm (weights [N, K], as torch has them) and Relu in turn."""
    sizes = (OBSERVATION_SIZE, *hidden, ACTIONS)
    nodes, parameters, value = [], {}, "observation"
    for i, (inputs, units) in enumerate(pairwise(sizes)):
        last = i == len(sizes) - 2
        output = "q_values" if last else f"linear_{i}"
        names = [f"layers.{i}.weight", f"layers.{i}.bias"]
        parameters.update({names[0]: [units, inputs], names[1]: [units]})
        nodes.append(helper.make_node("Gemm", [value, *names], [output], transB=1))
        if not last:
            value = f"relu_{i}"
            nodes.append(helper.make_node("Relu", [output], [value]))
    return policy_graph(nodes, parameters)


def matmul_mlp(width: int = 16) -> PolicyGraph:
    """Three layers of MatMul and Add (weights [K, N]), the middle one without a bias."""
    nodes = [
        helper.make_node("MatMul", ["observation", "a.weight"], ["a_product"]),
        helper.make_node("Add", ["a_product", "a.bias"], ["a"]),
        helper.make_node("Tanh", ["a"], ["a_tanh"]),
        helper.make_node("MatMul", ["a_tanh", "b.weight"], ["b_product"]),
        helper.make_node("Add", ["b.bias", "b_product"], ["b"]),
        helper.make_node("Tanh", ["b"], ["b_tanh"]),
        helper.make_node("MatMul", ["b_tanh", "c.weight"], ["c"]),
        helper.make_node("Tanh", ["c"], ["c_tanh"]),
        helper.make_node("MatMul", ["c_tanh", "d.weight"], ["q_values"]),
    ]
    parameters = {"a.weight": [OBSERVATION_SIZE, width], "a.bias": [width], "b.weight": [width, width]}
    return policy_graph(nodes, {**parameters, "b.bias": [width], "c.weight": [width, 8], "d.weight": [8, ACTIONS]})


def dueling(width: int = 16) -> PolicyGraph:
    """Two layers, then a value and an advantage head: Q = V + A - mean A."""
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("Gemm", ["observation", "torso.0.weight", "torso.0.bias"], ["t0"], transB=1),
        helper.make_node("Relu", ["t0"], ["r0"]),
        helper.make_node("Gemm", ["r0", "torso.1.weight", "torso.1.bias"], ["t1"], transB=1),
        helper.make_node("Relu", ["t1"], ["r1"]),
        helper.make_node("Gemm", ["r1", "value.weight", "value.bias"], ["value"], transB=1),
        helper.make_node("Gemm", ["r1", "advantage.weight", "advantage.bias"], ["advantage"], transB=1),
        helper.make_node("Constant", [], ["axis"], value=axis),
        helper.make_node("ReduceMean", ["advantage", "axis"], ["mean"], keepdims=1),
        helper.make_node("Add", ["value", "advantage"], ["sum"]),
        helper.make_node("Sub", ["sum", "mean"], ["q_values"]),
    ]
    units = {"torso.0": (width, OBSERVATION_SIZE), "torso.1": (width, width), "value": (1, width)}
    units["advantage"] = (ACTIONS, width)
    parameters: dict[str, list[int]] = {}
    for name, (rows, columns) in units.items():
        parameters |= {f"{name}.weight": [rows, columns], f"{name}.bias": [rows]}
    return policy_graph(nodes, parameters)


def random_parameters(source: PolicyGraph, seed: int) -> Tensors:
    """Weights of the size that torch initializes them with."""
    rng = np.random.default_rng(seed)
    shapes = Graph.parse(source).parameters
    return {
        name: (rng.standard_normal(shape) / np.sqrt(max(shape, default=1))).astype(np.float32)
        for name, shape in shapes.items()
    }


def random_observations(rows: int = 32, seed: int = 0) -> Tensors:
    """A batch of observations: float32[rows, 5]."""
    rng = np.random.default_rng(seed)
    return {"observation": rng.standard_normal((rows, OBSERVATION_SIZE)).astype(np.float32)}


def checkpoint(source: PolicyGraph, version: int, **changes: Any) -> Checkpoint:
    """A version with weights of its own; `changes` replace its fields."""
    fields: dict[str, Any] = {
        "version": version,
        "learner_step": version * 100,
        "topology": source.topology,
        "parameters": random_parameters(source, version),
        "calibration": random_observations(seed=version),
        "snapshot_at": 1_700_000_000.0 + version,
    }
    return Checkpoint(**{**fields, **changes})


def emitted(plan: Plan, parameters: Tensors, observations: Tensors | None = None, version: int = 1) -> bytes:
    """The model of run "run", calibrated with `observations` where the scheme needs it."""
    ranges = {}
    if plan.observed:
        ranges = Reference(plan.graph).ranges(parameters, observations or random_observations(), plan.observed)
    return plan.emit(parameters, ranges, "run", version).model


def fp32_outputs(graph: Graph, parameters: Tensors, observations: Tensors) -> NDArray[np.float64]:
    """The first output of the FP32 policy."""
    return next(iter(Reference(graph).run(parameters, observations).values()))


def float_layers(plan: Plan) -> tuple[str, ...]:
    """Names of the layers whose weights a plan leaves in float."""
    ranges = dict.fromkeys(plan.observed, (-1.0, 1.0))
    layers = plan.emit(random_parameters(plan.graph.source, 0), ranges, "run", 1).layers
    return tuple(layer.name for layer in layers if layer.in_float)


def outputs_of(model: bytes, feeds: Tensors) -> NDArray[np.float32]:
    """The first output of a complete model, as an actor computes it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == list(feeds)
    output: NDArray[np.float32] = session.run(None, feeds)[0]
    return output
