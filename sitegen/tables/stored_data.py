"""Tables of training from stored data: steps that recordings save, and offline algorithms beside d3rlpy's."""

from collections.abc import Iterable, Sequence
from statistics import mean, stdev
from typing import Any

from benchmarks.training.offline.targets import ALGORITHMS, D3RLPY, DENSE, FP32, INT8, NORMALIZED, SPARSE, WITH, WITHOUT
from benchmarks.training.offline.tasks import MIXES, TASKS
from sitegen.markdown import number, percent, spread, table
from sitegen.results import by, figures

_SIDES = {
    WITHOUT: "without recordings",
    NORMALIZED: "without recordings, critics with layer normalization",
    WITH: "with recordings, critics with layer normalization",
}

_NETWORKS = {"policy": "policy", "q_funcs": "critics", "value_func": "value"}


def recording_tasks() -> str:
    """The tasks, and the policies that record."""
    rows = (
        (
            f"`{_id(task.environment)}`",
            number(task.target),
            f"`{_id(task.teachers)}`",
            number(task.medium),
            task.updates,
        )
        for task in TASKS
    )
    names = ("environment", "target", "policies learned in", "return of the medium policy there")
    return table((*names, "updates of an offline run"), rows)


def _id(environment: str) -> str:
    return environment.rpartition(":")[2]


def recording_mixes() -> str:
    """The data sets of the offline runs."""
    rows = ((name, ", ".join(f"{percent(share)} {who}" for who, share in mix.items())) for name, mix in MIXES.items())
    return table(("data set", "transitions"), rows)


def recordings() -> str:
    """Steps to the target with recordings and without them."""
    rows = []
    for task, runs in by("task", figures("recordings")["runs"]).items():
        for side, name in _SIDES.items():
            own = [run for run in runs if run["side"] == side]
            columns = (spread(run[key] for run in own) for key in ("environment_steps", "updates", "wall_clock_s"))
            if own:
                rows.append((task, name, f"{sum(run['solved'] for run in own)} of {len(own)}", *columns))
    return table(("task", "", "seeds that reach the target", "environment steps", "updates", "seconds"), rows)


def offline_returns() -> str:
    """Returns of offline algorithms beside d3rlpy's."""
    kinds = (("d3rlpy", D3RLPY, FP32), ("FP32", DENSE, FP32), ("int8", DENSE, INT8), ("90% sparse, int8", SPARSE, INT8))
    rows = []
    for task, runs in by("task", figures("stored_data")["runs"]).items():
        for mix in MIXES:
            for algorithm in ALGORITHMS:
                own = [_of(runs, algorithm, side, mix) for _, side, _ in kinds]
                if any(own):
                    cells = (_returns(each, scheme) for each, (_, _, scheme) in zip(own, kinds, strict=True))
                    rows.append((task, mix, algorithm, *cells))
    return table(("task", "data set", "algorithm", *(name for name, _, _ in kinds)), rows)


def offline_updates() -> str:
    """Updates per second beside d3rlpy's."""
    kinds = (("d3rlpy", D3RLPY), ("ActorQ", DENSE), ("ActorQ, 90% sparse", SPARSE))
    rows = []
    for task, runs in by("task", figures("stored_data")["runs"]).items():
        for algorithm in ALGORITHMS:
            own = [_of(runs, algorithm, side) for _, side in kinds]
            if any(own):
                cells = (spread(run["updates_per_s"] for run in each) if each else "" for each in own)
                rows.append((task, algorithm, *cells))
    return table(("task", "algorithm", *(name for name, _ in kinds)), rows)


def offline_same_updates() -> str:
    """Distances of equal updates to d3rlpy's."""
    rows = (
        (*(each[key] for key in ("task", "mix", "algorithm")), _NETWORKS[each["network"]], f"{each['distance']:.0e}")
        for each in figures("equal_updates")["same_updates"]
    )
    return table(("task", "data set", "algorithm", "network", "distance"), rows)


def _of(runs: Iterable[dict[str, Any]], algorithm: str, side: str, mix: str | None = None) -> list[dict[str, Any]]:
    return [run for run in runs if run["side"] == f"{algorithm} {side}" and mix in (None, run["mix"])]


def _returns(runs: Sequence[dict[str, Any]], scheme: str) -> str:
    values = [run["returns"][scheme] for run in runs]
    if not values:
        return ""
    return number(mean(values)) + (f" ± {number(stdev(values))}" if len(values) > 1 else "")
