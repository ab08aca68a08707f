"""Writes the report of a comparison: one self-contained HTML page."""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from actorq.domain.policy import FP32
from actorq.text import return_text
from actorq_apps.comparison import published
from actorq_apps.comparison.figures import RunFigures
from actorq_apps.comparison.intervals import CONFIDENCE, FEW_SEEDS, Ratio
from actorq_apps.comparison.result import Comparison, Ratios, Side, Value, seconds_to_target, steps_to_target
from actorq_apps.comparison.schedule import TORCH, ScheduledRun

_NONE = "-"
_CAPTIONS = {
    "return-seconds": "Evaluated return against seconds since the first transition.",
    "return-steps": "Evaluated return against environment steps.",
    "success-steps": "Success rate of evaluations against environment steps.",
    "throughput": "Environment steps per second, from the first stored transition to the last. Dots: seeds.",
    "time-to-target": "Seconds from the first transition to the first evaluation at the target. Dots: seeds.",
}
_CURVES = ("return-seconds", "return-steps", "success-steps")
_OF_CURVES = " Line: mean over seeds. Band: lowest to highest seed. Dot: end of a run; its last value then continues."
Form = str | Callable[[float], str]
"""The format of a number: a format string, or a function."""
ON_POLICY: tuple[tuple[str, Value, Form], ...] = (
    ("divergence", lambda run: run.divergence, ".2g"),
    ("mismatch", lambda run: run.mismatch, ".2g"),
    ("KL from FP32, nats", lambda run: run.mean_kl, ".2g"),
)
MEMORY: tuple[tuple[str, Value, Form], ...] = (
    ("state drift, %", lambda run: run.state_drift and 100 * run.state_drift, ".2f"),
)
_OF_DIVERGENCE = (
    " Divergence and mismatch: mean |log pi(a|s) - log mu(a|s)| of the actions, with mu the policy that chose them. "
    "For the divergence, pi is the learner's newest policy: rounding and age. For the mismatch, pi is the same version "
    "in FP32: rounding. KL: of the last version, KL(FP32 || quantized) on recent observations."
)
# The end of an energy's method. It contains figures of one run.
_ESTIMATE = re.compile(r"the first [\d.]+ s at the mean power of the [\d.]+ s after them")
_FIRST = "the first seconds of each run at the mean power of the seconds after them"
_OF_TORCH = (
    "\n<dt>torch</dt><dd>Actors that run the fp32 policy in eager PyTorch on one thread, as the baseline of the ActorQ "
    "paper does. Learner, quantizer and evaluator are those of fp32.</dd>"
)


def page(
    comparison: Comparison,
    pictures: Mapping[str, Mapping[str, Path]],
    command: str,
    link: Callable[[ScheduledRun], str],
) -> str:
    """The page. `pictures` are keyed by name and theme. `link` returns the link to a run's files."""
    machine, runs = comparison.machine, [run for side in comparison.sides for run in side.runs]
    versions = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    parts = {
        "title": [escape(f"{comparison.algorithm} on {comparison.environment}: schemes compared")],
        "lead": [
            f'<p class="soft">{_count(len(comparison.sides), "variant")}, {_count(len(comparison.seeds), "seed")} '
            f"each, target return {_target(comparison)}</p>",
            *(f'<p class="warning">{escape(text)}</p>' for text in warnings(comparison)),
            *_lead(comparison),
        ],
        "ratios": [_ratio_table(comparison)],
        "curves": [_picture(name, pictures[name]) for name in _CURVES if name in pictures],
        "speed": [_picture(name, pictures[name]) for name in ("throughput", "time-to-target") if name in pictures],
        "figures": _side_tables(comparison),
        "published": _published(comparison),
        "runs": [_runs(comparison, link)],
        "machine": [escape(f"{machine.hardware}. Python {machine.python}, {versions}.")],
        "confidence": [f"{CONFIDENCE:.0%}"],
        "target": [_target(comparison)],
        "torch": [_OF_TORCH] if any(side.variant.scheme == TORCH for side in comparison.sides) else [],
        "energy": [escape("; ".join(dict.fromkeys(_ESTIMATE.sub(_FIRST, run.energy_method) for run in runs)) + ".")],
        "command": [escape(command)],
    }
    text = files("actorq_apps.comparison").joinpath("page.html").read_text(encoding="utf-8")
    return Template(text).substitute({name: "\n".join(lines) for name, lines in parts.items()})


def ratio_text(ratio: Ratio | None) -> str:
    """A ratio and its interval, such as "1.42 [1.31, 1.55]"."""
    if ratio is None:
        return _NONE
    interval = "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.2f}, {ratio.high:.2f}]"
    return f"{ratio.value:.2f}{interval}"


