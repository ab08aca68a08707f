"""The outcome of a run, printed at its end."""

import shlex
from typing import Any

from actorq.domain.policy import FIDELITY_GATE, FLOAT32
from actorq.rundirectory import RunDirectory
from actorq.text import return_text, size_text
from actorq_apps.cli.display import numbers


def print_result(run: RunDirectory, is_new: bool) -> None:
    """Print the learner's summary, how to continue if that makes sense, and last the run directory.

    is_new: whether this life of the run wrote the summary. If not, the learner ended before it could write one.
    """
    summary = run.read_summary() if is_new else {}
    for line in result_lines(summary) if summary else ["ended before the learner could write a summary"]:
        print(line)
    if not summary.get("solved"):
        more = f" with a larger {_budget(run, summary)}" if summary.get("state") == "budget ended" else ""
        print(f"to go on{more}: actorq train --resume --run-directory {shlex.quote(str(run.root))}")
    print(run.root)


def _budget(run: RunDirectory, summary: dict[str, Any]) -> str:
    """The flag of the budget that has ended the run."""
    seconds = run.config_tree().get("max_seconds")
    is_time = seconds is not None and summary.get("wall_clock_s", 0.0) >= seconds
    return "--max-seconds" if is_time else "--max-environment-steps"


def result_lines(summary: dict[str, Any]) -> list[str]:
    """A summary in a few lines. Missing values are left out."""
    lines = [_verdict(summary)]
    steps, updates = summary.get("environment_steps"), summary.get("updates")
    if steps is not None and updates is not None:
        lines.append(
            f"{numbers.duration(summary.get('wall_clock_s', 0.0))} wall clock, {steps:,} environment steps "
            f"({summary.get('environment_steps_per_s', 0.0):,.0f}/s), {updates:,} updates "
            f"({summary.get('updates_per_s', 0.0):,.0f}/s)"
        )
    if summary.get("precision") == "bf16":
        lines.append("learner's wide hidden layers in bf16")
    if (since := summary.get("quantization_aware_since")) is not None:
        lines.append(f"quantization-aware since update {since:,}")
    fidelity, sizes = summary.get("fidelity"), summary.get("policy_bytes")
    if fidelity and sizes:
        # With `auto`, the newest policy of the actors and the evaluated one may differ.
        scheme, evaluated = sizes.get("scheme"), (summary.get("evaluation") or {}).get("scheme")
        name = f"{scheme} policy of the actors" if scheme and evaluated not in (None, scheme) else "policy"
        size = f"{name} {size_text(sizes['emitted'])} instead of {size_text(sizes['fp32'])}"
        lines.append(", ".join([size, *_fidelity(fidelity)]))
    energy = summary.get("energy")
    if energy and energy["kwh"]:
        lines.append(f"{energy['kwh'] * 1000:.3f} Wh, {energy['co2_kg'] * 1000:.3f} g CO2 ({energy['method']})")
    elif energy:
        lines.append(f"energy {energy['method']}")
    return lines


def _verdict(summary: dict[str, Any]) -> str:
    state = str(summary.get("state", "ended"))
    target, rate = summary.get("target_return"), summary.get("target_success")
    goal = f" (target {return_text(target)})" if target is not None else ""
    goal = f" (target success {numbers.share(rate)})" if rate is not None else goal
    evaluation = summary.get("evaluation")
    if not evaluation:
        return f"{state}: no evaluation yet{goal}"
    success = evaluation.get("success_rate")
    reached = "" if success is None else f", success {numbers.share(success)}"
    return (
        f"{state}: evaluation return {return_text(evaluation['mean_return'])}{reached}{goal} over "
        f"{evaluation['episodes']} episodes, policy v{evaluation['policy_version']} {evaluation['scheme']}"
    )


def _fidelity(report: dict[str, Any]) -> list[str]:
    agreement, layers = report.get("argmax_agreement"), report.get("layers", ())
    parts = []
    if report.get("mean_kl") is not None:
        parts.append(f"KL divergence from fp32 {report['mean_kl']:.2g} nats, at most {report['max_kl']:.2g}")
    elif agreement is not None:
        parts.append(f"same action as fp32 in {agreement:.1%}")
    elif "relative_mean_error" in report:
        mean, largest = report["relative_mean_error"], report["relative_max_error"]
        parts.append(f"action error {mean:.2%} of its range, at most {largest:.1%}")
    if layers:
        in_float = [layer for layer in layers if layer["weights"] == FLOAT32]
        gated = sum(layer["reason"] == FIDELITY_GATE for layer in in_float)
        by_gate = f" ({gated} of them by the fidelity gate)" if gated else ""
        parts.append(f"{len(in_float)} of {len(layers)} layers in float{by_gate}")
    return parts
