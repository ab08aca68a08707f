"""The table of the runs: each kind of actors compared with fp32, by task and over the tasks of an algorithm.

A score is 0 for random actions, and 1 at the paper's return with FP32 actors.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.policy import FP32
from actorq_apps.comparison.intervals import ratio
from actorq_apps.comparison.published import returns_of
from actorq_apps.comparison.schedule import TORCH
from benchmarks.comparison import FEWEST_SEEDS, Returns, compare, returns_by_task, scores
from benchmarks.environments.random_returns import random_returns
from benchmarks.harness import Target, without_verdict
from benchmarks.policy.bits.summary import KEPT
from benchmarks.reached import first_reached
from benchmarks.runs import refusal
from benchmarks.speedup.paper.making import Run
from benchmarks.speedup.paper.tasks import CONTINUOUS, INT8, SCHEMES, TASKS
from benchmarks.statistics import Estimate, Scores, estimate, interquartile_mean

# The lowest mean score of FP32 runs that have learned a task. Other tasks would only dilute a difference.
LEARNED = 0.1
# Of the difference of interquartile means.
_CONFIDENCE, _LOWEST = 0.9, -0.05
_ENVIRONMENTS = {task.name: task.environment for task in TASKS}


@dataclass(frozen=True)
class Difference:
    """Scores of a kind of actors less those of fp32: the difference of the interquartile means, with its 90% interval.

    tasks: the compared tasks. unlearned: tasks with enough seeds that FP32 runs have not learned. Both by name.
    estimate: None without a compared task.
    """

    tasks: tuple[str, ...]
    unlearned: tuple[str, ...]
    estimate: Estimate | None


def summarized(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row for each task and kind of actors, in the order of TASKS and SCHEMES.

    target: the return from which a run keeps 95% of the difference between FP32's mean return and random actions.
    seconds: median seconds to the target of the `reached` runs. acted: share of the transitions in the scheme itself.
    ratios: to fp32. More than 1 is better. None for fp32 itself, and without runs in fp32.
    """
    floors, rows = random_returns(), []
    for task, environment in _ENVIRONMENTS.items():
        own = [run for run in runs if run["task"] == task]
        if not own:
            continue
        baseline = [run for run in own if run["scheme"] == FP32]
        floor, reference = floors[environment], _mean_return(baseline)
        target = floor + KEPT * (reference - floor) if reference is not None and reference > floor else None
        for scheme in SCHEMES:
            found = [run for run in own if run["scheme"] == scheme]
            if not found:
                continue
            seconds = [at for run in found if (at := seconds_to(run, target)) is not None]
            rows.append(
                {
                    **{"task": task, "scheme": scheme, "seeds": len(found)},
                    **{"return": _mean_return(found), "random": floor, "target": target},
                    "reached": len(seconds),
                    "seconds": statistics.median(seconds) if seconds else None,
                    "steps_per_s": statistics.median(run["environment_steps"] / run["seconds"] for run in found),
                    "wh_per_million_steps": _median(per_million_steps(run, "wh") for run in found),
                    "acted": fmean(_acted(run) for run in found),
                    "ratios": None if scheme == FP32 or not baseline else _ratios(found, baseline, floor, target),
                }
            )
    return rows


def seconds_to(run: Run, target: float | None) -> float | None:
    """Seconds from the first stored transition to the evaluation that reaches the target; None without one.

    The last evaluation counts if the new episodes of the last policy confirm it (benchmarks.reached).
    """
    if target is None:
        return None
    reached = first_reached([*(point[2] for point in run["curve"]), run["confirmed"]["mean_return"]], target)
    return None if reached is None else float(run["curve"][reached][0])


def per_million_steps(run: Run, amount: str) -> float | None:
    """An amount of the whole run, "wh" or "co2_g", for each million environment steps; None if it was not measured."""
    return None if run[amount] is None else float(run[amount] / run["environment_steps"] * 1e6)


