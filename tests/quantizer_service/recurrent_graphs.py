"""Graphs of policies with memory, with weights that make the emitted policy drift or not."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from actorq.domain.policy import SEQUENCE_LENGTHS, Checkpoint, PolicyGraph
from tests.builders.graphs import graph_of
from tests.quantizer_service.policy_graphs import ACTIONS, OBSERVATION_SIZE, Tensors

UNITS, STATE = 64, 16
STEPS, SEQUENCES = 64, 6
# The observation around which all stored sequences stay.
STEADY = np.linspace(-1.5, 1.5, OBSERVATION_SIZE, dtype=np.float32)


def integrator() -> PolicyGraph:
    """A policy that adds a layer's outputs to its state at each step, and acts by a network of its state.

    Its layers are "in", "sum" (of the features, added to the state), "act" and "head".
    """
    nodes = [
        helper.make_node("Gemm", ["observation", "in.weight", "in.bias"], ["i"], transB=1),
        helper.make_node("Tanh", ["i"], ["features"]),
        helper.make_node("Gemm", ["features", "sum.weight", "sum.bias"], ["change"], transB=1),
        helper.make_node("Add", ["state", "change"], ["next_state"]),
        helper.make_node("Gemm", ["next_state", "act.weight", "act.bias"], ["a"], transB=1),
        helper.make_node("Tanh", ["a"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "head.weight", "head.bias"], ["actions"], transB=1),
    ]
    shapes = {
        "in": (UNITS, OBSERVATION_SIZE),
        "sum": (STATE, UNITS),
        "act": (UNITS, STATE),
        "head": (ACTIONS, UNITS),
    }
    inputs = {"observation": [OBSERVATION_SIZE], "state": [STATE]}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *size]) for name, size in inputs.items()]
    for name, (rows, columns) in shapes.items():
        values.append(helper.make_tensor_value_info(f"{name}.weight", TensorProto.FLOAT, [rows, columns]))
        values.append(helper.make_tensor_value_info(f"{name}.bias", TensorProto.FLOAT, [rows]))
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("actions", ACTIONS), ("next_state", STATE))
    ]
    body = helper.make_graph(nodes, "policy", values, outputs)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return graph_of(model.SerializeToString(), ("observation", "state"), discrete=False)


def parameters(seed: int = 0) -> Tensors:
    """Random weights. The changes of the state cancel at the observation `STEADY`: small differences of large sums."""
    rng = np.random.default_rng(seed)
    shapes = {"in": (UNITS, OBSERVATION_SIZE), "sum": (STATE, UNITS), "act": (UNITS, STATE), "head": (ACTIONS, UNITS)}
    found: Tensors = {}
    for name, (rows, columns) in shapes.items():
        found[f"{name}.weight"] = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
        found[f"{name}.bias"] = np.zeros(rows, np.float32)
    features = np.tanh(found["in.weight"] @ STEADY)
    found["sum.bias"] = -(found["sum.weight"] @ features).astype(np.float32)
    return found


def calibration(rows: int = 128) -> Tensors:
    """Observations and states of all kinds."""
    rng = np.random.default_rng(1)
    return {
        "observation": rng.standard_normal((rows, OBSERVATION_SIZE)).astype(np.float32),
        "state": rng.standard_normal((rows, STATE)).astype(np.float32),
    }


def sequences(lengths: tuple[int, ...] = (STEPS,) * SEQUENCES, spread: float = 0.05) -> Tensors:
    """Stored sequences around the observation `STEADY`, with random states before them."""
    rng, count = np.random.default_rng(2), len(lengths)
    noise: NDArray[Any] = spread * rng.standard_normal((max(lengths), count, OBSERVATION_SIZE))
    return {
        SEQUENCE_LENGTHS: np.array(lengths, np.int32),
        "observation": (STEADY + noise).astype(np.float32),
        "state": (0.3 * rng.standard_normal((count, STATE))).astype(np.float32),
    }


def version(graph: PolicyGraph, number: int = 1, **changes: Any) -> Checkpoint:
    """A version of the integrator, with sequences unless `changes` has others."""
    fields: dict[str, Any] = {"parameters": parameters(), "calibration": calibration(), "sequences": sequences()}
    return Checkpoint(number, number, graph.digest, snapshot_at=1_700_000_000.0, **{**fields, **changes})
