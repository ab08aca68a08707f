"""Compares SAC and TD3 with Stable-Baselines3's, with equal hyperparameters (parity_settings.py), steps and seeds.

Each run has 100,000 environment steps. At its end the last policy plays the same 20 new episodes on both sides, with
deterministic actions. ActorQ's last policy is the last one that acted in int8: the fidelity gate puts some versions in
float. transitions_by_scheme counts the transitions of each scheme. Target of a task: the mean of ActorQ's seeds is at
least the mean of the other library's seeds minus their sample standard deviation. One seed gives no verdict, because it
has no standard deviation.

Runs are kept in --directory. Complete runs are not repeated, and a killed run starts again. All must come from one
commit on one machine. Stable-Baselines3 must be installed:
pip install stable-baselines3==2.9.2
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from actor_service.environments import describe_environment
from actor_service.policies.policy import load_policy
from actorq.domain.policy import Policy
from actorq.rundirectory import RunDirectory
from benchmarks.harness import ONE_SEED, Meaning, Target, run_benchmark, without_verdict
from benchmarks.libraries.parity_episodes import final_returns
from benchmarks.libraries.parity_plot import plot
from benchmarks.libraries.parity_settings import SAC, TD3, Hyperparameters
from benchmarks.policies import stored_policy
from benchmarks.runs import (
    CONFIRMATION_SEED,
    add_task_flag,
    cached,
    chosen,
    forget_incomplete,
    in_order,
    refusal,
    train,
)
from quantizer_service.store.reader import PolicyReader

INT8 = "int8"
OURS, THEIRS = "actorq", "stable-baselines3"
Run = dict[str, Any]
_PERIOD, _EPISODES = 5_000, 10
# Episodes of the last policy.
FINAL_EPISODES = 20


@dataclass(frozen=True)
class Task:
    """An algorithm on an environment."""

    hyperparameters: Hyperparameters
    environment: str

    @property
    def name(self) -> str:
        """The name that the patterns of --task match."""
        return f"{self.hyperparameters.algorithm}/{self.environment}"


TASKS = tuple(
    Task(hyperparameters, environment)
    for environment, hyperparameters in product(("Pendulum-v1", "HalfCheetah-v5"), (SAC, TD3))
)


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 1 to N of each task (default: 3)")
    parser.add_argument("--steps", type=int, default=100_000, metavar="N", help="steps per run (default: 100000)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at the same time (default: 1)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw return against steps to FILE, such as a PNG")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    tasks = chosen(TASKS, arguments.task)
    with tempfile.TemporaryDirectory() as nowhere:
        directory = arguments.directory or Path(nowhere)
        runs = list(make_runs(tasks, arguments.seeds, arguments.steps, arguments.jobs, directory))
    by_task = {
        task.name: {side: [run for run in runs if (run["task"], run["side"]) == (task.name, side)] for side in _SIDES}
        for task in tasks
    }
    if arguments.plot:
        plot(by_task, arguments.plot)
    targets: list[Target] = []
    for name, sides in by_task.items():
        found = verdict(name, sides[OURS], sides[THEIRS])
        targets += without_verdict([found], refusal([*sides[OURS], *sides[THEIRS]]))
    return {"runs": runs}, targets


MEANINGS = (
    Meaning(
        r"(?P<task>.+): mean of (?P<seeds>\d+) seeds \(Stable-Baselines3: .+\)",
        "Is ActorQ's mean return as high as Stable-Baselines3's?",
        "ActorQ returns less on this task than Stable-Baselines3 with equal settings.",
        case="{task}, seeds: {seeds}",
    ),
)


def verdict(name: str, ours: Sequence[Run], theirs: Sequence[Run]) -> Target:
    """Our mean final return over seeds, against their mean minus the sample standard deviation of theirs."""
    our_returns, their_returns = ([run["final"]["mean_return"] for run in runs] for runs in (ours, theirs))
    spread = statistics.stdev(their_returns) if len(their_returns) > 1 else 0.0
    mean = statistics.fmean(their_returns)
    return Target(
        f"{name}: mean of {len(ours)} seeds (Stable-Baselines3: {mean:.1f}, standard deviation {spread:.1f})",
        statistics.fmean(our_returns),
        mean - spread,
        at_most=False,
        refused=ONE_SEED if min(len(ours), len(theirs)) == 1 else "",
        baseline=mean,
    )


def make_runs(tasks: Sequence[Task], seeds: int, steps: int, jobs: int, directory: Path) -> Iterator[Run]:
    """Runs of both libraries, seed by seed, so that early results cover all tasks."""
    for run in in_order(partial(_run, steps, directory), product(range(1, seeds + 1), tasks, _SIDES), jobs):
        print(_row(run), flush=True)
        yield run


def _run(steps: int, directory: Path, wanted: tuple[int, Task, str]) -> Run:
    seed, task, side = wanted
    name = f"{task.name.replace('/', '-')}-{seed}"
    # In one folder, so that a run of the other library on another commit is found before this run starts.
    folder = directory / f"{side}-{name}"
    settings = {"steps": steps, "hyperparameters": asdict(task.hyperparameters)}
    made = cached(directory / f"{folder.name}.json", settings, lambda: _SIDES[side](task, seed, steps, folder))
    return {"task": task.name, "side": side, "seed": seed, **made}


def _ours(task: Task, seed: int, steps: int, folder: Path) -> Run:
    forget_incomplete(folder)
    evaluation = ["--evaluation.period-updates", str(_PERIOD), "--evaluation.episodes", str(_EPISODES)]
    # An unreachable return, so that the run does not end early: HalfCheetah has a threshold of its own.
    limits = ["--target-return", "1e9", "--max-environment-steps", str(steps)]
    run = ["--environment", task.environment, "--seed", str(seed)]
    summary = train(folder, [*task.hyperparameters.actorq(), *run, *evaluation, *limits])
    names = ("environment_steps", "updates", "wall_clock_s", "evaluations", "transitions_by_scheme")
    return {**{name: summary[name] for name in names}, "final": final(folder, task.environment)}


def final(folder: Path, environment: str) -> Run:
    """New episodes of the last quantized policy of a run, without noise."""
    policy, spec = last_quantized(folder), describe_environment(environment)
    run = load_policy(policy, spec, 1)

    def act(observation: NDArray[Any]) -> NDArray[Any]:
        output = run(observation[None])[0]
        return np.asarray(output.argmax()) if spec.sizes else output.copy()

    played = final_returns(act, gymnasium.make(environment), FINAL_EPISODES, CONFIRMATION_SEED)
    scheme = policy.descriptor.effective_scheme
    return {"mean_return": statistics.fmean(played), "episodes": len(played), "scheme": scheme}


def last_quantized(folder: Path) -> Policy:
    """The newest quantized int8 policy in a run's store. Raises SystemExit if there is none."""
    store = PolicyReader(RunDirectory(folder).policies)
    for retained in store.versions():
        policy = stored_policy(store, retained.version, INT8)
        if policy is not None and policy.descriptor.effective_scheme == INT8:
            return policy
    raise SystemExit(
        f"{folder}: expected an {INT8} policy among those retained, got none that passed the fidelity gate"
    )


