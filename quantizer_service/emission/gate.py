"""The fidelity gate: decides whether an emitted policy is close enough to the FP32 policy for actors."""

from dataclasses import dataclass, replace

from actorq.config.sections import GateConfig
from actorq.domain.policy import FidelityReport, LayerReport
from actorq.domain.signature import Signature
from actorq.quantization.schemes import Emission
from quantizer_service.emission.fidelity import measure_all, unfit
from quantizer_service.emission.reference import ReferenceRun


@dataclass(frozen=True)
class Verdict:
    """The gate's decision on a policy, the reason, and the size of the error (see `severity`)."""

    passed: bool
    reason: str
    severity: tuple[float, float]


@dataclass(frozen=True)
class FidelityGate:
    """Checks the emitted policies of one version.

    signature: of the published graph.
    run: the FP32 reference for the comparison.
    call_rows: rows per call of the emitted policy; 0 for all rows in one call. Dynamic ranges cover the rows of a call.
    """

    signature: Signature
    run: ReferenceRun
    thresholds: GateConfig
    call_rows: int = 0

    def check(self, emission: Emission) -> tuple[FidelityReport, Verdict]:
        """Measure and judge an emitted policy. Raises InvalidInputError when it does not run."""
        report = measure_all(emission, self.run, self.signature, self.call_rows)
        return report, judge(report, self.thresholds)

    def refuse(self, layers: tuple[LayerReport, ...], reason: str) -> tuple[FidelityReport, Verdict]:
        """Refuse a policy that cannot be emitted or run."""
        report = unfit(layers, self.run.outputs, self.run.batch, self.signature)
        return report, Verdict(False, reason, severity(report, self.thresholds))


def judge(report: FidelityReport, thresholds: GateConfig) -> Verdict:
    """Compare a report with the thresholds of its measure.

    The measure is the KL divergence, mean and largest, for policies that output a distribution. For other policies it
    is agreement (discrete actions), or mean and largest error (continuous actions). With memory, the drift of the state
    counts too.

    A policy with other best actions passes if they lose hardly any value. Rounding may decide between two nearly equal
    actions (docs/decisions/0039-near-ties.md).

    With groups of agents, a policy passes if each group passes on its own rows. The reason names the groups.

    A policy with all weights in float always passes, because it is the learner's own policy. It differs only in the
    rounding of float32 sums, which may decide between actions of equal value.
    """
    if report.groups and not all(layer.in_float for layer in report.layers):
        return _of_groups(report, thresholds)
    if all(layer.in_float for layer in report.layers):
        checks = [(True, "all weights are in float")]
    elif report.mean_kl is None and report.argmax_agreement is not None:
        checks = [_agreement(report.argmax_agreement, report.value_loss, thresholds)]
    else:
        text, errors = _errors(report, thresholds)
        checks = [(value <= most, text.format(which, value, most)) for which, value, most in errors]
    drift, most = report.state_drift, thresholds.max_state_drift
    if drift is not None and any(not layer.in_float for layer in report.layers):
        checks.append((drift <= most, f"drift of the state {drift:.2%} of its range, allowed {most:.2%}"))
    passed = all(good for good, _ in checks)
    reason = "; ".join(text for good, text in checks if good == passed)
    return Verdict(passed, reason, severity(report, thresholds))


def _of_groups(report: FidelityReport, thresholds: GateConfig) -> Verdict:
    verdicts = {name: judge(alone, thresholds) for name, alone in _alone(report).items()}
    passed = all(verdict.passed for verdict in verdicts.values())
    texts = (f"group {name}: {verdict.reason}" for name, verdict in verdicts.items() if verdict.passed == passed)
    return Verdict(passed, "; ".join(texts), severity(report, thresholds))


def _alone(report: FidelityReport) -> dict[str, FidelityReport]:
    """The report on each group's policy alone, by name."""
    found = {}
    for group in report.groups:
        errors = {name: value for name, value in vars(group).items() if name != "name"}
        found[group.name] = replace(report, groups=(), **errors)
    return found


def severity(report: FidelityReport, thresholds: GateConfig) -> tuple[float, float]:
    """The size of a policy's error, as a sort key: the gate's measure first, then the relative mean error.

    For KL divergences and for continuous actions, the gate's measure is the larger of mean and largest error, each
    divided by its threshold. For discrete actions without a distribution it is the loss of value. Without values it is
    the share of rows with another action. A drift above its threshold is larger than any such loss or share. With
    groups of agents, it is the size of the worst group's error.
    """
    if report.groups:
        return max(severity(alone, thresholds) for alone in _alone(report).values())
    if report.mean_kl is None and report.argmax_agreement is not None:
        worst = 1.0 - report.argmax_agreement if report.value_loss is None else report.value_loss
    else:
        worst = max(value / most for _, value, most in _errors(report, thresholds)[1])
    if report.state_drift is not None and (drift := report.state_drift / thresholds.max_state_drift) > 1.0:
        worst = max(worst, drift)
    return worst, report.relative_mean_error


def _agreement(value: float, loss: float | None, thresholds: GateConfig) -> tuple[bool, str]:
    text = f"the same best action as FP32 in {value:.1%} of the observations, required {thresholds.min_agreement:.1%}"
    if value >= thresholds.min_agreement or loss is None:
        return value >= thresholds.min_agreement, text
    lost = f", or a loss of value of at most {thresholds.max_value_loss:.2%}, got {loss:.2%}"
    return loss <= thresholds.max_value_loss, text + lost


def _errors(report: FidelityReport, thresholds: GateConfig) -> tuple[str, tuple[tuple[str, float, float], ...]]:
    """The text, and mean and largest error with their thresholds. The errors are KL divergences or action errors."""
    if report.mean_kl is not None and report.max_kl is not None:
        return "{} KL divergence from FP32 {:.2g} nats, allowed {:.2g}", (
            ("mean", report.mean_kl, thresholds.max_mean_kl),
            ("largest", report.max_kl, thresholds.max_kl),
        )
    return "{} action error {:.2%} of the action range, allowed {:.2%}", (
        ("mean", report.relative_mean_error, thresholds.max_mean_error),
        ("largest", report.relative_max_error, thresholds.max_error),
    )
