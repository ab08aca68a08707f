"""Tables of policies that see pixels: returns and times of runs, calls and steps per second by scheme."""

from typing import Any

from benchmarks.training.pixels.__main__ import TASKS
from sitegen.markdown import number, percent, table
from sitegen.results import figures


def pixels_tasks() -> str:
    """The bounds of the benchmark."""
    rows = ((f"`{task.name}`", number(task.least), number(task.seconds), task.steps, task.episodes) for task in TASKS)
    head = ("environment", "return at least", "seconds at most", "environment steps at most", "new episodes")
    return table(head, rows)


def pixels_returns() -> str:
    """Return, seconds, steps and updates of each run."""
    rows = (
        (
            f"`{run['task']}`",
            run["seed"],
            number(run["confirmed"]["mean_return"]),
            number(run["wall_clock_s"]),
            run["environment_steps"],
            run["updates"],
        )
        for run in figures("pixels")["runs"]
    )
    return table(("environment", "seed", "return", "seconds", "environment steps", "updates"), rows)


def pixels_calls() -> str:
    """Calls per second of each scheme, and how many times as many as in FP32."""
    return _rates("calls")


def pixels_steps() -> str:
    """Environment steps per second of an actor with each scheme, and how many times as many as in FP32."""
    return _rates("steps")


def pixels_errors() -> str:
    """Mean action error of the quantized policies, with the gate's verdict."""
    rows = (
        (scheme, percent(each["mean_error"], 2), "passes" if each["passed"] else each["reason"])
        for scheme, each in figures("pixels_actor")["fidelity"].items()
    )
    return table(("scheme", "mean action error", "fidelity gate"), rows)


def _rates(what: str) -> str:
    found: list[dict[str, Any]] = figures("pixels_actor")[what]
    rows = []
    for scheme in found[0]["rates"]:
        cells = (f"{round(each['rates'][scheme]):,} ({number(each['ratios'][scheme])})" for each in found)
        rows.append((scheme, *cells))
    counts = (f"{each['environments']} environment{'s' * (each['environments'] > 1)}, per s" for each in found)
    return table(("scheme", *(f"{count} (times FP32)" for count in counts)), rows)