def _theirs(task: Task, seed: int, steps: int, folder: Path) -> Run:
    request = {
        "algorithm": task.hyperparameters.algorithm,
        "environment": task.environment,
        "seed": seed,
        "steps": steps,
        "arguments": task.hyperparameters.stable_baselines(),
        "action_noise": task.hyperparameters.action_noise,
        "evaluation": {"period": _PERIOD, "episodes": _EPISODES},
        "final": {"episodes": FINAL_EPISODES, "seed": CONFIRMATION_SEED},
    }
    return baseline("benchmarks.libraries.parity_baseline", request)


def baseline(module: str, request: Run) -> Run:
    """The answer of a module that runs Stable-Baselines3. Raises SystemExit when it fails."""
    command = [sys.executable, "-m", module]
    process = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise SystemExit(f"Stable-Baselines3 failed with exit code {process.returncode}: {reason}")
    answer: Run = json.loads(process.stdout.splitlines()[-1])
    return answer


_SIDES: dict[str, Callable[[Task, int, int, Path], Run]] = {OURS: _ours, THEIRS: _theirs}


def _row(run: Run) -> str:
    final = run["final"]
    return (
        f"{run['task']} seed {run['seed']}, {run['side']}: {final['mean_return']:.1f} on {final['episodes']} new "
        f"episodes ({final['scheme']}), {run['environment_steps']:,} steps, {run['updates']:,} updates, "
        f"{run['wall_clock_s']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
