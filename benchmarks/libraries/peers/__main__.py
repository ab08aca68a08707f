"""Seconds to a target return: ActorQ, Stable-Baselines3, sb3-contrib, SBX and RLlib, on one machine, one run at a time.

ActorQ runs `actorq train` with a preset and int8 actors. actorq-xqc does so with XQC, on tasks of SAC. The other
libraries run with their own tuned settings. stable-baselines3-n1 is Stable-Baselines3 with ActorQ's updates per step,
those of the first seed's run. stable-baselines3-n3 also has returns of three steps. sbx and sbx-crossq run in JAX. On
tasks without velocities, policies have a memory, and recurrent-ppo is RecurrentPPO of sb3-contrib. Each library has a
virtual environment in --environments (benchmarks/libraries/peer_runs has settings and pinned versions). A system
without settings for a task is left out.

An evaluation has 20 greedy episodes. It reaches the target if it is at least the target, and the next evaluation is at
least 0.9 of the target (benchmarks.reached). The benchmark then ends the run. A run that misses the target counts as
its time limit, and the table shows "> limit".

`actorq train` also gets a target, a tenth higher, because its evaluator evaluates more often near a target. If a run
ends by itself there, its last policy makes 20 new episodes as the successor, and their time does not count. If they
return too little, the run has missed the target.

seconds: from the start of the command to the end of the evaluation that reached the target. Includes imports and
evaluations. learning: the same without the seconds until learning began. The other libraries evaluate between two
steps of learning; the table shows the time for that. Memory is the sum over all processes of a run. Energy is that of
the whole machine, by the same meter for all systems: the mean power during the run times the seconds.

Systems take turns, so that a slower machine affects all of them. All may use all cores of this process (`taskset`
restricts them). Runs are kept in --directory, and complete runs are not repeated.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Target, run_benchmark, without_verdict
from benchmarks.libraries.peers.plot import plot
from benchmarks.libraries.peers.systems import (
    ACTORQ,
    OURS,
    SYSTEMS,
    WITH_OUR_UPDATES,
    has_settings,
    run_system,
    settings_of,
)
from benchmarks.libraries.peers.table import line, table
from benchmarks.libraries.peers.targets import MEANINGS, targets
from benchmarks.libraries.peers.tasks import EPISODES, TASKS, Task
from benchmarks.runs import cached, chosen, refusal

__all__ = ["MEANINGS", "TASKS", "make_runs", "targets"]

Run = dict[str, Any]


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
    if not set(arguments.systems) <= {*OURS} and not arguments.environments:
        raise SystemExit(
            f"--environments: expected a folder to install the other libraries in, or --systems {' '.join(OURS)}"
        )
    systems = systems_of(tasks, arguments.systems, arguments.check)
    with tempfile.TemporaryDirectory() as nowhere:
        folder = arguments.directory or Path(nowhere)
        runs = list(make_runs(systems, arguments.seeds, folder, arguments.environments))
    by_task = {task: [run for run in runs if run["task"] == task.name] for task in systems}
    print("\n".join(table(by_task)))
    if arguments.plot:
        plot(by_task, arguments.plot)
    found = [target for task, own in by_task.items() for target in targets(task, own)]
    if arguments.check and (missing := [task.name for task, own in by_task.items() if not targets(task, own)]):
        raise SystemExit(
            f"--check: expected runs of {ACTORQ} and another system, got no others of {', '.join(missing)}"
        )
    return {"episodes": EPISODES, "runs": runs}, without_verdict(found, refusal(runs))


def systems_of(tasks: Sequence[Task], asked: Sequence[str], is_checked: bool) -> dict[Task, list[str]]:
    """The systems that run each task, in the order of SYSTEMS. Prints which systems are left out.

    is_checked: whether the targets are needed. Raises SystemExit if no task has a system, if one of
    WITH_OUR_UPDATES lacks ActorQ, or if needed targets lack ActorQ or another system.
    """
    found = {}
    for task in tasks:
        own = [system for system in SYSTEMS if system in asked and has_settings(system, task)]
        paced = [system for system in own if system in WITH_OUR_UPDATES]
        if paced and ACTORQ not in own:
            raise SystemExit(f"--systems: expected {ACTORQ} too, because {paced[0]} uses its updates per step")
        if is_checked and (ACTORQ not in own or {*own} <= {*OURS}):
            raise SystemExit(
                f"--check: expected --systems with {ACTORQ} and another one with settings for {task.name}, "
                f"got {' '.join(asked)}"
            )
        for system in SYSTEMS:
            if system in asked and system not in own:
                print(f"{task.name} {system}: left out, because it has no settings for this task", flush=True)
        if own:
            found[task] = own
    if not found:
        raise SystemExit(
            f"--systems: expected one with settings for {', '.join(task.name for task in tasks)}, got {' '.join(asked)}"
        )
    return found


def make_runs(systems: dict[Task, list[str]], seeds: int, directory: Path, environments: Path | None) -> Iterator[Run]:
    """Runs of the systems of each task, seed by seed and task by task. Every second seed reverses the order of the
    systems.
    """
    # Environment steps for each update, of the first seed: all runs of a system have the same settings.
    of_actorq: dict[Task, int] = {}
    for seed in range(1, seeds + 1):
        for task, own in systems.items():
            for system in own if seed % 2 else reversed(own):
                per_update = of_actorq.get(task) if system in WITH_OUR_UPDATES else None
                if system in WITH_OUR_UPDATES and per_update is None:
                    print(f"{task.name} {system}: left out, because {ACTORQ}'s run has not chosen its updates per step")
                    continue
                folder = directory / f"{task.name.replace('/', '-')}-{system}-{seed}"
                made = cached(
                    folder.with_name(f"{folder.name}.json"),
                    settings_of(system, task, per_update),
                    lambda: run_system(system, task, seed, folder, environments, per_update),  # noqa: B023
                )
                if system == ACTORQ and seed == 1 and made["steps_per_update"] is not None:
                    of_actorq[task] = max(1, round(made["steps_per_update"]))
                run = {"system": system, "task": task.name, "seed": seed, **made}
                print(line(run), flush=True)
                yield run


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
