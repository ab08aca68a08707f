"""Prints the outcome of a run at its end."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.policy import FIDELITY_GATE, FLOAT32
from actorq.domain.status import RunState
from actorq.rundirectory import RunDirectory
from actorq.text import one_line, return_text, size_text
from actorq_apps.cli.display import numbers
from actorq_apps.local.environment import modules_here

# A remark in innermost parentheses.
_REMARK = re.compile(r"\s*\([^()]*\)")
# The energy line must fit into 80 columns.
_MOST_METHOD_BYTES = 40
_MOST_AGENTS_BYTES = 200


def print_result(run: RunDirectory, is_new: bool) -> None:
    """Print the learner's summary, the commands that evaluate and continue the run, and last the run directory.

    is_new: whether this start of the run wrote the summary. If not, the learner ended before it could write one.
    """
    summary = run.read_summary() if is_new else {}
    for line in result_lines(summary) if summary else ["ended before the learner could write a summary"]:
        print(line)
    for line in next_commands(run, summary):
        print(line)
    print(run.root)


def next_commands(run: RunDirectory, summary: dict[str, Any]) -> Iterator[str]:
    """Commands to copy: one evaluates the run's policy, one continues a run that missed its target."""
    config = settings.build(RunConfig, run.config_tree())
    root = shlex.quote(str(run.root))
    if run.has_policies:
        trusted = "".join(f" --allow-modules {name}" for name in modules_here(config))
        yield f"evaluate it: actorq evaluate {root}{trusted}"
    if not summary.get("solved"):
        yield f"continue with: actorq train --resume --run-directory {root}{_larger_budget(config, summary)}"


def _larger_budget(config: RunConfig, summary: dict[str, Any]) -> str:
    """The flag that doubles the budget that ended the run; empty if no budget ended it."""
    if summary.get("state") != RunState.BUDGET_ENDED.value:
        return ""
    if config.max_seconds is not None and summary.get("wall_clock_s", 0.0) >= config.max_seconds:
        return f" --max-seconds {2 * config.max_seconds:g}"
    if config.offline:
        return f" --max-updates {2 * config.max_updates}"
    return f" --max-environment-steps {2 * config.max_environment_steps}"


def result_lines(summary: dict[str, Any]) -> list[str]:
    """A summary in a few lines. Missing values are left out."""
    lines = [_verdict(summary), *_of_agents(summary.get("evaluation") or {})]
    steps, updates = summary.get("environment_steps"), summary.get("updates")
    if steps is not None and updates is not None:
        lines.append(
            f"{numbers.duration(summary.get('wall_clock_s', 0.0))} wall clock, {steps:,} environment steps "
            f"({summary.get('environment_steps_per_s', 0.0):,.0f}/s), {updates:,} updates "
            f"({summary.get('updates_per_s', 0.0):,.0f}/s)"
        )
    if summary.get("precision") == "bf16":
        lines.append("learner's products in bf16")
    if (since := summary.get("quantization_aware_since")) is not None:
        lines.append(f"quantization-aware since update {since:,}")
    fidelity, sizes = summary.get("fidelity"), summary.get("policy_bytes")
    if fidelity and sizes:
        # The sizes belong to the actors' newest policy. With `auto`, its scheme may differ from the scheme of the
        # evaluated policy.
        scheme, version, evaluated = sizes.get("scheme"), sizes.get("version"), summary.get("evaluation") or {}
        name = f"{scheme} policy of the actors" if scheme and evaluated.get("scheme", scheme) != scheme else "policy"
        if version is not None and evaluated.get("policy_version") != version:
            name = f"newest {name}, v{version}:"
        size = f"{name} {size_text(sizes['emitted'])} instead of {size_text(sizes['fp32'])}"
        lines.append(", ".join([size, *_fidelity(fidelity)]))
    if energy := summary.get("energy"):
        lines.append(_energy(energy))
    return lines


def _energy(energy: dict[str, Any]) -> str:
    """Energy, carbon and the first part of the method. The summary's file has the whole method."""
    method = str(energy["method"]).partition(";")[0]
    while (shorter := _REMARK.sub("", method)) != method:
        method = shorter
    method = one_line(method, _MOST_METHOD_BYTES)
    if not energy["kwh"]:
        return f"energy: {method}"
    return f"{energy['kwh'] * 1000:.3f} Wh, {energy['co2_kg'] * 1000:.3f} g CO2 ({method})"


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


def _of_agents(evaluation: dict[str, Any]) -> list[str]:
    """The mean returns of each group and of each agent, on one line each; empty for a single agent."""
    lines = []
    for what in ("group", "agent"):
        returns = evaluation.get(f"{what}_returns") or {}
        each = ", ".join(f"{name} {return_text(value)}" for name, value in returns.items())
        lines += [one_line(f"return of each {what}: {each}", _MOST_AGENTS_BYTES)] if each else []
    return lines


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
    if sequences := report.get("sequences"):
        parts.append(f"drift of the state {max(each['state_drift'] for each in sequences):.2%} of its range")
    if layers:
        in_float = [layer for layer in layers if layer["weights"] == FLOAT32]
        gated = sum(layer["reason"] == FIDELITY_GATE for layer in in_float)
        by_gate = f" ({gated} of them by the fidelity gate)" if gated else ""
        parts.append(f"{len(in_float)} of {len(layers)} layers in float{by_gate}")
    return parts
