"""The same policies with ONNX Runtime's own recurrent operators, in float32 and dynamically quantized."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.signature import NEXT_STATE, Role
from benchmarks.policies import OBSERVATION_SIZE
from benchmarks.policy.drift.networks import Recurrent

# The order of the gates in ONNX's operators, by their places in our cells.
_GATES = {"gru": (1, 0, 2), "lstm": (0, 2, 1, 3)}
_OPSET = 20


def with_operator(recurrent: Recurrent, kind: str) -> bytes:
    """The policy with a GRU or LSTM operator: observations and state -> mean and next state."""
    weights = {name: tensor.detach().numpy() for name, tensor in recurrent.policy.state_dict().items()}
    units = weights["memory.recurrent.weight"].shape[1]
    parts = 2 if kind == "lstm" else 1
    constants: dict[str, NDArray[np.generic]] = {
        "torso.weight": weights["torso.0.weight"],
        "torso.bias": weights["torso.0.bias"],
        "head.weight": weights["head.weight"],
        "head.bias": weights["head.bias"],
        "W": _reordered(weights["memory.input.weight"], kind)[None],
        "R": _reordered(weights["memory.recurrent.weight"], kind)[None],
        "B": np.concatenate([_reordered(weights[f"memory.{name}.bias"], kind) for name in ("input", "recurrent")])[
            None
        ],
        "first": np.array([0], np.int64),
    }
    states = [f"state {part}" for part in range(parts)]
    following = [f"next state {part}" for part in range(parts)]
    operator = helper.make_node(
        kind.upper(),
        ["sequence", "W", "R", "B", "", *states],
        ["", *(f"{name}, sequence" for name in following)],
        hidden_size=units,
    )
    if kind == "gru":
        operator.attribute.append(helper.make_attribute("linear_before_reset", 1))
    nodes = [
        helper.make_node("Gemm", [OBSERVATIONS, "torso.weight", "torso.bias"], ["hidden"], transB=1),
        helper.make_node("Tanh", ["hidden"], ["features"]),
        helper.make_node("Unsqueeze", ["features", "first"], ["sequence"]),
        helper.make_node("Unsqueeze", [Role.STATE, "first"], ["states"]),
        helper.make_node("Split", ["states"], states, axis=2, num_outputs=parts)
        if parts > 1
        else helper.make_node("Identity", ["states"], states),
        operator,
        *(helper.make_node("Squeeze", [f"{name}, sequence", "first"], [name]) for name in following),
        helper.make_node("Concat", following, [NEXT_STATE], axis=1)
        if parts > 1
        else helper.make_node("Identity", following, [NEXT_STATE]),
        helper.make_node("Gemm", [following[0], "head.weight", "head.bias"], ["actions"], transB=1),
    ]
    shapes = {OBSERVATIONS: OBSERVATION_SIZE, Role.STATE: parts * units}
    ends = {"actions": len(weights["head.bias"]), NEXT_STATE: parts * units}
    body = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]) for name, size in shapes.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]) for name, size in ends.items()],
        [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def quantized(model: bytes, weights: QuantType) -> bytes:
    """The model with ONNX Runtime's dynamic quantization of all operators that it supports, among them LSTM."""
    with TemporaryDirectory() as folder:
        path, written = Path(folder) / "policy.onnx", Path(folder) / "quantized.onnx"
        path.write_bytes(model)
        quantize_dynamic(path, written, weight_type=weights)
        return written.read_bytes()


def _reordered(rows: NDArray[np.float32], kind: str) -> NDArray[np.float32]:
    """Rows of the gates of our cell, in the operator's order."""
    gates = np.split(rows, len(_GATES[kind]))
    return np.concatenate([gates[place] for place in _GATES[kind]])
