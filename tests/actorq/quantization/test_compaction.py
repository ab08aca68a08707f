"""Compaction removes dead units and keeps the policy's function."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from actorq.domain.policy import PolicyGraph
from actorq.quantization.compaction import Compactor, LiveUnits
from actorq.quantization.graph import Graph
from actorq.quantization.units import find_units
from quantizer_service.emission.reference import Reference
from tests.quantizer_service.policy_graphs import (
    ACTIONS,
    GRAPHS,
    OBSERVATION_SIZE,
    Tensors,
    dueling,
    matmul_mlp,
    mlp,
    policy_graph,
)
from tests.quantizer_service.policy_runs import random_inputs, random_parameters

EPSILON = float(np.finfo(np.float32).eps)


def activated(*operators: str) -> PolicyGraph:
    """Layers of 12 units with these operators between them. The middle layer has no bias."""
    sizes, value = (OBSERVATION_SIZE, *[12] * len(operators), ACTIONS), "observation"
    nodes: list[onnx.NodeProto] = []
    parameters: dict[str, list[int]] = {}
    for i, operator in enumerate((*operators, "")):
        names = [f"l{i}.weight", f"l{i}.bias"][: 1 if i == 1 else 2]
        parameters |= {f"l{i}.weight": [sizes[i + 1], sizes[i]]}
        parameters |= {f"l{i}.bias": [sizes[i + 1]]} if i != 1 else {}
        output = f"x{i}" if operator else "actions"
        nodes.append(helper.make_node("Gemm", [value, *names], [output], transB=1))
        value = output
        if operator == "Silu":
            nodes.append(helper.make_node("Sigmoid", [value], [f"s{i}"]))
            nodes.append(helper.make_node("Mul", [value, f"s{i}"], [f"h{i}"]))
        elif operator == "Scaled":
            nodes.append(helper.make_node("Mul", ["half", value], [f"h{i}"]))
        elif operator:
            nodes.append(helper.make_node(operator, [value], [f"h{i}"]))
        value = f"h{i}"
    constants = {"half": np.array(0.5, np.float32)} if "Scaled" in operators else {}
    return policy_graph(nodes, parameters, output="actions", discrete_actions=False, constants=constants)


def residual(width: int = 8) -> PolicyGraph:
    """x = relu(a o), then x + b x, then the outputs. The units of two layers are added."""
    nodes = [
        helper.make_node("Gemm", ["observation", "a.weight", "a.bias"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["x"]),
        helper.make_node("Gemm", ["x", "b.weight", "b.bias"], ["b"], transB=1),
        helper.make_node("Add", ["x", "b"], ["y"]),
        helper.make_node("Gemm", ["y", "c.weight", "c.bias"], ["q_values"], transB=1),
    ]
    parameters = {"a.weight": [width, OBSERVATION_SIZE], "a.bias": [width], "b.weight": [width, width]}
    return policy_graph(nodes, {**parameters, "b.bias": [width], "c.weight": [ACTIONS, width], "c.bias": [ACTIONS]})


def concatenated(width: int = 8) -> PolicyGraph:
    """Hidden units and observations side by side."""
    nodes = [
        helper.make_node("Gemm", ["observation", "a.weight", "a.bias"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["x"]),
        helper.make_node("Concat", ["x", "observation"], ["y"], axis=1),
        helper.make_node("Gemm", ["y", "b.weight", "b.bias"], ["q_values"], transB=1),
    ]
    parameters = {"a.weight": [width, OBSERVATION_SIZE], "a.bias": [width]}
    inputs = width + OBSERVATION_SIZE
    return policy_graph(nodes, {**parameters, "b.weight": [ACTIONS, inputs], "b.bias": [ACTIONS]})


def branched(width: int = 8) -> PolicyGraph:
    """Units that one layer reads directly, and another after a Relu."""
    nodes = [
        helper.make_node("Gemm", ["observation", "a.weight", "a.bias"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["x"]),
        helper.make_node("Gemm", ["x", "b.weight", "b.bias"], ["b"], transB=1),
        helper.make_node("Gemm", ["a", "c.weight", "c.bias"], ["c"], transB=1),
        helper.make_node("Add", ["b", "c"], ["q_values"]),
    ]
    parameters = {"a.weight": [width, OBSERVATION_SIZE], "a.bias": [width]}
    parameters |= {"b.weight": [ACTIONS, width], "b.bias": [ACTIONS]}
    return policy_graph(nodes, {**parameters, "c.weight": [ACTIONS, width], "c.bias": [ACTIONS]})


NETWORKS: dict[str, PolicyGraph] = {
    **GRAPHS,
    "deep": mlp(9, 7, 11, 5),
    "elu tanh": activated("Elu", "Tanh", "Relu"),
    "silu softplus": activated("Silu", "Softplus", "LeakyRelu"),
    "sigmoid scaled": activated("Sigmoid", "Scaled", "Gelu"),
    "residual": residual(),
    "concatenated": concatenated(),
    "branched": branched(),
}


def sparse(source: PolicyGraph, density: float, seed: int) -> Tensors:
    """Random parameters whose matrices have this share of nonzero values. Some biases are 0, too."""
    rng = np.random.default_rng(seed)
    parameters = random_parameters(source, seed)
    for array in parameters.values():
        array[rng.random(array.shape) >= (density if array.ndim > 1 else 0.7)] = 0
    return parameters


def shrunk(source: PolicyGraph, parameters: Tensors) -> tuple[Graph, Tensors, LiveUnits] | None:
    compactor = Compactor(Graph.parse(source))
    live = compactor.live_units(parameters)
    if live is None:
        return None
    left = compactor.parameters(parameters, live)
    assert left is not None
    return compactor.graph(live), left, live


def rounding(graph: Graph, parameters: Tensors) -> float:
    """Largest difference between two orders of summation: each sum of K terms differs by K eps of its magnitudes."""
    magnitude, terms = 4.0, 0
    for name, shape in graph.parameters.items():
        if len(shape) > 1:
            weights = np.abs(parameters[name]).reshape(shape[0], -1)
            magnitude = max(magnitude, 1.0) * max(
                1.0, float(weights.sum(axis=1).max()), float(weights.sum(axis=0).max())
            )
            terms += math.prod(shape[1:]) + shape[0]
        else:
            magnitude += float(np.abs(parameters[name]).max())
    return EPSILON * terms * magnitude


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(NETWORKS)), density=st.floats(0, 0.6), seed=st.integers(0, 2**16))
def test_outputs_differ_by_the_order_of_summation_at_most(name: str, density: float, seed: int) -> None:
    source, parameters = NETWORKS[name], sparse(NETWORKS[name], density, seed)
    found = shrunk(source, parameters)
    if found is None:
        return
    graph, left, _ = found
    feeds = random_inputs(graph, 16, seed)
    before = Reference(Graph.parse(source)).run(parameters, feeds)

    graph.check_parameters(left)
    after = Reference(Graph.parse(graph.source)).run(left, feeds)

    assert after.keys() == before.keys()
    for output, values in before.items():
        np.testing.assert_allclose(after[output], values, rtol=0, atol=rounding(Graph.parse(source), parameters))


@settings(max_examples=60, deadline=None)
@given(density=st.floats(0.02, 0.3), seed=st.integers(0, 2**16))
def test_no_removable_unit_remains(density: float, seed: int) -> None:
    source = mlp(24, 24, 24)
    found = shrunk(source, sparse(source, density, seed))
    if found is None:
        return
    graph, left, live = found
    # A dead unit that its layer keeps does not count. It is found again.
    if all(counted.any() for counted in live.alive):
        assert Compactor(graph).live_units(left) is None


@settings(max_examples=60, deadline=None)
@given(density=st.floats(0.1, 0.5), seed=st.integers(0, 2**16))
def test_without_folded_constants_outputs_of_few_inputs_are_equal_to_the_last_bit(density: float, seed: int) -> None:
    source, rng = mlp(16, 16), np.random.default_rng(seed)
    parameters = sparse(source, density, seed)
    for i in (0, 1):
        # Every unit has an input, and some have no reader.
        parameters[f"layers.{i}.weight"][:, rng.integers(0, 5)] = rng.standard_normal(16)
        parameters[f"layers.{i + 1}.weight"][:, rng.random(16) < 0.4] = 0
    found = shrunk(source, parameters)
    if found is None or any(constant.any() for constant in found[2].constant):
        return
    graph, left, _ = found
    feeds = random_inputs(graph, 16, seed)

    before = Reference(Graph.parse(source)).run(parameters, feeds)["q_values"]

    np.testing.assert_array_equal(Reference(graph).run(left, feeds)["q_values"], before)


def without(*silent: int, unread: tuple[int, ...] = ()) -> Callable[[Tensors], None]:
    def change(parameters: Tensors) -> None:
        parameters["layers.0.weight"][list(silent)] = 0
        parameters["layers.1.weight"][:, list(unread)] = 0

    return change


def test_a_unit_without_inputs_becomes_a_bias_and_one_that_nothing_reads_is_dropped() -> None:
    source = mlp(8, 8)
    parameters = random_parameters(source, 1)
    parameters["layers.0.bias"][2] = 0.75
    without(2, unread=(5, 6))(parameters)

    found = shrunk(source, parameters)

    assert found is not None
    graph, left, live = found
    assert graph.parameters["layers.0.weight"] == (5, OBSERVATION_SIZE)
    assert graph.parameters["layers.1.weight"] == (8, 5)
    expected = parameters["layers.1.bias"] + parameters["layers.1.weight"][:, 2].astype(np.float64) * 0.75
    np.testing.assert_array_equal(left["layers.1.bias"], expected.astype(np.float32))
    assert Compactor(Graph.parse(source)).widths(live) == {"layers.0": (8, 5)}


def test_repeats_until_nothing_changes() -> None:
    source = mlp(4, 4, 4)
    parameters = random_parameters(source, 1)
    # Unit 1 of the first layer has no input. It is the only input of unit 1 of the second layer, and so on.
    parameters["layers.0.weight"][1] = 0
    for layer in (1, 2):
        parameters[f"layers.{layer}.weight"][1] = [0, 1, 0, 0]
    # Unit 3 of the third layer has no reader. It is the only reader of unit 3 of the second layer.
    parameters["layers.3.weight"][:, 3] = 0
    parameters["layers.2.weight"][:3, 3] = 0

    found = shrunk(source, parameters)

    assert found is not None
    assert [found[0].parameters[f"layers.{i}.weight"] for i in range(4)] == [(3, 5), (2, 3), (2, 2), (ACTIONS, 2)]


def test_keeps_one_unit_per_layer_of_a_policy_with_zero_weights() -> None:
    source = mlp(8, 8)
    parameters = random_parameters(source, 1)
    for name, array in parameters.items():
        if name.endswith("weight") and not name.startswith("layers.2"):
            array[:] = 0

    found = shrunk(source, parameters)

    assert found is not None
    graph, left, _ = found
    assert [shape for name, shape in graph.parameters.items() if name.endswith("weight")] == [(1, 5), (1, 1), (3, 1)]
    outputs = Reference(graph).run(left, random_inputs(graph, 4))["q_values"]
    hidden = np.maximum(parameters["layers.1.bias"], 0).astype(np.float64)
    np.testing.assert_allclose(
        outputs, np.tile(parameters["layers.2.weight"] @ hidden + parameters["layers.2.bias"], (4, 1)), rtol=1e-5
    )


def test_folds_a_constant_into_each_reader() -> None:
    source = branched()
    parameters = random_parameters(source, 1)
    parameters["a.weight"][2] = 0
    parameters["a.bias"][2] = -0.75

    found = shrunk(source, parameters)

    assert found is not None
    np.testing.assert_array_equal(found[1]["b.bias"], parameters["b.bias"])
    expected = parameters["c.bias"] + parameters["c.weight"][:, 2].astype(np.float64) * -0.75
    np.testing.assert_array_equal(found[1]["c.bias"], expected.astype(np.float32))


@pytest.mark.parametrize("layer", ["c", "d"])
def test_a_layer_without_a_bias_gets_one_for_a_constant(layer: str) -> None:
    source = matmul_mlp(8)
    parameters = random_parameters(source, 1)
    before = {"c": "b", "d": "c"}[layer]
    parameters[f"{before}.weight"][:, 3] = 0

    found = shrunk(source, parameters)

    assert found is not None
    graph, left, _ = found
    # Without a bias, the constant is tanh(0) = 0. The graph does not depend on the constant's value.
    assert f"{layer}:folded" in graph.parameters
    feeds = random_inputs(graph, 8)
    expected = Reference(Graph.parse(source)).run(parameters, feeds)["q_values"]
    np.testing.assert_allclose(Reference(graph).run(left, feeds)["q_values"], expected, atol=1e-5)
    onnx.checker.check_model(graph.model, full_check=True)


def test_a_unit_stays_while_one_of_its_reading_layers_stays() -> None:
    source = dueling(8)
    parameters = random_parameters(source, 1)
    parameters["value.weight"][:, 1:4] = 0
    parameters["advantage.weight"][:, 3:6] = 0

    found = shrunk(source, parameters)

    assert found is not None
    assert found[0].parameters["torso.1.weight"] == (7, 8)
    assert found[0].parameters["value.weight"] == (1, 7)
    assert found[0].parameters["advantage.weight"] == (ACTIONS, 7)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("d4pg", "0"),
        ("residual", "a"),
        ("residual", "b"),
        ("concatenated", "a"),
        ("mlp", "layers.3"),
        ("nature cnn", "conv1"),
    ],
    ids=["a normalization", "a sum", "part of a sum", "a concatenation", "an output", "a convolution"],
)
def test_keeps_units_that_other_operators_read(name: str, layer: str) -> None:
    graph = Graph.parse(NETWORKS[name])
    assert layer in {each.name for each in graph.layers}
    assert layer not in {group.layer.name for group in find_units(graph)}


def test_keeps_weights_that_several_nodes_share() -> None:
    source = GRAPHS["shared weights"]
    parameters = {name: np.zeros_like(array) for name, array in random_parameters(source, 1).items()}
    graph = Graph.parse(source)

    shared = {name for name, count in Counter(layer.name for layer in graph.layers).items() if count > 1}
    assert shared
    assert shared.isdisjoint(layer.name for group in find_units(graph) for layer in (group.layer, *group.readers))
    found = shrunk(source, parameters)
    assert found is None or Reference(found[0]).run(found[1], random_inputs(found[0], 2))


def test_dense_weights_are_left_as_they_are() -> None:
    for source in GRAPHS.values():
        assert Compactor(Graph.parse(source)).live_units(random_parameters(source, 1)) is None


def test_keeps_a_version_whose_folded_constant_exceeds_float32() -> None:
    source = mlp(4)
    parameters = random_parameters(source, 1)
    parameters["layers.0.weight"][1] = 0
    parameters["layers.0.bias"][1] = 3e38
    parameters["layers.1.weight"][:, 1] = 3e38
    compactor = Compactor(Graph.parse(source))
    live = compactor.live_units(parameters)

    assert live is not None
    assert compactor.parameters(parameters, live) is None


def test_names_and_types_of_inputs_and_outputs_stay() -> None:
    source = activated("Relu", "Tanh")
    found = shrunk(source, sparse(source, 0.1, 1))

    assert found is not None
    graph = found[0]
    assert graph.inputs == Graph.parse(source).inputs
    assert graph.model.graph.output == Graph.parse(source).model.graph.output
    assert graph.signature == source.signature
    (shape,) = [value.type.tensor_type for value in graph.model.graph.input if value.name == "observation"]
    assert shape.elem_type == TensorProto.FLOAT


def test_equal_live_units_have_equal_keys_and_others_do_not() -> None:
    source = matmul_mlp(8)
    compactor = Compactor(Graph.parse(source))

    def key(seed: int, silent: int, unread: int) -> bytes:
        parameters = random_parameters(source, seed)
        parameters["b.weight"][:, silent] = 0
        parameters["c.weight"][unread] = 0
        live = compactor.live_units(parameters)
        assert live is not None
        return live.key

    assert key(1, 3, 4) == key(2, 3, 4)
    # The same units remain, but only the second has a constant to fold into a layer without a bias.
    assert len({key(1, 3, 4), key(1, 3, 5), key(1, 4, 4)}) == 3
