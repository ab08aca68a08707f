"""The benchmark of a mixed fleet: what the second encoding costs, and that it changes no output."""

from actorq.arithmetic import arithmetic
from actorq.domain.policy import WEIGHT_ENCODINGS
from benchmarks.policies import vector_network
from benchmarks.policy.encodings.__main__ import SCHEMES, measure, targets
from benchmarks.processor import DOT_PRODUCT


def test_a_fleet_of_both_encodings_gets_equal_outputs() -> None:
    figures = measure(vector_network("mlp", 32), repeats=1)
    assert set(figures["seconds"]) == {"one", "two"}
    assert set(figures["bytes"]) == {"int8", "int8.unsigned", "int8-static", "int8-static.unsigned"}
    # A few bytes for the zero point.
    assert 0 <= figures["bytes"]["int8.unsigned"] - figures["bytes"]["int8"] < 200
    assert set(figures["unequal"]) == set(SCHEMES)
    if arithmetic().weight_encodings == WEIGHT_ENCODINGS:
        assert set(figures["unequal"].values()) == {0}


def test_a_slow_second_encoding_and_unequal_outputs_miss() -> None:
    widths = {
        256: {"ratio": 1.1, "unequal": {"int8": 0, "int8-static": 0}},
        1024: {"ratio": 1.4, "unequal": {"int8": 2, "int8-static": 1}},
    }
    found = targets(widths)
    assert [(target.measured, target.met) for target in found] == [(1.1, True), (1.4, False), (3, False)]
    assert [target.needs for target in found] == ["", "", DOT_PRODUCT]
