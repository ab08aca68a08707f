"""The fidelity gate: which emitted policies are close enough to the FP32 policy for actors to act with them."""

from dataclasses import dataclass

from actorq.config.sections import GateConfig
from actorq.domain.policy import FidelityReport, LayerReport, PolicyGraph
from actorq.quantization.schemes import Emission
from quantizer_service.emission.fidelity import measure, unfit
from quantizer_service.emission.reference_run import ReferenceRun


@dataclass(frozen=True)
class Verdict:
    """Whether a policy is let through, why it is or is not, and by how much it is off: see `severity`."""

    passed: bool
    reason: str
    severity: tuple[float, float]


class FidelityGate:
    """Checks the emitted policies of one version.

    source: the published graph.
    run: what emitted policies are compared with.
    """

    def __init__(self, source: PolicyGraph, run: ReferenceRun, thresholds: GateConfig) -> None:
        self._source = source
        self._run = run
        self._thresholds = thresholds

    def check(self, emission: Emission) -> tuple[FidelityReport, Verdict]:
        """Measure and judge an emitted policy; raises InvalidInputError when it does not run."""
        report = measure(emission, self._run.outputs, self._run.batch, self._source)
        return report, judge(report, self._thresholds)

    def refuse(self, layers: tuple[LayerReport, ...], reason: str) -> tuple[FidelityReport, Verdict]:
        """Refuse a policy that cannot be emitted or run."""
        report = unfit(layers, self._run.batch, self._source)
        return report, Verdict(False, reason, severity(report, self._thresholds))


def judge(report: FidelityReport, thresholds: GateConfig) -> Verdict:
    """Hold a report against the thresholds: agreement for discrete actions, mean and largest error for continuous ones.

    With all weights in float it is the learner's own policy: what differs is the rounding of float32 sums, which may
    decide between actions of equal value but says nothing about quantization. So it always passes.
    """
    if all(layer.in_float for layer in report.layers):
        checks = [(True, "all weights are in float")]
    elif report.argmax_agreement is not None:
        checks = [_agreement(report.argmax_agreement, thresholds.min_agreement)]
    else:
        checks = [
            _error("mean", report.relative_mean_error, thresholds.max_mean_error),
            _error("largest", report.relative_max_error, thresholds.max_error),
        ]
    passed = all(good for good, _ in checks)
    reason = "; ".join(text for good, text in checks if good == passed)
    return Verdict(passed, reason, severity(report, thresholds))


def severity(report: FidelityReport, thresholds: GateConfig) -> tuple[float, float]:
    """By how much a policy is off, to order several: first by what the gate looks at, then by the mean error.

    For continuous actions the first is the worse error in units of its threshold, for discrete ones the share of rows
    that do not agree. The second tells those apart that make no difference to the first.
    """
    if report.argmax_agreement is not None:
        return 1.0 - report.argmax_agreement, report.relative_mean_error
    worst = max(
        report.relative_mean_error / thresholds.max_mean_error, report.relative_max_error / thresholds.max_error
    )
    return worst, report.relative_mean_error


def _agreement(value: float, least: float) -> tuple[bool, str]:
    return value >= least, f"the same best action as FP32 in {value:.1%} of the observations, {least:.1%} are needed"


def _error(which: str, value: float, most: float) -> tuple[bool, str]:
    return value <= most, f"{which} action error {value:.2%} of the action range, {most:.2%} is allowed"
