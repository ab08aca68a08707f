from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from actorq.domain.policy import PolicyGraph
from actorq.domain.signature import signature_of
from actorq.errors import InvalidInputError
from actorq.quantization.graph import MAX_CONSTANT_BYTES, Graph
from actorq.quantization.schemes import SCHEMES, Options, scheme_named
from actorq.quantization.schemes.base import Plan
from quantizer_service.emission.reference import Reference
from tests.builders.graphs import graph_of
from tests.quantizer_service.policy_graphs import GRAPHS, Tensors, dueling, mlp, policy_graph
from tests.quantizer_service.policy_runs import random_inputs, random_observations, random_parameters


def changed(change: Callable[[onnx.ModelProto], object]) -> PolicyGraph:
    model = onnx.ModelProto.FromString(mlp(8).model)
    change(model)
    return graph_of(model.SerializeToString())


def weight_inside(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(MAX_CONSTANT_BYTES, np.float32), "inside"))


def integers_inside(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(2 * MAX_CONSTANT_BYTES, np.int8), "inside"))


def external_constant(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer.add(name="secret", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def local_function(model: onnx.ModelProto) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model.functions.append(helper.make_function("local", "helper", ["x"], ["y"], nodes, [helper.make_opsetid("", 20)]))


def test_a_graph_separates_inputs_and_parameters() -> None:
    graph = Graph.parse(mlp(8))

    assert list(graph.inputs) == ["observation"]
    assert graph.inputs["observation"].shape == (5,)
    assert graph.parameters["layers.0.weight"] == (8, 5)


@pytest.mark.parametrize(
    ("source", "fact"),
    [
        (graph_of(b"\xffnot a model"), "12 bytes"),
        (graph_of(mlp(8).model, ("pixels",)), r"data inputs.*pixels"),
        (changed(weight_inside), "'inside' of FLOAT.*graph inputs"),
        (changed(integers_inside), "'inside' of INT8.*float32"),
        (changed(lambda m: m.graph.ClearField("output")), "no outputs"),
        (changed(external_constant), "'secret'.*file"),
        (changed(lambda m: m.graph.node[0].input.__setitem__(0, "nowhere")), "nowhere"),
        (changed(lambda m: setattr(m.opset_import[0], "version", 9)), r"opset from 13 to \d+, got \[9\]"),
        (
            changed(lambda m: setattr(m.graph.input[1].type.tensor_type, "elem_type", TensorProto.DOUBLE)),
            r"'layers\.0\.weight'.*float32.*DOUBLE",
        ),
        (policy_graph([helper.make_node("Relu", ["observation"], ["q_values"])], {}), "got none"),
        (
            policy_graph([helper.make_node("MatMul", ["observation", "w"], ["q_values"])], {"w": [5, 0]}),
            r"'w'.*\[5, 0\]",
        ),
        (
            policy_graph([helper.make_node("Add", ["observation", "b"], ["q_values"])], {"b": [5]}, (1, 5)),
            "first dimension",
        ),
        (
            policy_graph(
                [helper.make_node("Add", ["observation", "b"], ["q_values"])], {"b": [1]}, ("batch", "size", 5)
            ),
            r"batch.*\['size', 5\]",
        ),
        (
            policy_graph([helper.make_node("Add", ["observation", "b"], ["q_values"])], {"b": [1]}, ("batch", 2**23)),
            "observation.* 16777216 .* 33554432",
        ),
        (
            policy_graph([helper.make_node("MatMul", ["observation", "w"], ["q_values"])], {"w": [5, 2**30]}),
            "parameters.* 536870912 .* 214748|536870912 .*parameters.* 214748",
        ),
        (
            changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", TensorProto.STRING)),
            "'observation'.*STRING",
        ),
        (
            PolicyGraph(mlp(8).model, signature_of(("observation",), ("q_values", "value"))),
            r"outputs \['q_values', 'value'\].*without \['value'\]",
        ),
        (
            changed(lambda m: m.graph.initializer.append(onnx.TensorProto(name="layers.0.bias", data_type=1))),
            r"'layers\.0\.bias' is both an input and an initializer",
        ),
        (
            policy_graph([helper.make_node("Add", ["observation", "b"], ["q_values"])], {"b": [5]}, (1, "batch", 5)),
            "'observation'.* as the second",
        ),
        (graph_of(mlp(8).model.replace(b"relu_0", b"relu_\xff")), "UTF-8"),
        (changed(local_function), "functions.*'helper'"),
    ],
)
def test_a_wrong_graph_is_refused_with_the_reason(source: PolicyGraph, fact: str) -> None:
    with pytest.raises(InvalidInputError, match=fact):
        Graph.parse(source)


def test_accepts_a_constant_that_is_not_a_weight() -> None:
    assert "axis" not in Graph.parse(dueling()).parameters


@pytest.mark.parametrize(
    ("observations", "reason"),
    [
        ({}, r"missing \['observation'\]"),
        ({**random_observations(), "goal": np.zeros((32, 2), np.float32)}, r"unexpected \['goal'\]"),
        ({"observation": np.zeros((0, 5), np.float32)}, "at least 1"),
        ({"observation": np.float32(1)}, "at least 1"),
        ({"observation": np.zeros((4, 6), np.float32)}, r"float32\['B', 5\].*float32\[4, 6\]"),
        ({"observation": np.zeros((4, 5), np.float64)}, "float64"),
        ({"observation": np.full((4, 5), np.nan, np.float32)}, "finite"),
    ],
)
def test_a_wrong_calibration_batch_is_refused(observations: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        Graph.parse(mlp(8)).check_calibration(observations)


def test_accepts_valid_tensors() -> None:
    graph = Graph.parse(mlp(8))

    graph.check_parameters(random_parameters(mlp(8), 0))
    graph.check_calibration(random_observations())


def complete(source: PolicyGraph, parameters: Tensors, as_nodes: bool = False, listed: bool = False) -> bytes:
    """The model of a graph with its weights as initializers or Constant nodes; up to IR 3 also as inputs."""
    model = onnx.ModelProto.FromString(source.model)
    tensors = [numpy_helper.from_array(array, name) for name, array in parameters.items()]
    if as_nodes:
        nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in tensors]
        nodes += model.graph.node
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    else:
        model.graph.initializer.extend(tensors)
    if not listed:
        del model.graph.input[len(source.signature.inputs) :]
    return model.SerializeToString()


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("as_nodes", "listed"), [(False, False), (True, False), (False, True)])
def test_a_complete_model_becomes_its_graph_and_parameters(name: str, as_nodes: bool, listed: bool) -> None:
    source = GRAPHS[name]
    parameters = random_parameters(source, 1)

    graph, found = Graph.from_model(complete(source, parameters, as_nodes, listed), source.signature.is_discrete)

    assert graph.signature.inputs == source.signature.inputs
    assert graph.signature.is_discrete == source.signature.is_discrete
    assert graph.parameters == Graph.parse(source).parameters
    assert found.keys() == parameters.keys()
    assert all(np.array_equal(found[key], array) for key, array in parameters.items())
    inputs = random_inputs(graph)
    expected = Reference(Graph.parse(source)).run(parameters, inputs)
    for key, output in Reference(graph).run(found, inputs).items():
        assert np.array_equal(output, expected[key])


def test_a_batch_of_one_becomes_free() -> None:
    source = mlp(8)
    parameters = random_parameters(source, 1)
    model = onnx.ModelProto.FromString(complete(source, parameters))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1

    graph, found = Graph.from_model(model.SerializeToString())

    assert Reference(graph).run(found, random_observations(7))["q_values"].shape == (7, 3)


def test_refuses_a_graph_that_works_only_for_a_batch_of_one() -> None:
    nodes = [
        helper.make_node("Reshape", ["observation", "sizes"], ["row"]),
        helper.make_node("MatMul", ["row", "weight"], ["values"]),
        helper.make_node("Reshape", ["values", "rows"], ["q_values"]),
    ]
    constants = {"sizes": np.array([5]), "rows": np.array([1, 3])}
    source = policy_graph(nodes, {"weight": [5, 3]}, constants=constants)
    model = onnx.ModelProto.FromString(complete(source, random_parameters(source, 1)))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    graph, _ = Graph.from_model(model.SerializeToString())

    with pytest.raises(InvalidInputError, match=r" 2 rows.*Reshape"):
        Reference(graph)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16])
