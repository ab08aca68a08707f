"""The environment steps that runs of known tasks needed, from the stored results, for the page of hints."""

from statistics import median
from typing import Any

from sitegen.markdown import number, spread, table
from sitegen.results import figures, load, stored

# An unreachable target. These runs measure a fixed length.
_OUT_OF_REACH = 1e8


def steps_to_target() -> str:
    """Each task that a stored result trained to its target, easy tasks first. If several results have the same task,
    algorithm, preset and target, the newest counts.
    """
    newest: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for name in sorted(stored(), key=lambda name: str(load(name).get("date") or load(name)["machine"]["date"])):
        found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for run in _runs_of(name):
            key = (run["environment"], run["algorithm"], run.get("preset") or "standard", run["target_return"])
            found.setdefault(key, []).append(run)
        newest |= found
    tasks = sorted(newest.items(), key=lambda each: _order(each[1]))
    head = ("environment", "algorithm", "preset", "target return", "seeds that reached it", "environment steps")
    rows = []
    for (environment, algorithm, preset, target), runs in tasks:
        solved = [run for run in runs if run["solved"]]
        steps = spread(run["environment_steps"] for run in solved) if solved else f"more than {number(_budget(runs))}"
        reached = f"{len(solved)} of {len(runs)}"
        rows.append((f"`{environment}`", algorithm.upper(), preset, number(target), reached, steps))
    return table(head, rows)


def _runs_of(name: str) -> list[dict[str, Any]]:
    """The runs of a result with a reachable target; none for a result of another kind."""
    found = figures(name)
    runs = found.get("runs") if isinstance(found, dict) else None
    needed = ("solved", "environment", "algorithm", "target_return", "environment_steps")
    return [
        run
        for run in (runs if isinstance(runs, list) else ())
        if isinstance(run, dict)
        and all(run.get(key) is not None for key in needed)
        and run["target_return"] < _OUT_OF_REACH
    ]


def _budget(runs: list[dict[str, Any]]) -> int:
    # A run exceeds its budget by a few steps.
    return min(round(int(run["environment_steps"]), -3) for run in runs)


def _order(runs: list[dict[str, Any]]) -> float:
    solved = [run["environment_steps"] for run in runs if run["solved"]]
    return median(solved) if solved else _OUT_OF_REACH
