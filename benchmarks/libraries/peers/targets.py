"""Targets of benchmarks.libraries.peers: how many times as long as ActorQ do the other libraries take?

Tasks of continuous control have targets by a bootstrap over seeds (benchmarks.statistics). A run that misses the target
return counts as its time limit. The other tasks compare medians.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import ONE_SEED, Meaning, Target, without_verdict
from benchmarks.libraries.peers.systems import ACTORQ, OURS, RECURRENT, RLLIB, STABLE_BASELINES, SYSTEMS
from benchmarks.libraries.peers.tasks import CONTINUOUS, MEMORY, Task
from benchmarks.statistics import Estimate, Scores, estimate

Run = dict[str, Any]

# The least seconds of another library, relative to ActorQ's.
_MEDIANS = {STABLE_BASELINES: 1.0, RLLIB: 3.0, RECURRENT: 2.0}
# The same in continuous control: the lower bound for each library, and the median for Stable-Baselines3.
_LOWER_BOUND, _MEDIAN = 2.0, 3.0
_BY_BOOTSTRAP = {task.name for task in CONTINUOUS}
_OF_MEMORY = {task.name for task in MEMORY}
_LEAST_SEEDS = 5
_FEW_SEEDS = f"fewer than {_LEAST_SEEDS} seeds give no interval"
_TOO_FEW_SEEDS = f"fewer than {_LEAST_SEEDS} seeds give no verdict"

MEANINGS = (
    Meaning(
        r"(?P<task>.+): median seconds of (?P<system>.+) over those of (?P<ours>actorq.*)",
        "How many times as long does another library take to the same return?",
        "ActorQ's gain in time is smaller than stated, or the other library is faster.",
        " times",
        case="{task}, {system} over {ours}",
    ),
    Meaning(
        r"(?P<task>.+): lower bound of the seconds of (?P<system>.+) over those of (?P<ours>actorq.*)",
        "How many times as long does another library take at least, given how much the seeds differ?",
        "The seeds differ too much to state this gain in time.",
        " times",
        case="{task}, {system} over {ours}",
    ),
    Meaning(
        r"(?P<task>.+): seeds of (?P<ours>actorq.*) that reached the target",
        "Does every seed reach the target return in time?",
        "A run of this task can miss the target return within the time limit. Another seed or more time may help.",
        case="{task}, {ours}",
    ),
)


def targets(task: Task, runs: Sequence[Run]) -> list[Target]:
    """The targets of a task with runs of ActorQ and of at least one other library; none without them.

    In continuous control each of ActorQ's algorithms has them.
    """
    by_system = {system: [run for run in runs if run["system"] == system] for system in SYSTEMS}
    seconds = {system: [run["seconds"] for run in own] for system, own in by_system.items()}
    others = [system for system in SYSTEMS if system not in OURS and seconds[system]]
    if not seconds[ACTORQ] or not others:
        return []
    ours = by_system[ACTORQ]
    number = len({run["seed"] for run in runs})
    if task.name in _BY_BOOTSTRAP:
        found = []
        for system in OURS:
            if own := by_system[system]:
                found += [target for other in others for target in _intervals(task, other, system, seconds)]
                found.append(_reached(task, system, own))
        return without_verdict(found, _FEW_SEEDS if number < _LEAST_SEEDS else "")
    found = [_median(task, system, ours, seconds[system]) for system in others if system in _MEDIANS]
    if task.name in _OF_MEMORY:
        return without_verdict([*found, _reached(task, ACTORQ, ours)], _TOO_FEW_SEEDS if number < _LEAST_SEEDS else "")
    return without_verdict(found, ONE_SEED if number == 1 else "")


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Estimate:
    """The ratio of the median seconds, with its bootstrap interval over seeds."""
    return estimate(_ratio, {"": theirs}, {"": ours})


def _ratio(theirs: Scores, ours: Scores) -> NDArray[np.float64]:
    above, below = (np.median(np.concatenate(scores, -1), axis=-1) for scores in (theirs, ours))
    return np.asarray(above / below, np.float64)


def _intervals(task: Task, other: str, system: str, seconds: Mapping[str, Sequence[float]]) -> list[Target]:
    found = ratio(seconds[other], seconds[system])
    name = f"{task.name}: lower bound of the seconds of {other} over those of {system}"
    bounds = [Target(name, float(found.low), _LOWER_BOUND, at_most=False)]
    if other == STABLE_BASELINES:
        bounds.append(Target(_name(task, other, system), float(found.value), _MEDIAN, at_most=False))
    return bounds


def _reached(task: Task, system: str, own: Sequence[Run]) -> Target:
    name = f"{task.name}: seeds of {system} that reached the target"
    return Target(name, sum(run["reached"] for run in own), len(own), at_most=False)


def _median(task: Task, system: str, ours: Sequence[Run], theirs: Sequence[float]) -> Target:
    """0 if ActorQ's median run misses the target."""
    seconds = [run["seconds"] if run["reached"] else float("inf") for run in ours]
    found = statistics.median(theirs) / statistics.median(seconds)
    return Target(_name(task, system, ACTORQ), found, _MEDIANS[system], at_most=False)


def _name(task: Task, other: str, system: str) -> str:
    return f"{task.name}: median seconds of {other} over those of {system}"
