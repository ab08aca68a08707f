"""A process measures which products its processor computes exactly. Policies act the same on every processor."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from actorq.arithmetic import PROBES, Arithmetic, arithmetic, int4_feeds, is_exact
from actorq.domain.policy import SCHEMES, SIGNED, UNSIGNED, WEIGHT_ENCODINGS
from actorq.errors import UserError
from actorq.quantization.emission.probes import int4_probe, int8_probe
from actorq.quantization.graph import Graph
from actorq.quantization.nodes import MICROSOFT
from actorq.quantization.schemes import Options, scheme_named
from actorq.quantization.schemes.base import Plan
from actorq.weightencoding import with_weight_encoding
from tests.builders.emulation import without_dot_product
from tests.quantizer_service.policy_graphs import GRAPHS
from tests.quantizer_service.policy_runs import all_outputs_of, emission, random_inputs, random_parameters

# Simulated arithmetic of another processor, and the first output of each model in the folder.
SCRIPT = """
import json, sys
from pathlib import Path
from typing import Any
import numpy as np
from actorq.arithmetic import PROBES, arithmetic, is_exact
from actorq.arithmetic.sessions import open_session
from actorq.weightencoding import with_weight_encoding

folder, here = Path(sys.argv[1]), arithmetic()
for path in sorted(folder.glob("*.onnx")):
    session = open_session(with_weight_encoding(path.read_bytes(), here.weight_encoding))
    inputs = {name: array for name, array in np.load(folder / f"{path.name.split('-')[0]}.npz").items()}
    np.save(path.with_suffix(".npy"), session.run(None, inputs)[0])
print(json.dumps([here.weight_encodings, here.inexact_schemes]))
"""

# The sums of saturation_model() in each encoding.
SUMS = """
import json, sys
from pathlib import Path
import numpy as np
from actorq.arithmetic.sessions import open_session
from actorq.weightencoding import with_weight_encoding

model, sums = Path(sys.argv[1]).read_bytes(), {}
for encoding in ("signed", "unsigned"):
    session = open_session(with_weight_encoding(model, encoding))
    outputs = session.run(None, {"row": np.full((1, 64), 255, np.float32)})
    sums[encoding] = [int(np.unique(output).item()) for output in outputs]
