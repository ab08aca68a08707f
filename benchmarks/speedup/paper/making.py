"""Makes the runs of the table, one after the other, and reads the finished ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from actorq_apps.comparison.figures import figures_of
from actorq_apps.comparison.schedule import ScheduledRun, Variant
from benchmarks.runs import cached, confirm, forget_incomplete, train
from benchmarks.speedup.paper.tasks import Task, flags_of

Run = dict[str, Any]
_EPISODES = 20
# Figures of a run that the result keeps. Seconds count from the first stored transition.
_KEPT = ("state", "environment_steps", "updates", "seconds", "starved_s", "policy_bytes", "action_error", "wh", "co2_g")


def make_runs(
    tasks: Sequence[Task],
    schemes: Sequence[str],
    seeds: int,
    directory: Path,
    variables: Mapping[str, str],
    finished_only: bool = False,
) -> Iterator[Run]:
    """The runs of all tasks, seed by seed. The schemes of a task take turns, in rotated order.

    A change in the machine's speed then affects all schemes alike, and an interrupted benchmark has the same number of
    seeds of most tasks.

    variables: environment variables of the commands. finished_only: make no runs, return the finished ones.
    """
    for seed in range(1, seeds + 1):
        for task in tasks:
            for place in range(len(schemes)):
                scheme = schemes[(place + seed) % len(schemes)]
                folder = directory / f"{task.name.replace('/', '-')}-{scheme}-{seed}"
                if not finished_only or folder.with_suffix(".json").exists():
                    yield _run(task, scheme, seed, folder, variables)


def _run(task: Task, scheme: str, seed: int, folder: Path, variables: Mapping[str, str]) -> Run:
    def make() -> Run:
        # Seconds of a resumed run would include a second start.
        forget_incomplete(folder)
        made = train(folder, flags_of(task, scheme, seed), variables)
        return {**made, "confirmed": asdict(confirm(folder, _EPISODES, variables=variables))}

    settings = {**asdict(task), "scheme": scheme, "flags": flags_of(task, scheme, seed)}
    made = cached(folder.with_suffix(".json"), settings, make)
    return {"task": task.name, "scheme": scheme, "seed": seed, **read(made, scheme, seed)}


def read(made: Mapping[str, Any], scheme: str, seed: int) -> Run:
    """The figures of a run that the result keeps.

    made: the summary of `actorq train`, with `confirmed` and `conditions`. The curve has seconds, steps and returns.
    """
    found = figures_of(ScheduledRun(Variant(scheme), seed), made, None)
    return {
        **{name: getattr(found, name) for name in _KEPT},
        "confirmed": made["confirmed"],
        "precision": made["precision"],
        "curve": [(round(point.seconds, 1), point.steps, point.mean_return) for point in found.curve],
        "acted": dict(found.acted),
        "energy_method": found.energy_method,
        "conditions": made["conditions"],
    }


def line(run: Run) -> str:
    """A run in one line."""
    energy = "not measured" if run["wh"] is None else f"{run['wh']:.2f} Wh"
    return (
        f"{run['task']:34} {run['scheme']:5} seed {run['seed']}: return {run['confirmed']['mean_return']:>8.1f}, "
        f"{run['environment_steps']:>9,} steps, {run['updates']:>7,} updates, {run['seconds']:>6.0f} s, {energy}"
    )