def test_a_model_of_another_precision_is_refused(kind: int) -> None:
    source = mlp(8)
    model = onnx.ModelProto.FromString(complete(source, random_parameters(source, 1)))
    weight = model.graph.initializer[0]
    weight.CopyFrom(helper.make_tensor(weight.name, kind, weight.dims, np.zeros(tuple(weight.dims)).ravel()))

    with pytest.raises(InvalidInputError, match=rf"'layers\.0\.weight'.*{TensorProto.DataType.Name(kind)}.*float32"):
        Graph.from_model(model.SerializeToString())


def truncated(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]


def lengthened(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data += bytes(4)


def not_finite(model: onnx.ModelProto) -> None:
    array = numpy_helper.to_array(model.graph.initializer[0]).copy()
    array[0] = np.nan
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, model.graph.initializer[0].name))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (truncated, r"layers\.0\.weight.*156 bytes"),
        (lengthened, r"'layers\.0\.weight'.*float32\[8, 5\].* size 41 "),
        (not_finite, r"'layers\.0\.weight'.*finite.* 5 NaN"),
        (external_constant, "'secret'.*file"),
        (local_function, "functions.*'helper'"),
        (lambda model: model.graph.initializer.__delitem__(slice(None)), "layers.0.weight"),
        (lambda model: model.graph.ClearField("output"), "no outputs"),
    ],
)
def test_a_damaged_model_is_refused(change: Callable[[onnx.ModelProto], object], reason: str) -> None:
    source = mlp(8)
    model = onnx.ModelProto.FromString(complete(source, random_parameters(source, 1)))
    change(model)

    with pytest.raises(InvalidInputError, match=reason):
        Graph.from_model(model.SerializeToString())


