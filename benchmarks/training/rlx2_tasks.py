"""Tasks, methods and stored runs of the benchmarks of sparse training."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.runs import LearningTask, begin, confirm, train
from benchmarks.training.rlx2_sparsities import PAPER, Sparsity

# Flags of each method, without those of the sparsity. control is rlx2 without sparsity: a comparison with it shows the
# effect of sparsity alone.
METHODS: dict[str, tuple[str, ...]] = {
    "dense": (),
    "control": ("--multi-step", "--dynamic-capacity.enabled"),
    "tiny": ("--sparsity.method", "tiny"),
    "static": ("--sparsity.method", "static"),
    "set": ("--sparsity.method", "set"),
    "rigl": ("--sparsity.method", "rigl"),
    "rlx2": ("--sparsity.method", "rlx2"),
    "structured": ("--sparsity.method", "rlx2", "--sparsity.structured"),
    # The critics' masks change, the policy's do not.
    "static_actor": ("--sparsity.method", "rlx2", "--sparsity.actor-method", "static"),
}
_DENSE = ("dense", "control")
# Relative to a run's steps. The paper has 300 changes of masks and checks of the replay in 3,000,000 steps. A third
# of that leaves weights time to grow in our shorter runs. The paper's replay keeps at least a thirtieth of the steps,
# which is too little for a run this short.
_CHANGES, _SMALLEST_REPLAY, _WARM_UP, _EVALUATIONS = 100, 5, 40, 40
# Transitions per update of TD3 and SAC.
_BATCH = 256
# Share of a run, at its end, over which evaluations are averaged. A single evaluation has too few episodes.
_SETTLED = 0.25
# Lets the long tasks finish in one night on two cores. The paper has one update per step.
_LONG_UPDATES_PER_STEP = 0.5
# An unreachable return, so that all runs have the same number of steps.
_UNREACHED = "1000000000"


@dataclass(frozen=True)
class Bound:
    """`method` must return at least `share` of the return of `of`."""

    method: str
    of: str
    share: float


@dataclass(frozen=True)
class Task(LearningTask):
    """An algorithm on an environment for a number of steps.

    episodes: new episodes for the confirmed return. updates_per_step: gradient updates per environment step.
    """

    steps: int
    seeds: int
    sparsity: Sparsity
    methods: tuple[str, ...]
    bounds: tuple[Bound, ...]
    episodes: int
    updates_per_step: float = 1.0

    def flags(self, method: str, scheme: str, seed: int) -> list[str]:
        """Flags of `actorq train` for one run. Schedules are shares of the run's steps."""
        every, warm_up = self.steps // _CHANGES, self.steps // _WARM_UP
        updates = int(self.updates_per_step * self.steps)
        settings = {
            "algorithm": self.algorithm,
            "environment": self.environment,
            "scheme": scheme,
            "seed": seed,
            "target-return": _UNREACHED,
            "max-environment-steps": self.steps,
            "replay.min-size": warm_up,
            "exploration.random-steps": warm_up,
            "rate-limiter.samples-per-insert": _BATCH * self.updates_per_step,
            "evaluation.period-updates": updates // _EVALUATIONS,
            "dynamic-capacity.min-size": self.steps // _SMALLEST_REPLAY,
            "dynamic-capacity.period-steps": every,
        }
        if method not in _DENSE:
            settings |= {
                "sparsity.actor": self.sparsity.actor,
                "sparsity.critic": self.sparsity.critic,
                "sparsity.period-updates": updates // _CHANGES,
            }
        return [*(f"--{name}={value}" for name, value in settings.items()), *METHODS[method]]


ALL = ("dense", "control", "tiny", "static", "set", "rigl", "rlx2")
_LONG = ("dense", "control", "rigl", "rlx2")
_NEAR_CONTROL = (Bound("rlx2", "control", 0.9),)
# Other tasks of the paper.
_OTHERS = tuple(
    Task(
        algorithm,
        environment,
        steps=300_000,
        seeds=2,
        sparsity=PAPER[algorithm, environment],
        methods=("dense", "control", "static", "rigl", "rlx2"),
        bounds=(*_NEAR_CONTROL, Bound("rlx2", "static", 1.0)),
        episodes=20,
        updates_per_step=_LONG_UPDATES_PER_STEP,
    )
    for algorithm, environment in (
        ("td3", "Hopper-v5"),
        ("td3", "Walker2d-v5"),
        ("td3", "Ant-v5"),
        ("sac", "Hopper-v5"),
    )
)
TASKS = (
    Task(
        *("td3", "InvertedPendulum-v5", 40_000, 3, Sparsity(0.98, 0.98), ALL),
        bounds=(Bound("rlx2", "dense", 0.95), Bound("rlx2", "static", 1.1), Bound("rlx2", "rigl", 1.1)),
        episodes=100,
    ),
    Task(
        *("td3", "HalfCheetah-v5", 300_000, 2, PAPER["td3", "HalfCheetah-v5"], _LONG),
        bounds=_NEAR_CONTROL,
        episodes=20,
        updates_per_step=_LONG_UPDATES_PER_STEP,
    ),
    Task(
        *("sac", "HalfCheetah-v5", 300_000, 2, PAPER["sac", "HalfCheetah-v5"], _LONG),
        bounds=_NEAR_CONTROL,
        episodes=20,
        updates_per_step=_LONG_UPDATES_PER_STEP,
    ),
    *_OTHERS,
)


def run_task(directory: Path, task: Task, method: str, scheme: str, seed: int) -> dict[str, Any]:
    """A run's summary with `task`, `method`, `scheme`, `settled` (mean return of the last quarter's evaluations),
    `mean` (of all evaluations), `confirmed` (the last policy's return on new episodes) and `directory`.

    A complete run in `directory` is not repeated, and an interrupted run continues. Raises SystemExit when the command
    fails.
    """
    flags, folder = task.flags(method, scheme, seed), folder_of(directory, task, method, scheme, seed)
    summary = train(folder, flags)
    return {
        "task": task.name,
        "method": method,
        "scheme": scheme,
        "settled": settled(summary["evaluations"], task.steps),
        "mean": _mean([point["mean_return"] for point in summary["evaluations"]]),
        "confirmed": _confirmed(folder, task.episodes),
        "directory": str(folder),
        **summary,
    }


def folder_of(directory: Path, task: Task, method: str, scheme: str, seed: int) -> Path:
    """The folder of a run. Runs with other settings have other folders."""
    digest = hashlib.sha256(json.dumps(task.flags(method, scheme, seed)).encode()).hexdigest()[:8]
    return directory / f"{task.algorithm}-{task.environment}-{method}-{scheme}-{seed}-{digest}"


def settled(evaluations: Sequence[dict[str, Any]], steps: int) -> float:
    """Mean return of the evaluations in the last quarter of a run of `steps`. Raises SystemExit if there are none."""
    last = [point["mean_return"] for point in evaluations if point["environment_steps"] > (1 - _SETTLED) * steps]
    if not last:
        raise SystemExit("expected evaluations in the last quarter of the run, got none; allow more --steps")
    return _mean(last)


def _confirmed(folder: Path, episodes: int) -> dict[str, Any]:
    file = folder / "confirmed.json"
    if not file.exists():
        begin(folder)
        file.write_text(json.dumps(asdict(confirm(folder, episodes))), encoding="utf-8")
    confirmed: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return confirmed


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
