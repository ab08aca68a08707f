"""A training form describes the computation of an emitted model. NumPy computes it here from the form alone."""

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from actorq.domain.policy import FLOAT32, INT8_PER_CHANNEL, INT8_PER_TENSOR, PolicyGraph
from actorq.quantization.calibration import Observed, Statistic
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import SCHEMES, Options, scheme_named, training_forms
from actorq.quantization.schemes.base import Plan
from actorq.quantization.training import Place, TrainingForm, Uint8, with_bits
from tests.quantizer_service.policy_graphs import GRAPHS, Tensors, mlp, policy_graph
from tests.quantizer_service.policy_runs import emission, outputs_of, random_inputs, random_parameters, reference_of

Array = NDArray[np.float32]
Ranges = Mapping[Place, tuple[float, float]]
SOURCE = mlp(32, 48, 32)


def averaged() -> PolicyGraph:
    """Two convolutions whose outputs no layer reads directly: one is pooled, the other rectified and averaged."""
    nodes = [
        helper.make_node("Conv", ["observation", "a.weight"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["pooled"], kernel_shape=[2, 2]),
        helper.make_node("Conv", ["pooled", "b.weight", "b.bias"], ["b"]),
        helper.make_node("Relu", ["b"], ["rectified"]),
        helper.make_node("GlobalAveragePool", ["rectified"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "head.weight"], ["q_values"], transB=1),
    ]
    parameters = {"a.weight": [8, 2, 3, 3], "b.weight": [8, 8, 3, 3], "b.bias": [8], "head.weight": [3, 8]}
    return policy_graph(nodes, parameters, ("batch", 2, 12, 12))


STATIC = {name: source for name, source in GRAPHS.items() if name != "shared weights"} | {"averaged": averaged()}


def ranges_of(graph: Graph, parameters: Tensors, batch: Tensors) -> dict[Place, tuple[float, float]]:
    """The lowest and highest value of each layer's inputs and outputs in float32."""
    plain = [layer for layer in graph.layers if not layer.obstacle]
    tensors = {Place(layer.name, False): layer.input for layer in plain}
    tensors |= {Place(layer.name, True): layer.output for layer in plain}
    wanted = {place: Observed(tensor, Statistic.RANGE) for place, tensor in tensors.items()}
    _, statistics = reference_of(graph).observe(parameters, batch, tuple(dict.fromkeys(wanted.values())))
    return {place: (float(low), float(high)) for place, key in wanted.items() for low, high in [statistics[key]]}


def in_uint8(values: Array, form: Uint8, ranges: Ranges) -> tuple[Array, float]:
    """The values after rounding, and their scale."""
    low, high = ranges[form.place] if form.place else (float(values.min()), float(values.max()))
    scale, zero_point = form.grid(low, high)
    whole = np.clip(np.rint(values / np.float32(scale)) + zero_point, 0, 255) - zero_point
    return (whole * scale).astype(np.float32), scale


def in_int8(weight: Array, form: TrainingForm, bias: Array, input_scale: float) -> tuple[Array, Array]:
    """The weight and the bias after rounding."""
    scale = np.abs(weight).max(axis=1, keepdims=True) / np.float32(127)
    if form.largest_bias:
        scale = np.maximum(scale, np.abs(bias)[:, None] / np.float32(input_scale * form.largest_bias))
    scale = scale if form.per_channel else scale.max(keepdims=True)
    if form.largest_bias:
        unit = np.float32(input_scale) * scale[:, 0]
        bias = np.rint(bias / unit) * unit
    return np.rint(weight / scale) * scale, bias


def in_blocks(values: Array, block: int, bits: int) -> Array:
    """Each row is cut into blocks, and each block has its own scale.

    8 bits cover -127 to 127. 4 bits cover -8 to 7, and the largest value becomes -8.
    """
    rounded = np.empty_like(values)
    for start in range(0, values.shape[1], block):
        part = values[:, start : start + block]
        largest = np.take_along_axis(part, np.abs(part).argmax(axis=1, keepdims=True), 1)
        scale = np.abs(largest) / np.float32(127) if bits == 8 else -largest / np.float32(8)
        scale = np.where(scale == 0, np.float32(1), scale)
        rounded[:, start : start + block] = np.minimum(np.rint(part / scale), 127 if bits == 8 else 7) * scale
    return rounded


def computed(graph: Graph, parameters: Tensors, forms: Mapping[str, TrainingForm], ranges: Ranges, x: Array) -> Array:
    """Linear layers with a Relu between them, computed from the forms."""
    for index, layer in enumerate(graph.layers):
        weight, bias, form, scale = parameters[layer.weight], parameters[str(layer.bias)], forms.get(layer.name), 1.0
        if form is not None and form.inputs is not None:
            x, scale = in_uint8(x, form.inputs, ranges)
        if form is not None and form.block:
            x, weight = in_blocks(x, form.block, 8), in_blocks(weight, form.block, 4)
        elif form is not None:
            weight, bias = in_int8(weight, form, bias, scale)
        x = x @ weight.T + bias
        if form is not None and form.outputs is not None:
            x, _ = in_uint8(x, form.outputs, ranges)
        x = x if index == len(graph.layers) - 1 else np.maximum(x, 0)
    return x


@pytest.mark.parametrize("per_tensor_error", [0.0, 1.0])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_form_computes_what_the_emitted_model_computes(scheme: str, ends: bool, per_tensor_error: float) -> None:
    graph, parameters = Graph.parse(SOURCE), random_parameters(SOURCE, 3)
    batch, x = random_inputs(graph, 256), random_inputs(graph, 200, 1)
    plan = Plan(graph, scheme_named(scheme), Options(ends=ends, per_tensor_error=per_tensor_error, compensate=False))
    made = emission(plan, parameters, batch)
    quantized = {layer.name: layer.weights for layer in made.layers if layer.weights != FLOAT32}

    forms = training_forms(scheme, graph, quantized)

    assert forms.keys() == quantized.keys()
    found = computed(graph, parameters, forms, ranges_of(graph, parameters, batch), x["observation"])
    expected = outputs_of(made.model, x)
    # Another order of float32 additions may round a few hidden values to the next integer.
    assert np.median(np.abs(found - expected)) < 1e-6 * np.ptp(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.02 * float(np.ptp(expected)))


@pytest.mark.parametrize("name", STATIC)
def test_static_grids_match_the_emitted_model(name: str) -> None:
    source, graph = STATIC[name], Graph.parse(STATIC[name])
    parameters, batch = random_parameters(source, 4), random_inputs(graph, 64)
    plan = Plan(graph, scheme_named("int8-static"), Options(ends=True, compensate=False))
    made = emission(plan, parameters, batch)
    body = onnx.load_from_string(made.model).graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in body.initializer}
    forms = training_forms("int8-static", graph, {each.name: each.weights for each in made.layers if not each.in_float})
    ranges = ranges_of(graph, parameters, batch)
    nodes = {node.name: node for node in body.node if node.op_type in ("QGemm", "QLinearConv")}

    assert nodes or not forms
    for layer in graph.layers:
        if layer.name not in forms:
            continue
        node, form = nodes.pop(f"{layer.weight}:{layer.nodes[0]}"), forms[layer.name]
        target = list(node.input[6:8] if node.op_type == "QLinearConv" else node.input[7:9])
        for grid, names in ((form.inputs, list(node.input[1:3])), (form.outputs, target)):
            assert bool(grid) == bool(names)
            if grid is not None and grid.place is not None:
                assert grid.grid(*ranges[grid.place]) == tuple(values[each].item() for each in names)
    assert not nodes