def warnings(comparison: Comparison) -> list[str]:
    """Warnings to show before any figure."""
    found = []
    if len(comparison.seeds) == 1:
        found.append("One seed: no interval can be given. Give at least two seeds, better five.")
    elif len(comparison.seeds) < FEW_SEEDS:
        found.append(f"With fewer than {FEW_SEEDS} seeds the bootstrap intervals are too narrow.")
    short = [side.variant.name for side in comparison.sides if any(run.seconds < 30 for run in side.runs)]
    if short:
        found.append(
            f"Runs of {'; '.join(short)} took less than 30 seconds: times and energy of such runs say little about "
            "longer ones."
        )
    missed = [side.variant.name for side in comparison.sides if side.reached < len(side.runs)]
    if comparison.target is None:
        found.append("There is no target return: give --time-to RETURN for the time to a target.")
    elif missed:
        found.append(
            f"Not every run reached the target: {'; '.join(missed)}. Ratios of times are over seeds that reached it on "
            "both sides, which favors the side that missed it."
        )
    return found


def _lead(comparison: Comparison) -> list[str]:
    """The most important ratios of each variant in one sentence."""
    lines = []
    for side in comparison.sides:
        for found in comparison.ratios(side):
            ratios = [
                f"{ratio.value:.2f} times the {what}{_doubt(ratio)}"
                for what, ratio in (("throughput", found.throughput), ("speed to the target", found.time_to_target))
                if ratio is not None
            ]
            lines.append(
                f"<li><b>{escape(side.variant.name)}</b> against {_named(found.baseline)}: {', '.join(ratios)}</li>"
            )
    return [f'<ul class="lead">{"".join(lines)}</ul>'] if lines else []


