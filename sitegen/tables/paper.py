"""Tables of the paper's tasks: which of them were run, and each kind of actors compared with fp32."""

from typing import Any

from actorq.domain.policy import FP32
from actorq_apps.comparison.published import returns_of
from benchmarks.policy.bits.summary import KEPT
from benchmarks.speedup.paper.summary import over_tasks, summarized
from benchmarks.speedup.paper.tasks import INT8, TASKS
from sitegen.markdown import interval, number, percent, table
from sitegen.results import Run, newest_runs, of_module
from sitegen.verdicts import plain

_MODULE = "benchmarks.speedup.paper"
_NOT_RUN = "not run"
_NONE = f"No result of `python -m {_MODULE}` is stored."


def paper_returns() -> str:
    """The return of each task, beside that of the paper. It shows the tasks that were not run."""
    found = {(row["task"], row["scheme"]): row for row in summarized(_runs())}
    rows = []
    for task in TASKS:
        theirs = returns_of(task.environment)
        ours = [found.get((task.name, scheme)) for scheme in (FP32, INT8)]
        seeds = ", ".join(dict.fromkeys(str(row["seeds"]) for row in ours if row)) or None
        shown = (number(row["return"]) if row else _NOT_RUN for row in ours)
        rows.append((plain(task.name), *((theirs.fp32, theirs.int8) if theirs else (None, None)), *shown, seeds))
    return table(("task", "paper, FP32", "paper, int8", "fp32", "int8", "seeds"), rows)


def paper() -> str:
    """All figures of the tasks that were run, by the kind of actors."""
    found = summarized(_runs())
    head = ("actors", "seeds", "return", "return vs fp32", f"seconds to {percent(KEPT)}", "times sooner")
    more = ("times less energy", "times less carbon", "steps/s", "steps in this scheme")
    parts = []
    for task in dict.fromkeys(row["task"] for row in found):
        rows = [_row(row) for row in found if row["task"] == task]
        parts.append(f"**{plain(task)}**:\n\n{table((*head, *more), rows)}")
    return "\n\n".join(parts) or _NONE


def paper_over_tasks() -> str:
    """The interquartile mean of the scores of each algorithm and kind of actors."""
    rows = [
        (row["algorithm"].upper(), row["scheme"], row["tasks"], row["runs"], interval(row["score"], "value"))
        for row in over_tasks(_runs())
    ]
    head = ("algorithm", "actors", "tasks", "runs", "interquartile mean of the scores")
    return table(head, rows) if rows else _NONE


def _runs() -> list[Run]:
    """The runs of each task's newest result. Parts of the table may be results of their own."""
    return newest_runs(of_module(_MODULE))


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    ratios = row["ratios"] or {}
    against = {name: interval(ratios.get(name), "value") for name in ("return", "time", "energy", "carbon")}
    seconds = f"{number(row['seconds'])} " if row["seconds"] is not None else ""
    counted = f"{seconds}({row['reached']} of {row['seeds']} runs)"
    return (
        *(row["scheme"], row["seeds"], row["return"], against["return"], counted),
        *(against["time"], against["energy"], against["carbon"], row["steps_per_s"], percent(row["acted"])),
    )
