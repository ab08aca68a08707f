"""The scheme that auto chooses in a comparison, and the models that a comparison times."""

from collections.abc import Callable
from io import StringIO

import numpy as np
import onnx
import pytest
from rich.console import Console

from actorq.config.sections import GateConfig
from actorq.domain.policy import FLOAT32, INT8_PER_CHANNEL, SCHEMES, FidelityReport, LayerReport, PolicyGraph
from actorq.errors import InvalidInputError, UserError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options
from quantizer_service.command.comparison import Comparison, Emitted, bound_call, check_read, compact, compare
from quantizer_service.command.table import rich_table
from quantizer_service.emission.inference import open_session
from tests.quantizer_service.complete_models import chosen_actions, complete_model
from tests.quantizer_service.policy_graphs import mlp
from tests.quantizer_service.policy_runs import random_observations


def emitted(scheme: str, seconds: float, in_float: bool = False, passed: bool = True) -> Emitted:
    layer = LayerReport("a", FLOAT32 if in_float else INT8_PER_CHANNEL)
    report = FidelityReport(1, 0.0, 0.0, 0.0, 0.0, None, (layer,), (), passed)
    return Emitted(scheme, b"", report, {1: seconds})


def test_auto_chooses_the_fastest_quantized_scheme_that_passes() -> None:
    items = (
        emitted("fp32", 5.0, in_float=True),
        emitted("int8-weights", 4.0),
        emitted("int8", 3.0, in_float=True),
        emitted("int4", 2.0, passed=False),
    )
    assert Comparison(items, {}).fastest(1) == "int8-weights"
    assert Comparison(items[:1], {}).fastest(1) == "fp32"
    # Actors choose among the built-in schemes only.
    assert Comparison((*items, emitted("of-a-package", 1.0)), {}).fastest(1) == "int8-weights"


def test_auto_chooses_fp32_among_equals() -> None:
    items = (emitted("int8", 1.0), emitted("fp32", 1.02, in_float=True))
    assert Comparison(items, {}).fastest(1) == "fp32"


def test_every_scheme_is_timed_at_every_batch_with_any_number_of_rows() -> None:
    graph, parameters = Graph.from_model(complete_model(mlp(16, 16)).SerializeToString())
    comparison = compare(compact(graph, parameters, random_observations(5), Options()), (2, 8), GateConfig())
    assert [item.scheme for item in comparison.emitted] == list(SCHEMES)
    assert all(set(item.seconds) == {2, 8} and min(item.seconds.values()) > 0 for item in comparison.emitted)
    assert comparison.of("int8").model != comparison.of("fp32").model


@pytest.mark.parametrize("complete", [complete_model, chosen_actions])
def test_outputs_that_differ_from_the_file_mean_wrongly_read_weights(
    complete: Callable[[PolicyGraph, int], onnx.ModelProto],
) -> None:
    model, other = (complete(mlp(16, 16), seed).SerializeToString() for seed in (0, 1))
    graph, parameters = Graph.from_model(model)
    policy = compact(graph, parameters, random_observations(64), Options())
    check_read(model, policy)
    with pytest.raises(InvalidInputError, match=r"model: .*weights"):
        check_read(other, policy)


def test_a_call_that_cannot_run_is_refused() -> None:
    session = open_session(complete_model(mlp(16, 16)).SerializeToString(), "model")
    with pytest.raises(InvalidInputError, match=r"int8: .* 4 rows"):
        bound_call(session, {"observation": np.zeros((4, 3), np.float32)}, "int8")


def test_a_scheme_that_could_not_be_emitted_is_an_error_with_its_reason() -> None:
    with pytest.raises(UserError, match="int4: as the test wants it"):
        Comparison((), {"int4": "as the test wants it"}).of("int4")


def test_on_a_terminal_the_chosen_row_stands_out() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=80, color_system="standard")
    console.print(rich_table(["scheme", "bytes"], [["  fp32", "1,234"], ["* int8", "567"]]))
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 3
    assert "\x1b[32m* int8" in lines[2]
    assert "\x1b[32m" not in lines[1]
