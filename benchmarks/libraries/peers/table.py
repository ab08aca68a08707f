"""The table of benchmarks.libraries.peers, and the line of each run."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.libraries.peers.systems import ACTORQ, SYSTEMS
from benchmarks.libraries.peers.tasks import Task

Run = dict[str, Any]

_HEAD = (
    *("task", "system", "seconds", "learning", "standing still to evaluate", "steps", "steps/s", "MB", "Wh"),
    "times as long as ActorQ",
)


def table(by_task: Mapping[Task, Sequence[Run]]) -> list[str]:
    """A row for each task and system: medians over seeds, and the range of the seconds."""
    rows = [_row(_HEAD), "|---" * len(_HEAD) + "|"]
    for task, runs in by_task.items():
        own = {system: [run for run in runs if run["system"] == system] for system in SYSTEMS}
        rows += [_row(_summary(task, system, own[system], own[ACTORQ])) for system in SYSTEMS if own[system]]
    return rows


def watt_hours(run: Run) -> float | None:
    """The energy of a run; None without a measurement, also in older results."""
    energy = run.get("energy")
    return None if energy is None else energy["wh"]


def line(run: Run) -> str:
    """A run in one line."""
    seconds = f"{run['seconds']:.1f} s" if run["reached"] else f"> {run['seconds']:g} s, target missed"
    rate = "no evaluation" if run["steps_per_s"] is None else f"{run['steps_per_s']:,.0f} steps/s"
    used = watt_hours(run)
    energy = "" if used is None else f", {used:.2f} Wh"
    return (
        f"{run['task']} {run['system']} seed {run['seed']}: {seconds}, {run['environment_steps']:,} steps, {rate}, "
        f"{run['peak_memory_mb']:,.0f} MB{energy}"
    )


def _summary(task: Task, system: str, own: Sequence[Run], ours: Sequence[Run]) -> tuple[str, ...]:
    seconds = [run["seconds"] for run in own]
    middle, reached = statistics.median(seconds), sum(run["reached"] for run in own)
    low, high = _shown(min(seconds), task), _shown(max(seconds), task)
    learning = statistics.median(run["seconds"] - (run["start_s"] or 0.0) for run in own)
    evaluating, steps, memory = (
        statistics.median(run[name] for run in own) for name in ("evaluation_s", "environment_steps", "peak_memory_mb")
    )
    times = f"{middle / statistics.median(run['seconds'] for run in ours):.1f}" if ours else "-"
    return (
        task.name,
        system,
        f"{_shown(middle, task)} ({low} to {high}; {reached} of {len(own)} reached)",
        f"{learning:.1f}",
        f"{evaluating:.1f}",
        f"{steps:,.0f}",
        _median([run["steps_per_s"] for run in own], ",.0f"),
        f"{memory:,.0f}",
        _median([watt_hours(run) for run in own], ".2f"),
        f"{'> ' if ours and middle >= task.limit_s else ''}{times}",
    )


def _median(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return format(statistics.median(known), form) if known else "-"


def _shown(seconds: float, task: Task) -> str:
    return f"> {task.limit_s:g}" if seconds >= task.limit_s else f"{seconds:.1f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
