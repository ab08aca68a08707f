"""What a policy's fidelity report comes to, in a few words."""

from actorq.domain.policy import FidelityReport, PolicyDescriptor


def scheme(policy: PolicyDescriptor) -> str:
    """The scheme that was asked for, and what it came to where that is another: "int8", "int8 as fp32"."""
    asked, effective = policy.scheme, policy.effective_scheme
    return asked if asked == effective else f"{asked} as {effective}"


def error(report: FidelityReport) -> tuple[str, str]:
    """What the gate looks at, with its name: agreement for discrete actions, mean and largest error for continuous."""
    if report.argmax_agreement is not None:
        return "argmax agreement", f"{report.argmax_agreement:.1%}"
    return "action error", f"{report.relative_mean_error:.1%} / {report.relative_max_error:.0%}"


def float_layers(report: FidelityReport) -> str:
    """Such as "2 of 4"."""
    return f"{len(report.float_layers)} of {len(report.layers)}"


def gate(report: FidelityReport) -> str:
    """Whether the gate let the policy through as its scheme has it, or how many layers it has put in float."""
    gated = len(report.gated_layers)
    return f"{gated} to float" if gated else "passed"
