"""The description of an exported policy matches the content of its file."""

import hashlib
import json
import math
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from actorq.domain.policy import (
    INT8_PER_CHANNEL,
    SIGNED,
    UNSIGNED,
    FidelityReport,
    LayerReport,
    Policy,
    PolicyDescriptor,
    RetainedPolicy,
)
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.quantization.description import describe
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import SCHEMES, scheme_named
from actorq.quantization.schemes.base import Plan
from actorq.quantization.standard_form import standard_form
from actorq.weightencoding import with_weight_encoding
from tests.quantizer_service.policy_graphs import GRAPHS
from tests.quantizer_service.policy_runs import emitted, random_parameters

ENVIRONMENT = EnvironmentSpec("E-v0", ArraySpec((5,), "float32"), ArraySpec((), "int64"), sizes=(3,))
FIDELITY = FidelityReport(
    8, 0.5, math.inf, 0.25, math.inf, None, (LayerReport("a", INT8_PER_CHANNEL),), mean_kl=math.nan
)


def emitted_as(scheme: str, name: str = "mlp") -> bytes:
    return emitted(Plan(Graph.parse(GRAPHS[name]), scheme_named(scheme)), random_parameters(GRAPHS[name], 1))


def described(
    model: bytes, scheme: str = "int8", mean_return: float | None = None, evaluation: Any = None, **further: Any
) -> dict[str, Any]:
    size = len(model)
    descriptor = PolicyDescriptor("run", 7, 700, scheme, b"", size, size, 0.0, FIDELITY)
    retained = RetainedPolicy(7, 700, (), mean_return)
    return describe("p.onnx", Policy(descriptor, model), retained, ENVIRONMENT, "dqn", evaluation, **further)


@pytest.mark.parametrize("name", ["mlp", "nature cnn", "two inputs", "lstm"])
def test_lists_the_inputs_and_outputs_that_onnx_runtime_finds(name: str) -> None:
    model = emitted_as("fp32", name)
    session = ort.InferenceSession(model)
    types = {"tensor(float)": "float32", "tensor(uint8)": "uint8"}

    found = described(model)

    given = {value.name: {"shape": value.shape, "dtype": types[value.type]} for value in session.get_inputs()}
    assert found["inputs"] == given
    # ONNX Runtime also finds the number of units, which has only a name in the graph.
    made = {value.name: (value.shape[0], len(value.shape), types[value.type]) for value in session.get_outputs()}
    assert {name: (v["shape"][0], len(v["shape"]), v["dtype"]) for name, v in found["outputs"].items()} == made
    assert (found["sha256"], found["size_bytes"]) == (hashlib.sha256(model).hexdigest(), len(model))
    assert (found["version"], found["updates"], found["file"]) == (7, 700, "p.onnx")
    assert found["environment"] == ENVIRONMENT.to_json()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_description_is_json_without_nan_or_infinity(scheme: str) -> None:
    found = described(emitted_as(scheme), scheme)

    assert json.loads(json.dumps(found, allow_nan=False)) == json.loads(json.dumps(found))
    fidelity = found["fidelity"]
    assert (fidelity["mean_error"], fidelity["max_error"], fidelity["mean_kl"]) == (0.5, None, None)
    assert [layer["weights"] for layer in fidelity["layers"]] == [INT8_PER_CHANNEL]


@pytest.mark.parametrize(("scheme", "expected"), [("fp32", None), ("int8", SIGNED), ("int8-static", SIGNED)])
def test_the_weight_encoding_is_that_of_int8_products(scheme: str, expected: str | None) -> None:
    model = emitted_as(scheme)

    assert described(model)["weight_encoding"] == expected
    assert described(with_weight_encoding(model, UNSIGNED))["weight_encoding"] == (UNSIGNED if expected else None)


def test_another_form_has_its_own_opset_and_the_given_weight_encoding() -> None:
    model = standard_form(emitted_as("int8"), 21)

    found = described(model, form="standard", weight_encoding=UNSIGNED)

    assert (found["form"], found["opset"], found["weight_encoding"]) == ("standard", 21, UNSIGNED)
    assert (described(emitted_as("int8"))["form"], described(emitted_as("int8"))["opset"]) == ("onnxruntime", 20)


def test_reports_the_opset_of_the_onnx_standard() -> None:
    model = onnx.load_from_string(emitted_as("fp32"))
    model.opset_import.insert(0, helper.make_opsetid("com.microsoft", 1))

    assert described(model.SerializeToString())["opset"] == 20


def test_describes_a_normalization_with_its_numbers() -> None:
    model = onnx.load_from_string(emitted_as("fp32"))
    assert described(model.SerializeToString())["normalization"] is None
    for part, values in (("mean", [1.0, -2.0]), ("scale", [0.5, 4.0])):
        model.graph.initializer.append(
            numpy_helper.from_array(np.array(values, np.float32), f"torso.normalizer.{part}")
        )

    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "head.mean"))

    found = described(model.SerializeToString())["normalization"]

    assert found == {"in_model": True, "mean": [1.0, -2.0], "scale": [0.5, 4.0]}


def test_describes_the_known_parts_of_an_evaluation() -> None:
    model = emitted_as("fp32")
    evaluation = {"returns": [1.0, 4.0, -2.0], "scheme": "int8"}

    assert described(model)["evaluation"] is None
    assert described(model, mean_return=2.5)["evaluation"] == {"mean_return": 2.5}
    assert described(model, mean_return=2.5, evaluation=evaluation)["evaluation"] == {
        "mean_return": 1.0,
        "min_return": -2.0,
        "max_return": 4.0,
        "episodes": 3,
        "scheme": "int8",
    }
