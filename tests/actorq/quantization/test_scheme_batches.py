"""How much an action depends on the other environments of its batch, in each scheme.

One row is kept while all others are replaced, either by similar rows or by rows ten times as large. A scheme that
computes the range of its activations over the batch then rounds the kept row differently, or more coarsely.
"""

from itertools import product

import numpy as np
import pytest

from actorq.quantization.graph import Graph
from actorq.quantization.schemes import SCHEMES, Options, scheme_named
from actorq.quantization.schemes.base import Plan
from tests.quantizer_service.policy_graphs import GRAPHS, mlp
from tests.quantizer_service.policy_runs import all_outputs_of, emitted, random_inputs, random_parameters

ALIKE, TEN_TIMES = 1, 10
# For the scheme with a dependence, by whether first and last layers are quantized, and by the kind of the other rows:
# the largest change of an output relative to its range over the batch, for the worst graph of policy_graphs; and the
# smallest change that must occur, so that the test still measures something.
DYNAMIC = {
    (False, ALIKE): (0.012, 0.02),
    (False, TEN_TIMES): (0.08, 0.14),
    (True, ALIKE): (0.015, 0.028),
    (True, TEN_TIMES): (0.07, 0.125),
}


def dependence(scheme: str, ends: bool, factor: int) -> float:
    """The largest change of the first row's outputs, relative to the range of each output over a batch."""
    worst = 0.0
    for source, seed in product(GRAPHS.values(), range(3)):
        graph = Graph.parse(source)
        model = emitted(Plan(graph, scheme_named(scheme), Options(ends=ends)), random_parameters(source, seed))
        base = random_inputs(graph, 32, seed + 10)
        outputs = all_outputs_of(model, base)
        for other in (20, 30, 40):
            inputs = random_inputs(graph, 32, seed + other)
            for key, array in inputs.items():
                if array.dtype != np.uint8:
                    array *= factor
                array[0] = base[key][0]
            for before, after in zip(outputs, all_outputs_of(model, inputs), strict=True):
                worst = max(worst, float(np.abs(after[0] - before[0]).max() / np.ptp(before)))
    return worst


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "int8"])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("factor", [ALIKE, TEN_TIMES])
def test_an_action_does_not_depend_on_the_rest_of_its_batch(scheme: str, ends: bool, factor: int) -> None:
    assert dependence(scheme, ends, factor) == 0


@pytest.mark.parametrize(("ends", "factor"), DYNAMIC)
def test_with_dynamic_ranges_the_batch_affects_an_action_within_the_stated_bound(ends: bool, factor: int) -> None:
    least, most = DYNAMIC[ends, factor]

    assert least <= dependence("int8", ends, factor) <= most


@pytest.mark.parametrize("name", GRAPHS)
def test_int8_static_gives_the_same_bits_in_any_batch(name: str) -> None:
    graph = Graph.parse(GRAPHS[name])
    model = emitted(Plan(graph, scheme_named("int8-static"), Options(ends=True)), random_parameters(GRAPHS[name], 4))
    inputs = random_inputs(graph, 16, 4)

    together = all_outputs_of(model, inputs)

    alone = [all_outputs_of(model, {key: array[row : row + 1] for key, array in inputs.items()}) for row in range(16)]
    for output, rows in zip(together, zip(*alone, strict=True), strict=True):
        assert np.array_equal(output, np.concatenate(rows))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e30])
def test_a_row_that_is_not_finite_affects_others_only_in_int8(scheme: str, odd: float) -> None:
    graph = Graph.parse(mlp(64, 64))
    model = emitted(Plan(graph, scheme_named(scheme)), random_parameters(graph.source, 1))
    inputs = random_inputs(graph, 8, 1)
    (clean,) = all_outputs_of(model, inputs)
    inputs["observation"][1, 2] = odd
    others = np.arange(8) != 1

    (spoiled,) = all_outputs_of(model, inputs)

    error = np.abs(spoiled[others] - clean[others]).max() / np.ptp(clean)
    if scheme != "int8" or np.isnan(odd):
        assert error < 0.02
    else:
        assert np.isnan(error) if np.isinf(odd) else error > 0.1
