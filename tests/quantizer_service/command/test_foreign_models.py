"""`actorq quantize` on policies with the habits of other libraries."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from actorq.config.sections import GateConfig
from actorq.process import main
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options
from quantizer_service.command import command
from quantizer_service.command.comparison import compact, compare
from tests.quantizer_service.complete_models import complete_model, written
from tests.quantizer_service.policy_graphs import mlp, policy_graph
from tests.quantizer_service.policy_runs import outputs_of, random_observations


def codes() -> onnx.ModelProto:
    """A policy of codes from 0 to 11, uint8[5]."""
    nodes = [
        helper.make_node("Cast", ["observation"], ["codes"], to=TensorProto.INT64),
        helper.make_node("Gather", ["embedding", "codes"], ["embedded"]),
        helper.make_node("Flatten", ["embedded"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["q_values"]),
    ]
    return complete_model(policy_graph(nodes, {"embedding": [12, 4], "weight": [20, 3]}, pixels=True))


def test_impossible_random_observations_give_an_error_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = written(tmp_path / "policy.onnx", codes())

    assert main(lambda: command.run([str(model)])) == 2

    assert "--calibration" in capsys.readouterr().err
    np.savez(tmp_path / "observations.npz", np.random.default_rng(0).integers(0, 12, (64, 5)).astype(np.uint8))
    assert command.run([str(model), "--calibration", str(tmp_path / "observations.npz")]) == 0


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_the_standard_form_is_written_in_the_opset_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    model = complete_model(mlp(32, 32, 32))
    for node in model.graph.node:
        node.op_type = "Gelu" if node.op_type == "Relu" else node.op_type
    path, output = written(tmp_path / "policy.onnx", model), tmp_path / "out.onnx"
    given = ["--form", "standard", "--gate.max-mean-error", "1", "--gate.max-error", "1"]

    assert command.run([str(path), "--scheme", scheme, *given, "-o", str(output)]) == 0

    found = onnx.load(output)
    assert {node.domain for node in found.graph.node} == {""}
    (entry,) = found.opset_import
    assert entry.version == (20 if scheme == "int8" else 21)
    assert f"opset {entry.version}, mean error " in capsys.readouterr().out
    feeds = random_observations(8)
    expected = outputs_of(model.SerializeToString(), feeds)
    assert np.abs(outputs_of(output.read_bytes(), feeds) - expected).max() < 0.2 * np.ptp(expected)


def test_a_policy_is_judged_with_the_rows_per_call_of_an_actor() -> None:
    graph, parameters = Graph.from_model(complete_model(mlp(64, 64, 64)).SerializeToString())
    # One row in two has much larger values. In a call with it the range of the others is much too wide.
    observations = random_observations(64)["observation"] * np.where(np.arange(64) % 2, 100, 1)[:, None]
    policy = compact(graph, parameters, {"observation": observations.astype(np.float32)}, Options())

    alone, together = (
        compare(policy, (1,), GateConfig(), call_rows=rows).of("int8").report.relative_mean_error for rows in (1, 64)
    )

    assert 0 < alone < 0.7 * together
