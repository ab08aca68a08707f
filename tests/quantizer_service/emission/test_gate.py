import math
import re
from dataclasses import replace

import pytest

from actorq.config.sections import GateConfig
from actorq.domain.policy import FLOAT32, INT8_PER_TENSOR, FidelityReport, LayerReport, SequenceError
from quantizer_service.emission.gate import judge, severity

THRESHOLDS = GateConfig(
    max_mean_error=0.02, max_error=0.25, min_agreement=0.95, max_value_loss=0.01, max_mean_kl=0.002, max_kl=0.1
)
LAYERS = (LayerReport("first", FLOAT32, "first layer"), LayerReport("middle", INT8_PER_TENSOR))
IN_FLOAT = (LayerReport("first", FLOAT32, "first layer"), LayerReport("middle", FLOAT32, "fidelity gate"))


def continuous(mean: float, largest: float) -> FidelityReport:
    return FidelityReport(64, 1.0, 2.0, mean, largest, None, LAYERS)


def discrete(agreement: float, mean: float = 0.5, value_loss: float | None = None) -> FidelityReport:
    return FidelityReport(64, 1.0, 2.0, mean, 9.0, agreement, LAYERS, value_loss=value_loss)


def stochastic(mean: float, largest: float, agreement: float | None = 0.1, error: float = 0.9) -> FidelityReport:
    """A policy that outputs a distribution. The other measures are beyond their thresholds."""
    return replace(continuous(error, 2.0), argmax_agreement=agreement, mean_kl=mean, max_kl=largest)


@pytest.mark.parametrize(
    ("report", "passed"),
    [
        (continuous(0.02, 0.25), True),
        (continuous(0.0201, 0.1), False),
        (continuous(0.001, 0.2501), False),
        (continuous(math.inf, math.inf), False),
        (continuous(math.nan, math.nan), False),
        (discrete(0.95), True),
        (discrete(0.9499), False),
        (stochastic(0.002, 0.1), True),
        (stochastic(0.002, 0.1, agreement=None), True),
        (stochastic(0.0021, 0.05), False),
        (stochastic(0.001, 0.101), False),
        (stochastic(0.001, math.inf), False),
        (stochastic(math.inf, math.inf, agreement=1.0, error=0.0), False),
        (replace(stochastic(math.inf, math.inf), layers=IN_FLOAT), True),
        (discrete(0.5, value_loss=0.01), True),
        (discrete(0.5, value_loss=0.0101), False),
        (discrete(0.95, value_loss=0.5), True),
        (discrete(0.9499, value_loss=math.nan), False),
    ],
)
def test_thresholds_are_the_last_values_that_pass(report: FidelityReport, passed: bool) -> None:
    assert judge(report, THRESHOLDS).passed is passed


def test_the_reason_names_the_failed_measure_with_value_and_threshold() -> None:
    for report, fact in (
        (continuous(0.031, 0.1), r"mean action error 3\.10% [^;]*2\.00%"),
        (continuous(0.031, 0.5), r"mean action error 3\.10% .*2\.00%; largest action error 50\.00% .*25\.00%"),
        (discrete(0.75), r"best action .*75\.0% .*95\.0%"),
        (stochastic(0.0123, 0.05), r"mean KL .*0\.012 nats, [^;]*0\.002"),
        (stochastic(0.0123, math.inf), r"; largest KL .*inf nats, .*0\.1"),
        (discrete(0.75, value_loss=0.02), r"best action .*75\.0% .*95\.0%, .*loss of value .*1\.00%, .*2\.00%"),
    ):
        assert re.search(f"{fact}$", judge(report, THRESHOLDS).reason)


def drifting(report: FidelityReport, drift: float) -> FidelityReport:
    """A policy with memory whose state drifts by so much in the end."""
    of_step = SequenceError(1, 16, 0.0, 0.9, 0.001, 0.9, 0.9)
    return replace(report, sequences=(of_step, replace(of_step, steps=64, state_drift=drift)))


@pytest.mark.parametrize(
    ("report", "passed"),
    [
        (drifting(continuous(0.01, 0.1), 0.03), True),
        (drifting(continuous(0.01, 0.1), 0.0301), False),
        (drifting(continuous(0.01, 0.1), math.inf), False),
        (drifting(continuous(0.03, 0.1), 0.01), False),
        (drifting(discrete(1.0), 0.0301), False),
        (drifting(stochastic(0.001, 0.05), 0.0301), False),
        (replace(drifting(continuous(0.01, 0.1), 0.9), layers=IN_FLOAT), True),
    ],
)
def test_with_memory_the_drift_of_the_state_counts_too(report: FidelityReport, passed: bool) -> None:
    thresholds = THRESHOLDS.model_copy(update={"max_state_drift": 0.03})
    verdict = judge(report, thresholds)
    assert verdict.passed is passed
    assert "drift" in verdict.reason or passed or report.relative_mean_error > 0.02
    if not passed and report.state_drift == 0.0301:
        assert verdict.reason == "drift of the state 3.01% of its range, allowed 3.00%"


def test_a_drift_above_its_threshold_is_severe() -> None:
    for report in (continuous(0.01, 0.1), discrete(0.5, value_loss=0.9), stochastic(0.001, 0.01)):
        small, large = (severity(drifting(report, drift), GateConfig()) for drift in (0.02, 0.05))
        assert small == severity(report, GateConfig())
        assert large[0] == pytest.approx(2.5)
        assert large[1] == report.relative_mean_error
        assert large > small


def test_a_policy_in_float_passes_even_if_rounding_chooses_among_equal_actions() -> None:
    tied = replace(discrete(0.5), layers=IN_FLOAT)

    assert judge(tied, THRESHOLDS).passed
    assert "float" in judge(tied, THRESHOLDS).reason


def test_severity_orders_by_the_gates_measure_and_then_by_the_mean_error() -> None:
    by_agreement = [discrete(0.9, 0.1), discrete(0.99, 0.2), discrete(0.99, 0.1)]
    by_error = [continuous(0.001, 1.0), continuous(0.04, 0.04), continuous(0.01, 0.125), continuous(0.009, 0.125)]

    by_divergence = [
        stochastic(math.inf, math.inf),
        stochastic(0.001, 0.5, error=0.1),
        stochastic(0.004, 0.1),
        stochastic(0.001, 0.1, error=0.2),
        stochastic(0.001, 0.1, error=0.1),
    ]
    by_loss = [discrete(0.9, 0.1, 0.2), discrete(0.8, 0.2, 0.1), discrete(0.9, 0.1, 0.1)]

    for reports in (by_agreement, by_error, by_loss, by_divergence):
        found = [severity(report, THRESHOLDS) for report in reports]
        assert found == sorted(set(found), reverse=True)


def test_an_agreement_of_100_percent_may_be_required() -> None:
    strict = GateConfig(min_agreement=1.0)

    assert judge(discrete(1.0), strict).passed
    assert not judge(discrete(0.999), strict).passed
    assert severity(discrete(0.5), strict) > severity(discrete(0.6), strict)
