"""Writes the results of a sweep as JSON, CSV and a plot."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from actorq.statefiles.documents import write_document
from actorq.statefiles.files import replace_file
from actorq_apps.comparison.plots import panels, picture
from actorq_apps.sweep.space import Dimension, Space
from actorq_apps.sweep.study import Study
from actorq_apps.sweep.trials import Objective, TrialResult, TrialState

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FIGURES = ("number", "state", "value", "mean_return", "steps", "seconds", "reason")
_MARK, _BEST = "#0072b2", "#d55e00"


def write_results(folder: Path, study: Study, space: Space, objective: Objective, command: str) -> None:
    """Write trials.json, trials.csv and, once there is a best trial, sweep.png. Each is replaced atomically."""
    results, best = study.results(), study.best()
    rows = [{**asdict(result), "state": result.state.value} for result in results]
    document = {
        "command": command,
        "objective": objective.value,
        "space": space.to_json(),
        "best": best and best.number,
        "trials": rows,
    }
    write_document(folder / "trials.json", document, indent=2)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("trial", *_FIGURES[1:], *space.dimensions))
    for row in rows:
        writer.writerow((*(row[name] for name in _FIGURES), *(row["params"][name] for name in space.dimensions)))
    replace_file(folder / "trials.csv", text.getvalue())
    if best is None:
        return
    complete = [result for result in results if result.state is TrialState.COMPLETE]
    with picture(folder / "sweep.png", "light", dpi=130) as figure:
        (first, _), *others = panels(figure, ("trial", *space.dimensions), 4.2, 3.2)
        _history(first, complete, objective)
        for axes, name in others:
            _slice(axes, complete, best, name, space.dimensions[name])


def _history(axes: "Axes", complete: Sequence[TrialResult], objective: Objective) -> None:
    better = max if objective.maximized else min
    values = [result.value or 0.0 for result in complete]
    numbers = [result.number for result in complete]
    axes.plot(numbers, values, "o", color=_MARK, markersize=4, label="trial")
    line = [better(values[: index + 1]) for index in range(len(values))]
    axes.step(numbers, line, where="post", color=_BEST, linewidth=1.4, label="best so far")
    axes.set_xlabel("trial")
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel(objective.value)
    axes.legend(frameon=False, fontsize=8)


def _slice(axes: "Axes", complete: Sequence[TrialResult], best: TrialResult, name: str, dimension: Dimension) -> None:
    choices = [str(choice) for choice in dimension.choices]
    axes.set_xlabel(name)
    for result in complete:
        value = result.params[name]
        x = choices.index(str(value)) if choices else float(value or 0)
        color = _BEST if result.number == best.number else _MARK
        axes.plot(x, result.value or 0.0, "o", color=color, markersize=4, clip_on=False)
    if choices:
        axes.set_xticks(range(len(choices)), choices)
        axes.set_xlim(-0.5, len(choices) - 0.5)
        return
    if dimension.type == "log":
        axes.set_xscale("log")
    axes.set_xlim(dimension.low, dimension.high)
