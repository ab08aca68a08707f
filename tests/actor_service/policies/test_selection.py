"""The choice of a scheme among real models, with given times."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from actor_service.policies.selection import select
from actorq.domain.policy import FLOAT32, INT8_PER_CHANNEL, FidelityReport, LayerReport, Policy, RefusedRung
from actorq.domain.spaces import ArraySpec
from actorq.errors import InvalidInputError
from tests.actor_service.actor_policies import as_policy, constant_policy, linear_policy

VECTOR = ArraySpec((4,), "float32")
QUANTIZED = (LayerReport("a", FLOAT32, "first layer"), LayerReport("b", INT8_PER_CHANNEL))
FLOAT = (LayerReport("a", FLOAT32, "first layer"), LayerReport("b", FLOAT32, "fidelity gate"))
REFUSED = (RefusedRung(("a",), 0.5, 0.5, 0.5),)


def policy(
    scheme: str, layers: tuple[LayerReport, ...] = QUANTIZED, passed: bool = True, refused: bool = False
) -> Policy:
    """A policy that acts, with its own report."""
    plain = as_policy(constant_policy([0.0, 1.0]).model, scheme=scheme)
    if scheme == "fp32":
        layers = tuple(replace(layer, weights=FLOAT32, reason="scheme fp32") for layer in layers)
    report = FidelityReport(1, 0.0, 0.0, 0.0, 0.0, 1.0, layers, (), passed, REFUSED if refused else ())
    return replace(plain, descriptor=replace(plain.descriptor, fidelity=report))


class Stopwatch:
    """Tells the times that the test gives, after each call has been made once."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = {name.replace("_", "-"): value for name, value in seconds.items()}
        self.outputs: dict[str, object] = {}

    def __call__(self, calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        self.outputs = {name: call() for name, call in calls.items()}
        return {name: self.seconds[name] for name in calls}


def test_the_fastest_scheme_is_chosen_by_timing_the_real_policy_at_the_batch() -> None:
    stopwatch = Stopwatch(fp32=5.0, int8_weights=5.1, int8=3.0, int4=4.0)
    policies = [policy(scheme) for scheme in ("fp32", "int8-weights", "int8", "int4")]
    selection = select(policies, VECTOR, 6, actions=2, timer=stopwatch)
    assert selection.scheme == "int8"
    assert selection.seconds == stopwatch.seconds
    assert not selection.held_back
    for outputs in stopwatch.outputs.values():
        np.testing.assert_array_equal(outputs, np.tile([0.0, 1.0], (6, 1)))


def test_fp32_may_win() -> None:
    selection = select([policy("fp32"), policy("int8")], VECTOR, 1, timer=Stopwatch(fp32=1.0, int8=1.5))
    assert selection.scheme == "fp32"


@pytest.mark.parametrize(("incumbent", "expected"), [("int8", "int8"), ("fp32", "fp32"), ("int4", "fp32")])
def test_among_equals_the_acting_scheme_wins_and_then_the_smallest_change(incumbent: str, expected: str) -> None:
    policies = [policy(scheme) for scheme in ("int8", "int8-weights", "fp32")]
    stopwatch = Stopwatch(fp32=1.02, int8_weights=1.01, int8=1.0)
    assert select(policies, VECTOR, 1, incumbent=incumbent, timer=stopwatch).scheme == expected


def test_schemes_that_the_gate_refused_or_kept_in_fp32_are_no_candidates() -> None:
    policies = [policy("fp32"), policy("int8", FLOAT, refused=True), policy("int4", passed=False)]
    selection = select(policies, VECTOR, 1, timer=Stopwatch())
    assert selection.scheme == "fp32"
    assert "fp32" in selection.dropped["int8"]
    assert "fidelity gate" in selection.dropped["int4"]
    assert selection.held_back


def test_layers_that_the_gate_put_in_float_for_an_earlier_version_may_come_back() -> None:
    selection = select([policy("fp32"), policy("int8", FLOAT)], VECTOR, 1, timer=Stopwatch())
    assert (selection.scheme, selection.held_back) == ("fp32", True)


def test_a_scheme_with_more_layers_in_float_is_a_candidate_whose_choice_may_change() -> None:
    policies = [policy("fp32"), policy("int8", refused=True)]
    selection = select(policies, VECTOR, 1, timer=Stopwatch(fp32=2.0, int8=1.0))
    assert (selection.scheme, selection.held_back) == ("int8", True)


def test_a_candidate_that_cannot_be_loaded_is_dropped_with_the_reason() -> None:
    broken = replace(policy("int8"), model=b"garbage")
    selection = select([policy("fp32"), broken, policy("int4")], VECTOR, 1, timer=Stopwatch(fp32=2.0, int4=1.0))
    assert selection.scheme == "int4"
    assert "ONNX Runtime" in selection.dropped["int8"]
    assert "not int8: " in str(selection)
    assert re.search(r"fp32 2000000\.0 us, int4 1000000\.0 us", str(selection))


def test_a_candidate_with_other_outputs_is_dropped() -> None:
    other = linear_policy(np.zeros((4, 3), np.float32), np.zeros(3, np.float32))
    three = replace(policy("int8"), model=other.model)
    selection = select([policy("fp32"), three], VECTOR, 1, actions=2, timer=Stopwatch())
    assert selection.scheme == "fp32"
    assert "[1, 2]" in selection.dropped["int8"]


def test_no_candidates_is_an_error_with_the_reasons() -> None:
    with pytest.raises(InvalidInputError, match=r"int8: .*fidelity gate"):
        select([policy("int8", passed=False)], VECTOR, 1)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
def test_random_observations_have_any_dtype(dtype: str) -> None:
    spec = ArraySpec((2, 2), dtype)
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = linear_policy(np.ones((4, 2), np.float32), np.zeros(2, np.float32), element_type=element_type).model
    stopwatch = Stopwatch(fp32=1.0, int8=2.0)
    select([replace(policy(scheme), model=model) for scheme in ("fp32", "int8")], spec, 3, timer=stopwatch)
    sums = np.asarray(stopwatch.outputs["fp32"])
    assert len(set(sums[:, 0].tolist())) > 1