def over_tasks(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The interquartile mean of all scores of each algorithm and kind of actors, with its interval."""
    rows = []
    for algorithm in dict.fromkeys(task.algorithm for task in TASKS):
        for scheme in SCHEMES:
            found = _scores(runs, algorithm, scheme)
            if found:
                middle = _as_json(estimate(interquartile_mean, found))
                counts = {"tasks": len(found), "runs": sum(map(len, found.values()))}
                rows.append({"algorithm": algorithm, "scheme": scheme, **counts, "score": middle})
    return rows


def difference(runs: Sequence[Run], algorithm: str, scheme: str, seeds: int) -> Difference:
    """Compare a kind of actors with fp32 on the tasks that have this number of seeds of both."""
    ours, theirs = (_scores(runs, algorithm, each) for each in (scheme, FP32))
    complete = [task for task in ours if min(len(ours[task]), len(theirs.get(task, []))) >= seeds]
    compared = tuple(task for task in complete if fmean(theirs[task]) >= LEARNED)
    unlearned = tuple(task for task in complete if task not in compared)
    if not compared:
        return Difference(compared, unlearned, None)

    def less(first: Scores, second: Scores) -> NDArray[np.float64]:
        return np.asarray(interquartile_mean(first) - interquartile_mean(second))

    sides = [{task: side[task] for task in compared} for side in (ours, theirs)]
    return Difference(compared, unlearned, estimate(less, *sides, confidence=_CONFIDENCE))


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """int8 against fp32 over the tasks of each algorithm on DM Control. figures: with `runs` and `seeds`."""
    runs, seeds, found = figures["runs"], figures["seeds"], []
    for algorithm in CONTINUOUS:
        tasks = [task.name for task in TASKS if task.algorithm == algorithm]
        own = [run for run in runs if run["task"] in tasks]
        if own:
            each = difference(own, algorithm, INT8, seeds)
            value, low = (float(each.estimate.value), float(each.estimate.low)) if each.estimate else (0.0, 0.0)
            counted = f"{len(each.tasks)} of {len(tasks)} tasks" + (f": {value:.3f}" if each.estimate else "")
            name = f"{algorithm}: int8 less fp32, interquartile means of scores, lower end ({counted})"
            found.append(Target(name, low, _LOWEST, at_most=False, refused=_refused(own, each, seeds)))
    return without_verdict(found, refusal(runs))


def _refused(runs: Sequence[Run], found: Difference, seeds: int) -> str:
    """The reason why a difference gives no verdict; "" if it does."""
    if not found.tasks:
        return f"no task that FP32 has learned has {seeds} seeds of int8 and fp32"
    if seeds < FEWEST_SEEDS:
        return f"fewer than {FEWEST_SEEDS} seeds of a task"
    acted = {run["confirmed"]["scheme"] for run in runs if run["scheme"] == INT8 and run["task"] in found.tasks}
    return "" if acted == {INT8} else f"actors of int8 act with {', '.join(sorted(acted))}"


def _scores(runs: Iterable[Run], algorithm: str, scheme: str) -> dict[str, list[float]]:
    """The scores of all runs of an algorithm with a kind of actors, by task."""
    wanted = {task.name: task.environment for task in TASKS if task.algorithm == algorithm}
    found = returns_by_task(run for run in runs if run["task"] in wanted and run["scheme"] == scheme)
    floors = random_returns()
    return scores(found, _published(found), {task: floors[wanted[task]] for task in found})


def _published(tasks: Iterable[str]) -> Returns:
    """The paper's returns with FP32 actors."""
    found = {task: returns_of(_ENVIRONMENTS[task]) for task in tasks}
    return {task: [each.fp32] for task, each in found.items() if each is not None}


def _ratios(runs: Sequence[Run], baseline: Sequence[Run], floor: float, target: float | None) -> dict[str, Any]:
    def less(amounts: Sequence[dict[int, float | None]]) -> dict[str, Any] | None:
        ours, theirs = amounts
        found = ratio(theirs, ours)
        return None if found is None else asdict(found)

    sides = (runs, baseline)
    return {
        "return": _return_ratio([_return(run) for run in runs], [_return(run) for run in baseline], floor),
        "time": less([{run["seed"]: seconds_to(run, target) for run in side} for side in sides]),
        "energy": less([{run["seed"]: per_million_steps(run, "wh") for run in side} for side in sides]),
        "carbon": less([{run["seed"]: per_million_steps(run, "co2_g") for run in side} for side in sides]),
    }


def _return_ratio(ours: list[float], theirs: list[float], floor: float) -> dict[str, float | None] | None:
    """Interquartile means above random actions, ours over theirs; None if theirs are no better than random actions."""
    found = compare({"": ours}, {"": theirs}, {"": floor})
    if found is not None:
        return _as_json(found.share)
    value = (fmean(ours) - floor) / (fmean(theirs) - floor) if fmean(theirs) > floor else None
    return None if value is None else {"value": value, "low": None, "high": None}


def _as_json(found: Estimate) -> dict[str, float | None]:
    return {"value": float(found.value), "low": float(found.low), "high": float(found.high)}


def _acted(run: Run) -> float:
    """The share of a run's transitions in the scheme of its actors. PyTorch actors act with fp32."""
    scheme = FP32 if run["scheme"] == TORCH else run["scheme"]
    return float(run["acted"].get(scheme, 0) / max(1, sum(run["acted"].values())))


def _return(run: Run) -> float:
    return float(run["confirmed"]["mean_return"])


def _mean_return(runs: Sequence[Run]) -> float | None:
    return fmean(map(_return, runs)) if runs else None


def _median(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None
