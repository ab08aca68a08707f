"""Formats a policy's fidelity report in a few words."""

from actorq.domain.policy import FidelityReport, PolicyDescriptor


def scheme(policy: PolicyDescriptor) -> str:
    """The requested scheme, and the effective scheme if it differs: "int8", "int8 as fp32"."""
    asked, effective = policy.scheme, policy.effective_scheme
    return asked if asked == effective else f"{asked} as {effective}"


def error(report: FidelityReport) -> tuple[str, str]:
    """Name and value of the gate's criterion: KL divergence or action error (mean and largest), or agreement."""
    if report.mean_kl is not None and report.max_kl is not None:
        return "KL, nats", f"{report.mean_kl:.1g} / {report.max_kl:.1g}"
    if report.argmax_agreement is not None:
        return "argmax agreement", f"{report.argmax_agreement:.1%}"
    return "action error", f"{report.relative_mean_error:.1%} / {report.relative_max_error:.0%}"


def drift(report: FidelityReport) -> str:
    """Drift of the state over stored sequences, relative to its range; empty without memory."""
    return "" if report.state_drift is None else f"{report.state_drift:.1%}"