def test_a_parameter_with_the_name_of_an_output_is_refused_with_a_remedy() -> None:
    # torch exports a module in this way if a parameter has the name of an output.
    source = GRAPHS["gaussian"]
    model = onnx.ModelProto.FromString(complete(source, random_parameters(source, 1)))
    (deviation,) = [tensor for tensor in model.graph.initializer if tensor.name == "log_std.value"]
    deviation.name = "log_std"
    (expand,) = [node for node in model.graph.node if node.op_type == "Expand"]
    expand.input[0] = "log_std"

    with pytest.raises(InvalidInputError, match=r"'log_std'.*parameter"):
        Graph.from_model(model.SerializeToString())


def test_bytes_that_are_no_model_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"ONNX.* 4 bytes"):
        Graph.from_model(b"\xff\xff\xff\xff")


def test_an_operator_that_does_not_exist_is_refused_by_name() -> None:
    nodes = [helper.make_node("NoSuchOperator", ["observation", "weight"], ["q_values"], domain="com.example")]
    model = onnx.ModelProto.FromString(policy_graph(nodes, {"weight": [5, 3]}).model)
    model.opset_import.append(helper.make_opsetid("com.example", 1))

    with pytest.raises(InvalidInputError, match=r"'q_values'.*com\.example\.NoSuchOperator"):
        Graph.parse(graph_of(model.SerializeToString()))


def test_outputs_that_are_not_batch_first_are_refused_before_any_version() -> None:
    nodes = [
        helper.make_node("MatMul", ["observation", "weight"], ["product"]),
        helper.make_node("Transpose", ["product"], ["q_values"]),
    ]
    graph = Graph.parse(policy_graph(nodes, {"weight": [5, 3]}))

    with pytest.raises(InvalidInputError, match=r"'q_values'.* 2 rows.*\[3, 2\]"):
        Reference(graph)


def test_accepts_a_graph_that_normalizes_zero_weights() -> None:
    nodes = [
        helper.make_node("MatMul", ["observation", "weight"], ["product"]),
        helper.make_node("ReduceL2", ["product", "axis"], ["norm"], keepdims=1),
        helper.make_node("Div", ["product", "norm"], ["q_values"]),
    ]
    source = policy_graph(nodes, {"weight": [5, 3]}, constants={"axis": np.array([1])})
    reference = Reference(Graph.parse(source))

    outputs = reference.run(random_parameters(source, 1), random_observations())["q_values"]
    assert np.allclose(np.linalg.norm(outputs, axis=1), 1)


@pytest.mark.parametrize("name", ["mlp", "nature cnn", "dueling"])
def test_damaged_bytes_raise_only_invalid_input_errors(name: str) -> None:
    source = GRAPHS[name]
    # Without the bytes of the weights, most of which may have any value.
    small = {key: np.zeros_like(array) for key, array in random_parameters(source, 1).items()}
    whole = complete(source, small) if name == "mlp" else source.model
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for position in rng.integers(0, len(damaged), rng.integers(1, 4)):
            damaged[position] = rng.integers(256)
        end = rng.integers(len(damaged)) if rng.random() < 0.3 else len(damaged)
        try:
            if name == "mlp":
                graph, _ = Graph.from_model(bytes(damaged[:end]))
            else:
                graph = Graph.parse(PolicyGraph(bytes(damaged[:end]), source.signature))
            for scheme in SCHEMES:
                Plan(graph, scheme_named(scheme), Options(ends=True))
        except InvalidInputError:
            refused += 1

    assert refused > 100