def test_a_form_says_whether_the_weights_of_a_layer_share_a_scale() -> None:
    held = {"layers.1": INT8_PER_TENSOR, "layers.2": INT8_PER_CHANNEL}

    forms = training_forms("int8", Graph.parse(SOURCE), held)

    assert {name: form.per_channel for name, form in forms.items()} == {"layers.1": False, "layers.2": True}


def test_layers_that_a_scheme_cannot_quantize_have_no_form() -> None:
    graph = Graph.parse(GRAPHS["nature cnn"])

    forms = training_forms("int8", graph, dict.fromkeys(("conv2", "torso"), INT8_PER_CHANNEL))

    assert forms.keys() == {"torso"}


def test_a_scheme_that_is_not_installed_has_no_forms() -> None:
    assert training_forms("elsewhere", Graph.parse(SOURCE), {"layers.1": INT8_PER_CHANNEL}) == {}


def test_a_form_lists_the_places_with_calibrated_ranges() -> None:
    place, own = Place("a", True), Place("b", False)

    assert TrainingForm().places == TrainingForm(inputs=Uint8(lambda low, high: (1.0, 0))).places == ()
    both = TrainingForm(Uint8(lambda low, high: (1.0, 0), own), Uint8(lambda low, high: (1.0, 0), place))
    assert both.places == (own, place)


def test_forms_whose_kernels_fix_the_bits_get_no_other_ones() -> None:
    assert with_bits(TrainingForm(per_channel=False), 3) == TrainingForm(bits=3)
    for form in (TrainingForm(block=32), TrainingForm(largest_bias=2.0)):
        with pytest.raises(ValueError, match="without blocks and integer biases"):
            with_bits(form, 3)