def _doubt(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return ""
    return " (no clear difference)" if ratio.low <= 1.0 <= ratio.high else ""


def _ratio_table(comparison: Comparison) -> str:
    columns: tuple[tuple[str, Callable[[Ratios], Ratio | None]], ...] = (
        ("throughput", lambda each: each.throughput),
        ("time to target", lambda each: each.time_to_target),
        ("environment steps to target", lambda each: each.steps_to_target),
        ("energy and carbon of the run", lambda each: each.energy),
        ("energy of the actors per step", lambda each: each.actor_energy),
    )
    rows = [
        [escape(side.variant.name), _named(each.baseline), *(_ratio_cell(of(each)) for _, of in columns)]
        for side in comparison.sides
        for each in comparison.ratios(side)
    ]
    if not rows:
        return f"<p>No baseline was run: add {FP32} or {TORCH} to --schemes.</p>"
    note = (
        f"How many times better than the baseline; above 1 is better. Geometric mean over seeds, and the interval of "
        f"{CONFIDENCE:.0%} by bootstrap over seeds."
    )
    return _table(["variant", "against", *(name for name, _ in columns)], rows, note, text_columns=1)


def _ratio_cell(ratio: Ratio | None) -> str:
    if ratio is None:
        return _NONE
    interval = f"{ratio.low:.2f} to {ratio.high:.2f}" if ratio.low is not None else "no interval"
    seeds = f", {ratio.seeds} of {ratio.runs} seeds" if ratio.seeds < ratio.runs else ""
    return f"{ratio.value:.2f}<small>{interval}{seeds}</small>"


def _side_tables(comparison: Comparison) -> list[str]:
    on_policy, memory = (
        [each for each in columns if any(side.spread(each[1]) for side in comparison.sides)]
        for columns in (ON_POLICY, MEMORY)
    )
    performance: tuple[tuple[str, Value, Form], ...] = (
        ("last return", lambda run: run.final_return, return_text),
        ("steps/s", lambda run: run.steps_per_s, ",.0f"),
        ("updates/s", lambda run: run.updates / run.seconds, ",.0f"),
        ("s to target", seconds_to_target, ",.1f"),
        ("steps to target", steps_to_target, ",.0f"),
        ("start-up, s", lambda run: run.startup_s, ",.1f"),
        ("learner starved, s", lambda run: run.starved_s, ",.2f"),
    )
    policy: tuple[tuple[str, Value, Form], ...] = (
        ("policy, bytes", lambda run: run.policy_bytes, ",.0f"),
        ("times smaller than FP32", _smaller, ".2f"),
        ("mean action error, %", lambda run: run.action_error and 100 * run.action_error, ".3f"),
        ("same action, %", lambda run: run.agreement and 100 * run.agreement, ".1f"),
        ("staleness p50, versions", lambda run: run.staleness_p50, ".1f"),
        ("staleness p99, versions", lambda run: run.staleness_p99, ".1f"),
        ("energy, Wh", lambda run: run.wh, ".3f"),
        ("actors' energy, Wh", lambda run: run.actor_wh, ".3f"),
        ("CO2, g", lambda run: run.co2_g, ".3f"),
        *on_policy,
        *memory,
    )
    first = [
        [
            escape(side.variant.name),
            escape(side.acted),
            f"{side.reached} of {len(side.runs)}",
            *(_spread(side, value, form) for _, value, form in performance),
            ", ".join(dict.fromkeys(run.limit for run in side.runs)),
        ]
        for side in comparison.sides
    ]
    second = [
        [escape(side.variant.name), *(_spread(side, value, form) for _, value, form in policy)]
        for side in comparison.sides
    ]
    heads = ["variant", "acted with", "reached target", *(name for name, _, _ in performance), "limited by"]
    note = (
        "Mean over seeds, and lowest to highest. The learner starves while it waits for data. Limited by: the actors "
        "where it starved half of the time or more, the learner where it starved 5% or less."
    )
    of_policy = "The energy is that of all processes of a run, evaluator and meter included."
    of_policy += _OF_DIVERGENCE if on_policy else ""
    return [
        _table(heads, first, note, text_columns=1),
        _table(["variant", *(name for name, _, _ in policy)], second, of_policy),
    ]


def _published(comparison: Comparison) -> list[str]:
    rows = [
        [
            f"published, {escape(each.tasks)}",
            *(f"{of[0]:g} to {of[1]:g}" if of else _NONE for of in (each.time_to_target, each.throughput, each.carbon)),
        ]
        for each in published.RATIOS
    ]
    for side in comparison.sides:
        for found in comparison.ratios(side) if side.variant.scheme != FP32 else ():
            name = f"<b>{escape(side.variant.name)}</b> against {_named(found.baseline)}"
            rows.append([name, *(ratio_text(of) for of in (found.time_to_target, found.throughput, found.carbon))])
    note = (
        f"Source: {published.SOURCE}. {published.DEFINITION} Our torch is the same baseline. Our fp32 runs "
        "ONNX Runtime, which is faster. Their networks and machines differ from ours: the ranges are for orientation."
    )
    parts = [_table(["times better", "time to target", "throughput", "carbon"], rows, note)]
    if theirs := published.returns_of(comparison.environment):
        returns = [
            [escape(side.variant.name), _spread(side, lambda run: run.final_return, return_text)]
            for side in comparison.sides
        ]
        returns += [["published, FP32", f"{theirs.fp32:,.0f}"], ["published, int8", f"{theirs.int8:,.0f}"]]
        solved = any(run.state == "solved" for side in comparison.sides for run in side.runs)
        notes = [theirs.note, "Our runs end at their target return." if solved else ""]
        parts.append(_table(["variant", "last return"], returns, " ".join(filter(None, notes))))
    return parts


def _runs(comparison: Comparison, link: Callable[[ScheduledRun], str]) -> str:
    columns: tuple[tuple[str, Value, Form], ...] = (
        ("last return", lambda run: run.final_return, return_text),
        ("environment steps", lambda run: run.environment_steps, ","),
        ("seconds", lambda run: run.seconds, ",.1f"),
        ("steps/s", lambda run: run.steps_per_s, ",.0f"),
        ("s to target", seconds_to_target, ",.1f"),
        ("starved", lambda run: run.starved_share, ".0%"),
        ("Wh", lambda run: run.wh, ".3f"),
    )
    rows = [
        [
            f'<a href="{escape(link(run.scheduled))}">{escape(side.variant.name)}</a>',
            str(run.scheduled.seed),
            escape(run.state),
            *(_NONE if (found := value(run)) is None else _formatted(found, form) for _, value, form in columns),
        ]
        for side in comparison.sides
        for run in side.runs
    ]
    heads = ["variant", "seed", "ended", *(name for name, _, _ in columns)]
    return _table(heads, rows, "Links lead to the folders of the runs, if these are next to this page.")


def _picture(name: str, files_of: Mapping[str, Path]) -> str:
    caption = _CAPTIONS[name] + (_OF_CURVES if name.startswith("return") else "")
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{_data_uri(files_of["dark"])}">'
        f'<img src="{_data_uri(files_of["light"])}" alt="{escape(caption)}"></picture>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _data_uri(file: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], note: str, text_columns: int = 0) -> str:
    """text_columns: number of columns after the first that hold text."""

    def cells(tag: str, values: Sequence[str]) -> str:
        marks = [' class="text"' if 0 < place <= text_columns else "" for place in range(len(values))]
        return "".join(f"<{tag}{mark}>{value}</{tag}>" for mark, value in zip(marks, values, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', [escape(text) for text in heads])}</tr></thead>"
    return (
        f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'
        f'{f"""<p class="soft">{escape(note)}</p>""" if note else ""}'
    )


def _spread(side: Side, value: Value, form: Form) -> str:
    if (spread := side.spread(value)) is None:
        return _NONE
    mean = _formatted(spread.mean, form)
    if spread.low == spread.high:
        return mean
    return f"{mean}<small>{_formatted(spread.low, form)} to {_formatted(spread.high, form)}</small>"


def _formatted(value: float, form: Form) -> str:
    return format(value, form) if isinstance(form, str) else form(value)


def _smaller(run: RunFigures) -> float | None:
    return run.fp32_bytes / run.policy_bytes if run.fp32_bytes and run.policy_bytes else None


def _target(comparison: Comparison) -> str:
    return "none" if comparison.target is None else f"{comparison.target:,g}"


def _named(baseline: str) -> str:
    return "torch (PyTorch FP32)" if baseline == TORCH else "fp32 (ONNX Runtime)"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
