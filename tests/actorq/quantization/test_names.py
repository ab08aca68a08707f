"""Names of tensors in models of other libraries do not collide with names that schemes create."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from actorq.quantization.foreign.names import make_names_unique


def model_of(weight: str, bias: str, hidden: str, observation: str = "x", output: str = "y") -> onnx.ModelProto:
    """y = relu(x W + b)."""
    nodes = [
        helper.make_node("Gemm", [observation, weight, bias], [hidden]),
        helper.make_node("Relu", [hidden], [output]),
    ]
    tensors = [
        numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), weight),
        numpy_helper.from_array(np.array([0.5, -90, 1], np.float32), bias),
    ]
    given = helper.make_tensor_value_info(observation, TensorProto.FLOAT, ["batch", 2])
    made = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", 3])
    between = helper.make_tensor_value_info(hidden, TensorProto.FLOAT, ["batch", 3])
    graph = helper.make_graph(nodes, "names", [given], [made], tensors, value_info=[between])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def names_of(model: onnx.ModelProto) -> list[str]:
    """Weight, bias, hidden, observation and output."""
    gemm, relu = model.graph.node
    return [*gemm.input[1:], *gemm.output, gemm.input[0], *relu.output]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["w", "b", "h"], ["w", "b", "h", "x", "y"]),
        # A colon alone is harmless.
        (["a:0", "b:0", "c:0"], ["a:0", "b:0", "c:0", "x", "y"]),
        (["w", "w:scale", "h"], ["w", "w_scale", "h", "x", "y"]),
        (["w.weight", "w:0:bias", "h"], ["w.weight", "w_0_bias", "h", "x", "y"]),
        (["w", "w:a", "w_a"], ["w", "w_a_", "w_a", "x", "y"]),
        (["w", "w:a", "w:a:b"], ["w", "w_a", "w_a_b", "x", "y"]),
        (["w", "w:a:b", "w:a_b"], ["w", "w_a_b", "w_a_b_", "x", "y"]),
        (["w", "x:scale", "y:0"], ["w", "x_scale", "y_0", "x", "y"]),
    ],
)
def test_no_name_is_another_one_with_a_suffix(names: list[str], expected: list[str]) -> None:
    model = model_of(*names)

    make_names_unique(model.graph)

    assert names_of(model)[3:] == ["x", "y"]
    found = names_of(model)
    assert found == expected
    assert not any(a.startswith(f"{b}:") for a in found for b in found)


@pytest.mark.parametrize("ends", [("w:in", "y"), ("x", "h:out")])
def test_inputs_and_outputs_keep_their_names(ends: tuple[str, str]) -> None:
    model = model_of("w", "b", "h", *ends)

    make_names_unique(model.graph)

    found = names_of(model)
    assert tuple(found[3:]) == ends
    assert not any(a.startswith(f"{b}:") for a in found for b in found)


def test_an_input_and_an_output_keep_names_that_only_they_have() -> None:
    model = model_of("w", "b", "h", "x", "x:out")

    make_names_unique(model.graph)

    assert names_of(model) == ["w", "b", "h", "x", "x:out"]


def test_a_renamed_model_computes_the_same_and_declares_no_old_names() -> None:
    model = model_of("w", "w:scale", "w:h")
    x = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)
    (before,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})

    make_names_unique(model.graph)

    (after,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(after, before)
    assert not model.graph.value_info


def test_an_unchanged_model_keeps_its_declarations() -> None:
    model = model_of("w", "b", "h")

    make_names_unique(model.graph)

    assert model == model_of("w", "b", "h")
