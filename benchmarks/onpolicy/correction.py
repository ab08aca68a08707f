"""The effect of importance weights under coarse rounding, and under forced staleness.

Rounding: PPO with int4 actors whose first and last layers are quantized too, without a fidelity gate. Staleness: IMPALA
with four actors that act with the policy of eight versions before the newest. Each is compared with the same run
without weights, and with a reference run: FP32 actors, or no lag. At the end the FP32 policy of each run plays new
episodes. The figure therefore excludes the cost of rounding at the end.

Targets. Rounding: on at least one task the mean of the corrected seeds is within one sample standard deviation of the
reference, and that of the uncorrected seeds is not. Staleness: the corrected mean is within one standard deviation of
the reference.

Runs are kept in --directory. Complete runs are not repeated. All must come from one commit on one machine.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ONE_SEED, Meaning, Target, run_benchmark, without_verdict
from benchmarks.onpolicy.settings import TASKS as RETURNS_TASKS
from benchmarks.runs import LearningTask, add_task_flag, cached, chosen, confirm, forget_incomplete, refusal, train

Run = dict[str, Any]
REFERENCE, CORRECTED, UNCORRECTED = "reference", "corrected", "uncorrected"
_VARIANTS = (REFERENCE, CORRECTED, UNCORRECTED)
_EPISODES = 50
_LAG = 8
_NO_GATE = (
    *("--quantizer.gate.max-mean-kl", "1e9", "--quantizer.gate.max-kl", "1e9"),
    *("--quantizer.gate.max-mean-error", "1e9", "--quantizer.gate.max-error", "1e9"),
    *("--quantizer.gate.min-agreement", "0"),
)
_LAGGING = ("--actor-module", "benchmarks.onpolicy.lagging_actor")


@dataclass(frozen=True)
class Task(LearningTask):
    """An experiment on an environment. flags: of all its runs. lags: whether actors are stale instead of coarse."""

    flags: tuple[str, ...]
    lags: bool

    def of(self, variant: str) -> list[str]:
        """All flags of a variant's runs."""
        flags = [*self.flags]
        if variant == REFERENCE:
            return [*flags, "--scheme", "int8" if self.lags else "fp32"]
        flags += [*_LAGGING] if self.lags else []
        flags += ["--scheme", "int8"] if self.lags else ["--scheme", "int4", "--quantizer.quantize-ends", *_NO_GATE]
        return flags if variant == CORRECTED else [*flags, f"--no-{self.algorithm}.correct"]


def _coarse(environment: str) -> Task:
    (task,) = (task for task in RETURNS_TASKS if task.environment == environment)
    return Task("ppo", environment, tuple(task.actorq()), lags=False)


def _stale(environment: str, steps: int, *flags: str) -> Task:
    common = (
        *("--algorithm", "impala", "--environment", environment, "--max-environment-steps", str(steps)),
        *("--actors", "4", "--environments-per-actor", "4", "--actor.segment-length", "32"),
        *("--impala.rollout-size", "512", "--impala.batch-size", "512"),
        *("--queue.max-policy-lag", str(4 * _LAG), "--target-return", "1e9", "--no-energy.enabled"),
    )
    return Task("impala", environment, (*common, *flags), lags=True)


TASKS = (
    _coarse("CartPole-v1"),
    _coarse("Pendulum-v1"),
    _coarse("HalfCheetah-v5"),
    _stale("CartPole-v1", 400_000, "--impala.learning-rate", "1e-3"),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 1 to N of each variant (default: 3)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    tasks = chosen(TASKS, arguments.task)
    with tempfile.TemporaryDirectory() as nowhere:
        runs = list(make_runs(tasks, arguments.seeds, arguments.directory or Path(nowhere)))
    return {"runs": runs}, without_verdict(verdicts(tasks, runs), refusal(runs))


def make_runs(tasks: Sequence[Task], seeds: int, directory: Path) -> Iterator[Run]:
    """All variants, seed by seed, so that early results cover all tasks."""
    for seed in range(1, seeds + 1):
        for task in tasks:
            for variant in _VARIANTS:
                # In one folder, so that a run of another variant on another commit is found before this run starts.
                folder = directory / f"{variant}-{task.name.replace('/', '-')}-{seed}"
                flags = [*task.of(variant), "--seed", str(seed)]
                made = cached(folder.with_name(f"{folder.name}.json"), {"flags": flags}, lambda: _run(folder, flags))  # noqa: B023
                run = {"task": task.name, "side": variant, "seed": seed, **made}
                queue = run["rollout_queue"]
                print(
                    f"{task.name} seed {seed}, {variant}: return {run['mean_return']:.1f}, mismatch "
                    f"{queue['mismatch']:.4f}, divergence {queue['divergence']:.4f}, lag {queue['policy_lag']:.1f}",
                    flush=True,
                )
                yield run


def _run(folder: Path, flags: Sequence[str]) -> Run:
    forget_incomplete(folder)
    summary = train(folder, flags)
    names = ("environment_steps", "updates", "wall_clock_s", "rollout_queue", "transitions_by_scheme")
    found = confirm(folder, _EPISODES, "fp32")
    return {**{name: summary[name] for name in names}, "mean_return": found.mean_return, "episodes": found.episodes}


MEANINGS = (
    Meaning(
        "rounding: standard deviations lost without weights, on the best task where weights lose at most one",
        "How much return do importance weights save when actors round coarsely?",
        "No measured task needs the weights. Their use against coarse rounding is not shown.",
        unit=" standard deviations",
    ),
)


def verdicts(tasks: Sequence[Task], runs: Sequence[Run]) -> list[Target]:
    """Rounding: the largest loss without correction that correction prevents. Staleness: corrected against no lag."""

    def behind(task: Task, variant: str) -> float:
        """The distance of a variant's mean below the reference's mean, in standard deviations of the reference."""
        sides = {
            side: [run["mean_return"] for run in runs if (run["task"], run["side"]) == (task.name, side)]
            for side in (REFERENCE, variant)
        }
        spread = statistics.stdev(sides[REFERENCE]) if len(sides[REFERENCE]) > 1 else 0.0
        lost = statistics.fmean(sides[REFERENCE]) - statistics.fmean(sides[variant])
        return lost / max(spread, 1e-9 + 0.01 * abs(statistics.fmean(sides[REFERENCE])))

    found = []
    coarse = [task for task in tasks if not task.lags]
    if coarse:
        kept_by_weights = [behind(task, UNCORRECTED) for task in coarse if behind(task, CORRECTED) <= 1.0]
        name = "rounding: standard deviations lost without weights, on the best task where weights lose at most one"
        found.append(Target(name, max(kept_by_weights, default=0.0), 1.0, at_most=False))
    for task in (task for task in tasks if task.lags):
        without = f"without V-trace: {behind(task, UNCORRECTED):.1f}"
        name = f"{task.name}: standard deviations lost at a lag of {_LAG} versions ({without})"
        found.append(Target(name, behind(task, CORRECTED), 1.0))
    return without_verdict(found, ONE_SEED if len({run["seed"] for run in runs}) == 1 else "")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