print(json.dumps(sums))
"""
# Sum of 64 products of 127 and 255. In 16 bits the sum of two such products is 32,767 instead of 64,770.
EXACT, SATURATED = 64 * 127 * 255, 32 * 32_767
# The scale of the convolution's outputs. The exact sum is 255 times this scale.
STEP = EXACT // 255


def saturation_model() -> bytes:
    """Each int8 product that schemes emit: sums of row float32[1, 64], with weights of 127."""
    constants: dict[str, Any] = {
        "one": np.float32(1),
        "step": np.float32(STEP),
        "uint8 zero": np.uint8(0),
        "int8 zero": np.int8(0),
        "shape": np.array([1, 64, 1, 1]),
        "linear": np.full((64, 8), 127, np.int8),
        "transposed": np.full((8, 64), 127, np.int8),
        "kernels": np.full((8, 64, 1, 1), 127, np.int8),
        "bias": np.zeros(8, np.int32),
    }
    static = ["integers", "one", "uint8 zero", "transposed", "one", "int8 zero", "bias"]
    convolution = ["pixels", "one", "uint8 zero", "kernels", "one", "int8 zero", "step", "uint8 zero"]
    nodes = [
        helper.make_node("DynamicQuantizeMatMul", ["row", "linear", "one", "", ""], ["dynamic"], domain=MICROSOFT),
        helper.make_node("QuantizeLinear", ["row", "one", "uint8 zero"], ["integers"]),
        helper.make_node("QGemm", static, ["static"], domain=MICROSOFT, transB=1),
        helper.make_node("Reshape", ["integers", "shape"], ["pixels"]),
        helper.make_node("QLinearConv", convolution, ["convolution"]),
    ]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("row", TensorProto.FLOAT, [1, 64])],
        [
            helper.make_tensor_value_info("dynamic", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("static", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("convolution", TensorProto.UINT8, None),
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def test_the_stored_probes_match_their_module() -> None:
    assert (PROBES / f"{SIGNED}.onnx").read_bytes() == int8_probe()
    assert (PROBES / "int4.onnx").read_bytes() == int4_probe()


def test_rows_for_int4_are_exact_however_a_processor_quantizes_them() -> None:
    rows = int4_feeds()["rows"]
    lowest, highest = rows.min(1, keepdims=True), rows.max(1, keepdims=True)
    # The grid around zero as on x86-64, and from lowest to highest as on ARM with a dot product.
    for step in (np.abs(rows).max(1, keepdims=True) / 127, (highest - lowest) / 255):
        np.testing.assert_allclose(np.round(rows / step) * step, rows, atol=1e-5)


def test_this_processor_computes_some_encoding_exactly() -> None:
    here = arithmetic()
    assert here.weight_encodings
    assert here.weight_encoding == here.weight_encodings[0]
    assert here.inexact_schemes == ()


def test_detects_a_wrong_product() -> None:
    probe = (PROBES / f"{SIGNED}.onnx").read_bytes()
    # One weight of a product differs from that of its reference.
    at = probe.index(b"\x7f" * 16)
    damaged = probe[:at] + b"\x7e" + probe[at + 1 :]
    assert not is_exact(with_weight_encoding(damaged, arithmetic().weight_encoding))
    assert not is_exact(b"no model")


@pytest.mark.parametrize(
    ("exact", "int4", "encoding", "inexact"),
    [
        (WEIGHT_ENCODINGS, True, SIGNED, ()),
        ((UNSIGNED,), True, UNSIGNED, ()),
        ((), True, SIGNED, ("int8", "int8-static")),
        ((SIGNED,), False, SIGNED, ("int4",)),
    ],
)
def test_uses_the_fastest_exact_encoding(
    exact: tuple[str, ...], int4: bool, encoding: str, inexact: tuple[str, ...]
) -> None:
    found = Arithmetic(exact, int4)
    assert (found.weight_encoding, found.inexact_schemes) == (encoding, inexact)


def test_an_encoding_that_is_computed_wrongly_cannot_be_chosen() -> None:
    assert Arithmetic().only(UNSIGNED).weight_encoding == UNSIGNED
    with pytest.raises(UserError, match=r"--weight-encoding.* signed .* auto, unsigned$"):
        Arithmetic((UNSIGNED,)).only(SIGNED)


@pytest.mark.timeout(300)
def test_without_a_dot_product_sums_of_signed_weights_saturate_and_those_of_unsigned_ones_are_exact(
    tmp_path: Path,
) -> None:
    path = tmp_path / "products.onnx"
    path.write_bytes(saturation_model())
    sums = json.loads(without_dot_product(SUMS, str(path)))
    assert sums == {"signed": [SATURATED, SATURATED, SATURATED // STEP], "unsigned": [EXACT, EXACT, EXACT // STEP]}


@pytest.mark.timeout(300)
def test_every_scheme_gives_the_same_actions_without_a_dot_product(tmp_path: Path) -> None:
    expected = {}
    for name in ("mlp", "nature cnn"):
        source = GRAPHS[name]
        inputs = random_inputs(Graph.parse(source), 8)
        arrays: dict[str, Any] = dict(inputs)
        np.savez(tmp_path / f"{name}.npz", **arrays)
        for scheme in SCHEMES:
            plan = Plan(Graph.parse(source), scheme_named(scheme), Options(ends=True))
            parameters = random_parameters(source, 1)
            # Only weights of the largest size, and observations of one sign. Pairs of signed products then saturate.
            extreme = {key: np.sign(value) if value.ndim > 1 else value for key, value in parameters.items()}
            model = emission(plan, extreme).model
            (tmp_path / f"{name}-{scheme}.onnx").write_bytes(model)
            expected[f"{name}-{scheme}"] = all_outputs_of(model, inputs)[0]

    encodings, inexact = json.loads(without_dot_product(SCRIPT, str(tmp_path)))

    assert (encodings, inexact) == ([UNSIGNED], [])
    for name, outputs in expected.items():
        found = np.load(tmp_path / f"{name}.npy")
        span = float(np.ptp(outputs)) or 1.0
        # Float32 sums have another order there.
        np.testing.assert_allclose(found, outputs, rtol=0, atol=1e-5 * span, err_msg=name)
