"""Tables of the comparison of XQC with SAC."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from statistics import median

from benchmarks.statistics import Estimate
from benchmarks.training.normalized.summary import PARTS, Run, cells, compared, median_error, return_after
from benchmarks.training.normalized.systems import SAC, SCHEMES, SYSTEMS
from sitegen.markdown import number, percent, spread, table
from sitegen.results import figures, newest_runs, of_module

_MODULE = "benchmarks.training.normalized"
_CHANGES = {system.name: system.change for system in SYSTEMS}


def normalized_comparison() -> str:
    """Each system compared with SAC on each task."""
    runs, random = _stored()
    rows = []
    for task, system, own in cells(runs):
        found = None if system == SAC else compared(runs, random, task, system)
        if found is not None:
            share, probability = _interval(found.share, percent), _interval(found.improvement, percent)
            rows.append((task, *_named(system), len(own), share, probability))
    head = ("task", "system", "change", "seeds", "share of SAC's return", "probability of improvement over SAC")
    return table(head, rows)


def normalized_returns() -> str:
    """Return, updates and steps of each system on each task."""
    head = ("task", "system", "change", "seeds", "return on new episodes", "updates/s", "environment steps")

    def row(own: list[Run]) -> Iterator[object]:
        yield len(own)
        yield spread(run["confirmed"]["mean_return"] for run in own)
        yield spread(run["updates_per_s"] for run in own)
        yield round(median(run["environment_steps"] for run in own))
        yield ", ".join(dict.fromkeys(run["precision"] for run in own))

    return _table((*head, "precision"), row)


def normalized_over_time() -> str:
    """The median return of each system at some parts of a run's time."""

    def row(own: list[Run]) -> Iterator[object]:
        yield number(own[0]["limit_s"])
        for part in PARTS:
            returns = [found for run in own if (found := return_after(run, part)) is not None]
            yield median(returns) if returns else None

    return _table(("task", "system", "change", "seconds", *(f"after {percent(part)}" for part in PARTS)), row)


def normalized_errors() -> str:
    """The errors of each system's last policy by scheme."""
    names = {"mean": "mean", "max": "largest"}
    kinds = [(scheme, kind) for scheme in SCHEMES for kind in names]
    head = ("task", "system", "change", *(f"{scheme}, {names[kind]}" for scheme, kind in kinds))

    def row(own: list[Run]) -> Iterator[object]:
        for scheme, kind in kinds:
            yield percent(median_error(own, scheme, kind), 2)

    return _table(head, row)


def _table(head: tuple[str, ...], row: Callable[[list[Run]], Iterator[object]]) -> str:
    runs, _ = _stored()
    rows = [(task, *_named(system), *row(own)) for task, system, own in cells(runs)]
    return table(head, rows)


def _named(system: str) -> tuple[str, str]:
    return f"`{system}`", _CHANGES[system]


def _stored() -> tuple[list[Run], Mapping[str, float]]:
    """The runs of each task's newest result, and the returns of random actions."""
    names = of_module(_MODULE)
    random: dict[str, float] = {}
    for name in names:
        random |= figures(name)["random"]
    return [*newest_runs(names)], random


def _interval(found: Estimate, shown: Callable[[float], str]) -> str:
    middle, low, high = (shown(float(each)) for each in astuple(found))
    return f"{middle} ({low} to {high})"
