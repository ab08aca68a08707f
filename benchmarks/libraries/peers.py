"""Seconds to a target return: ActorQ, Stable-Baselines3 and Ray RLlib, on one machine, one run at a time.

ActorQ runs `actorq train` with a preset and int8 actors. The other libraries run with their own tuned settings. Each
has a virtual environment in --environments (benchmarks/libraries/peer_runs has settings and pinned versions). A run
ends when the mean return of 20 greedy episodes reaches the target, or at its time limit. A run that misses the target
counts as its time limit, and the table shows "> limit".

seconds: from the start of the command to the end of the evaluation that reached the target. Includes imports and
evaluations. learning: the same without the seconds until learning began. The other libraries evaluate between two
steps of learning; the table shows the time for that. Memory is the sum over all processes of a run.

Systems take turns, so that a slower machine affects all of them. All may use all cores of this process (`taskset`
restricts them). Runs are kept in --directory, and complete runs are not repeated.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import ONE_SEED, Target, run_benchmark, without_verdict
from benchmarks.libraries.peers_environments import pins
from benchmarks.libraries.peers_plot import plot
from benchmarks.libraries.peers_systems import ACTORQ, EPISODES, RLLIB, STABLE_BASELINES, SYSTEMS, Task, run_system
from benchmarks.runs import cached, chosen, refusal

Run = dict[str, Any]

TASKS = (
    Task("dqn", "CartPole-v1", 475.0, 5_000, 300.0),
    Task("ppo", "CartPole-v1", 475.0, 4_096, 300.0),
    Task("dqn", "LunarLander-v3", 200.0, 10_000, 480.0),
    Task("sac", "Pendulum-v1", -200.0, 1_000, 300.0, threads=2),
    Task("sac", "HalfCheetah-v5", 5_000.0, 10_000, 1_200.0, threads=2, preset="auto"),
)
# The least seconds of another library, relative to ActorQ's.
_TARGETS = {STABLE_BASELINES: 1.0, RLLIB: 3.0}


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tasks", nargs="+", metavar="PATTERN", help="ALGORITHM/ENVIRONMENT, shell patterns (default: *)"
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="systems (default: all)")
    parser.add_argument("--seeds", type=_positive, default=3, metavar="N", help="seeds 1 to N (default: 3)")
    parser.add_argument("--limit-s", type=float, metavar="S", help="time limit of a run (default: the task's own)")
    parser.add_argument("--environments", type=Path, metavar="DIR", help="folder for the other libraries")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw return against seconds to FILE, such as a PNG")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return int(text)


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    tasks = chosen(TASKS, arguments.tasks, "--tasks")
    if arguments.limit_s is not None:
        if not 0.0 < arguments.limit_s < float("inf"):
            raise SystemExit(f"--limit-s: expected seconds above 0, got {arguments.limit_s:g}")
        tasks = [replace(task, limit_s=arguments.limit_s) for task in tasks]
    others = set(arguments.systems) - {ACTORQ}
    if others and not arguments.environments:
        raise SystemExit("--environments: expected a folder to install the other libraries in, or --systems actorq")
    if arguments.check and (ACTORQ not in arguments.systems or not others):
        raise SystemExit(
            f"--check: expected --systems with {ACTORQ} and another one, got {' '.join(arguments.systems)}"
        )
    with tempfile.TemporaryDirectory() as nowhere:
        folder = arguments.directory or Path(nowhere)
        runs = list(make_runs(tasks, arguments.systems, arguments.seeds, folder, arguments.environments))
    by_task = {task: [run for run in runs if run["task"] == task.name] for task in tasks}
    print("\n".join(table(by_task)))
    if arguments.plot:
        plot(by_task, arguments.plot)
    found = [target for task, own in by_task.items() for target in targets(task, own)]
    return {"episodes": EPISODES, "runs": runs}, without_verdict(found, refusal(runs))


def make_runs(
    tasks: Sequence[Task], systems: Sequence[str], seeds: int, directory: Path, environments: Path | None
) -> Iterator[Run]:
    """Runs of all systems, seed by seed and task by task. Every second seed reverses the order of the systems."""
    for seed in range(1, seeds + 1):
        for task in tasks:
            for system in systems if seed % 2 else reversed(systems):
                folder = directory / f"{task.name.replace('/', '-')}-{system}-{seed}"
                settings = {
                    **asdict(task),
                    "episodes": EPISODES,
                    **({} if system == ACTORQ else {"pins": pins(system)}),
                }
                made = cached(
                    folder.with_name(f"{folder.name}.json"),
                    settings,
                    lambda: run_system(system, task, seed, folder, environments),  # noqa: B023
                )
                run = {"system": system, "task": task.name, "seed": seed, **made}
                print(_row(run), flush=True)
                yield run


def targets(task: Task, runs: Sequence[Run]) -> list[Target]:
    """Median seconds of each library relative to ActorQ's. 0 if ActorQ's median run misses the target."""
    ours = _of(runs, ACTORQ)
    found = []
    for system, bound in _TARGETS.items():
        theirs = _of(runs, system)
        if not ours or not theirs:
            continue
        seconds = [run["seconds"] if run["reached"] else float("inf") for run in ours]
        ratio = statistics.median(run["seconds"] for run in theirs) / statistics.median(seconds)
        name = f"{task.name}: median seconds of {system} over those of {ACTORQ}"
        found.append(Target(name, ratio, bound, at_most=False))
    return without_verdict(found, ONE_SEED if len({run["seed"] for run in runs}) == 1 else "")


def table(by_task: dict[Task, list[Run]]) -> list[str]:
    """A row for each task and system: medians over seeds, and the range of the seconds."""
    rows = [
        "| task | system | seconds | learning | standing still to evaluate | steps/s | MB | times as long as ActorQ |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task, runs in by_task.items():
        ours = _of(runs, ACTORQ)
        for system in SYSTEMS:
            own = _of(runs, system)
            if own:
                rows.append(_summary(task, system, own, ours))
    return rows


def _summary(task: Task, system: str, own: Sequence[Run], ours: Sequence[Run]) -> str:
    seconds = [run["seconds"] for run in own]
    middle, reached = statistics.median(seconds), sum(run["reached"] for run in own)
    learning = statistics.median(run["seconds"] - (run["start_s"] or 0.0) for run in own)
    evaluating, memory = (statistics.median(run[name] for run in own) for name in ("evaluation_s", "peak_memory_mb"))
    rates = [run["steps_per_s"] for run in own if run["steps_per_s"] is not None]
    rate = f"{statistics.median(rates):,.0f}" if rates else "-"
    times = f"{middle / statistics.median(run['seconds'] for run in ours):.1f}" if ours else "-"
    low, high = _shown(min(seconds), task), _shown(max(seconds), task)
    return (
        f"| {task.name} | {system} | {_shown(middle, task)} ({low} to {high}; {reached} of {len(own)} reached) | "
        f"{learning:.1f} | {evaluating:.1f} | {rate} | {memory:,.0f} | "
        f"{'> ' if ours and middle >= task.limit_s else ''}{times} |"
    )


def _of(runs: Sequence[Run], system: str) -> list[Run]:
    return [run for run in runs if run["system"] == system]


def _shown(seconds: float, task: Task) -> str:
    return f"> {task.limit_s:g}" if seconds >= task.limit_s else f"{seconds:.1f}"


def _row(run: Run) -> str:
    seconds = f"{run['seconds']:.1f} s" if run["reached"] else f"> {run['seconds']:g} s, target missed"
    rate = "no evaluation" if run["steps_per_s"] is None else f"{run['steps_per_s']:,.0f} steps/s"
    return (
        f"{run['task']} {run['system']} seed {run['seed']}: {seconds}, {run['environment_steps']:,} steps, {rate}, "
        f"{run['peak_memory_mb']:,.0f} MB"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
