"""The targets of training from stored data, from the figures of its runs."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.harness import ONE_SEED, Meaning, Target, without_verdict
from benchmarks.statistics import estimate
from benchmarks.training.offline.tasks import MIXES

Run = dict[str, Any]

# Runs with recordings have critics with layer normalization, a part of the method. `NORMALIZED` has only these critics.
WITH, WITHOUT, NORMALIZED = "with", "without", "without, normalized critics"
DENSE, SPARSE, D3RLPY = "dense", "sparse", "d3rlpy"
ALGORITHMS = ("td3bc", "iql")
INT8, FP32 = SCHEMES = ("int8", "fp32")
_LOWEST, _SHARE, _SPEED, _DISTANCE = -0.05, 0.5, 1.0, 1e-3

MEANINGS = (
    Meaning(
        r"(?P<task>.+): steps with recordings, as a share of those (?P<side>without.*)",
        "Do 10,000 recorded transitions halve the steps to the target?",
        "Recordings save fewer steps here.",
        unit="%",
        scale=100,
        case="{task}, {side}",
    ),
    Meaning(
        r"(?P<task>.+): runs with recordings that reach the target",
        "Do all runs with recordings reach the target?",
        "Some runs with recordings use up their steps before the target.",
        case="{task}",
    ),
    Meaning(
        r"(?P<case>.+): lower end of the difference to d3rlpy",
        "Does the algorithm return as much as d3rlpy's?",
        "The algorithm may return less than d3rlpy's on these data.",
        unit="%",
        scale=100,
        case="{case}",
    ),
    Meaning(
        r"(?P<task>\S+) (?P<algorithm>\S+): largest distance to d3rlpy's weights after (?P<updates>\d+) equal updates",
        "Do updates with the same weights and batches equal d3rlpy's?",
        "The algorithm differs from d3rlpy's.",
        unit="%",
        scale=100,
        case="{task} {algorithm}, {updates} updates",
    ),
    Meaning(
        r"(?P<case>.+): updates/s over d3rlpy's",
        "Does the algorithm train as fast as d3rlpy's?",
        "The same number of updates takes longer than with d3rlpy.",
        case="{case}",
    ),
)


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """The targets of both parts, as far as they were measured."""
    found: list[Target] = []
    runs: Sequence[Run] = figures["runs"]
    for task in dict.fromkeys(run["task"] for run in runs):
        own = [run for run in runs if run["task"] == task]
        found += _of_recordings(task, own)
        for algorithm in ALGORITHMS:
            for mix in MIXES:
                found += _compared(task, own, figures["random"][task], mix, algorithm)
            found += _speed(task, own, algorithm)
    for task, algorithm in dict.fromkeys((each["task"], each["algorithm"]) for each in figures.get("same_updates", ())):
        own = [each for each in figures["same_updates"] if (each["task"], each["algorithm"]) == (task, algorithm)]
        name = f"{task} {algorithm}: largest distance to d3rlpy's weights after {own[0]['updates']} equal updates"
        found.append(Target(name, max(each["distance"] for each in own), _DISTANCE))
    return found


def _of_recordings(task: str, runs: Sequence[Run]) -> list[Target]:
    """A run that misses the target counts with all its steps."""
    sides = {side: [run for run in runs if run["side"] == side] for side in (WITH, WITHOUT, NORMALIZED)}
    steps = {side: statistics.median(run["environment_steps"] for run in own) for side, own in sides.items() if own}
    if WITH not in steps or len(steps) == 1:
        return []
    found = [
        Target(f"{task}: steps with recordings, as a share of those {side}", steps[WITH] / steps[side], _SHARE)
        for side in steps
        if side != WITH
    ]
    name = f"{task}: runs with recordings that reach the target"
    found.append(Target(name, sum(run["solved"] for run in sides[WITH]), len(sides[WITH]), at_most=False))
    return _of_seeds(found, sides[WITH])


def _compared(task: str, runs: Sequence[Run], random: float, mix: str, algorithm: str) -> Iterator[Target]:
    """The targets of an algorithm on a data set, in each scheme; none without a peer."""
    ours, theirs = (_of(runs, f"{algorithm} {side}", mix) for side in (DENSE, D3RLPY))
    if not ours or not theirs:
        return
    peer = [run["returns"][FP32] for run in theirs]
    gained = statistics.fmean(peer) - random

    def difference(first: Any, second: Any) -> Any:
        return (np.mean(first[0], axis=-1) - np.mean(second[0], axis=-1)) / abs(gained)

    refused = "" if gained > 0 else "a peer that is no better than random actions gives no verdict"
    for scheme in SCHEMES:
        low = estimate(difference, {task: [run["returns"][scheme] for run in ours]}, {task: peer}).low
        name = f"{task} {mix} {algorithm} {scheme}: lower end of the difference to d3rlpy"
        yield from _of_seeds([Target(name, float(low), _LOWEST, at_most=False, refused=refused)], ours)


def _speed(task: str, runs: Sequence[Run], algorithm: str) -> list[Target]:
    """The target of the updates per second, over both data sets; none without a peer."""
    ours, theirs = (_of(runs, f"{algorithm} {side}") for side in (DENSE, D3RLPY))
    if not ours or not theirs:
        return []
    mine, others = (statistics.median(run["updates_per_s"] for run in own) for own in (ours, theirs))
    return [Target(f"{task} {algorithm}: updates/s over d3rlpy's", mine / others, _SPEED, at_most=False)]


def _of(runs: Sequence[Run], side: str, mix: str | None = None) -> list[Run]:
    return [run for run in runs if run["side"] == side and mix in (None, run["mix"])]


def _of_seeds(found: list[Target], runs: Sequence[Run]) -> list[Target]:
    return without_verdict(found, ONE_SEED if len({run["seed"] for run in runs}) == 1 else "")
