"""Allowed operators, limits on a graph's cost, and the end of work that takes too long."""

import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from actorq.domain.policy import PolicyGraph
from actorq.errors import InvalidInputError
from actorq.quantization.footprint import MAX_BYTES, TRIAL_ROWS, Footprint
from actorq.quantization.graph import Graph
from actorq.quantization.operators import ALLOWED, MAX_EDGES, check_operators
from quantizer_service.emission.prepared_graph import PreparedGraph
from tests.quantizer_service.hostile_graphs import REFUSED, squares, with_states
from tests.quantizer_service.policy_graphs import GRAPHS, nature_cnn, policy_graph
from tests.quantizer_service.policy_runs import random_inputs

MIB = 1024**2


@pytest.mark.parametrize("what", REFUSED)
def test_refuses_an_expensive_graph_in_one_line_before_running_it(what: str) -> None:
    source, fact = REFUSED[what]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(InvalidInputError, match=fact) as refused:
        PreparedGraph(Graph.parse(source))

    assert "\n" not in str(refused.value)
    # The file size is in KiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


@pytest.mark.parametrize(
    "operator", ["Loop", "If", "Scan", "SequenceMap", "SequenceAt", "StringNormalizer", "Optional"]
)
def test_operators_of_subgraphs_sequences_or_text_are_not_allowed(operator: str) -> None:
    assert operator not in ALLOWED


def test_every_allowed_operator_is_one_of_onnx_and_has_no_subgraph() -> None:
    schemas = {schema.name: schema for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}

    assert schemas.keys() >= ALLOWED
    kind = onnx.defs.OpSchema.AttrType
    for operator in ALLOWED:
        kinds = {attribute.type for attribute in schemas[operator].attributes.values()}
        assert not kinds & {kind.GRAPH, kind.GRAPHS}


def test_the_inputs_and_outputs_of_all_nodes_are_bounded() -> None:
    model = onnx.ModelProto()
    model.graph.node.append(helper.make_node("Sum", ["x"] * (MAX_EDGES - 1), ["y"]))
    check_operators(model)
    model.graph.node.append(helper.make_node("Constant", [], ["z"], value_float=0.0))

    with pytest.raises(InvalidInputError, match=f"{MAX_EDGES} inputs and outputs of nodes, got {MAX_EDGES + 1}"):
        check_operators(model)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_policy_fits_with_the_rows_that_learners_send(name: str) -> None:
    graph = Graph.parse(GRAPHS[name])
    batch = random_inputs(graph, 512)

    fitting = Footprint(graph.model, tuple(graph.inputs)).fitting(batch)

    assert all(np.array_equal(fitting[input_name], array) for input_name, array in batch.items())


def test_reduces_a_batch_that_costs_too_much_until_it_fits() -> None:
    graph = Graph.parse(nature_cnn(84))
    footprint = Footprint(graph.model, tuple(graph.inputs))
    rows = 16_384
    frames = np.zeros((rows, 4, 84, 84), np.uint8)
    frames[:, 0, 0, 0] = np.arange(rows) % 251

    taken = footprint.fitting({"observation": frames})["observation"]

    with pytest.raises(InvalidInputError, match=f"bytes for {rows} rows"):
        footprint.check(rows)
    assert rows // 32 <= len(taken) < rows
    footprint.check(len(taken))
    # The rows include the first and the last, and are evenly spaced.
    assert (taken[0, 0, 0, 0], taken[-1, 0, 0, 0]) == (0, (rows - 1) % 251)


def test_refuses_a_graph_whose_trial_rows_cost_too_much() -> None:
    """An observation of 16 MiB, cast to float sixteen times."""
    nodes = [helper.make_node("Cast", ["observation"], ["x0"], to=TensorProto.FLOAT)]
    nodes += [helper.make_node("Neg", [f"x{i}"], [f"x{i + 1}"]) for i in range(16)]
    nodes += [
        helper.make_node("ReduceMean", ["x16", "axes"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "weight"], ["q_values"]),
    ]
    source = policy_graph(
        nodes, {"weight": [4, 3]}, ("batch", 4, 2048, 2048), pixels=True, constants={"axes": np.array([2, 3])}
    )

    with pytest.raises(InvalidInputError, match=f" {TRIAL_ROWS} rows.* {MAX_BYTES:,}"):
        PreparedGraph(Graph.parse(source))


def expanded(nodes: list[onnx.NodeProto], constants: dict[str, NDArray[Any]]) -> PolicyGraph:
    return policy_graph(
        [
            *nodes,
            helper.make_node("Add", ["observation", "z"], ["sum"]),
            helper.make_node("MatMul", ["sum", "weight"], ["q_values"]),
        ],
        {"weight": [5, 3], "token": [1, 5]},
        constants=constants,
    )


def node(operator: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [output], **attributes)


def torchscripts_expand() -> PolicyGraph:
    """`token.expand(x.shape[0], -1)` as torch.onnx.export(dynamo=False) exports it."""
    nodes = [
        node("Shape", ["observation"], "shape"),
        node("Gather", ["shape", "zero"], "rows"),
        node("Unsqueeze", ["rows", "axis"], "rows_1"),
        node("Concat", ["rows_1", "five"], "target", axis=0),
        node("ConstantOfShape", ["two"], "ones", value=helper.make_tensor("v", TensorProto.INT64, [1], [1])),
        node("Mul", ["ones", "minus"], "minuses"),
        node("Equal", ["target", "minuses"], "kept"),
        node("Where", ["kept", "ones", "target"], "sizes"),
        node("Expand", ["token", "sizes"], "z"),
    ]
    return expanded(
        nodes,
        {
            "zero": np.array(0),
            "axis": np.array([0]),
            "five": np.array([-1]),
            "two": np.array([2]),
            "minus": np.array(-1),
        },
    )


def computed_slice() -> PolicyGraph:
    """Sizes from division, remainder and a slice of a shape, as in multi-head attention."""
    nodes = [
        node("Shape", ["observation"], "shape"),
        node("Slice", ["shape", "one", "end"], "tail"),
        node("Div", ["tail", "one"], "whole"),
        node("Mod", ["whole", "six"], "rest"),
        node("Concat", ["minus_one", "rest"], "sizes", axis=0),
        node("Reshape", ["token", "sizes"], "z"),
    ]
    constants = {"one": [1], "end": [2**63 - 1], "six": [6], "minus_one": [-1]}
    return expanded(nodes, {name: np.array(values) for name, values in constants.items()})


@pytest.mark.parametrize("source", [torchscripts_expand, computed_slice])
def test_accepts_sizes_that_depend_on_the_batch(source: Callable[[], PolicyGraph]) -> None:
    graph = Graph.parse(source())
    PreparedGraph(graph)

    Footprint(graph.model, tuple(graph.inputs)).check(1000)


def test_the_bounds_leave_room_for_work_that_ends_in_time() -> None:
    """Runs work at the limit. It must end within the time limit for work."""
    PreparedGraph(Graph.parse(squares(1024, 20)))


def test_handles_many_possible_states_quickly() -> None:
    graph = Graph.parse(with_states(60, 2000))
    before = time.process_time()

    assert graph.layers[0].first

    assert time.process_time() - before < 2
