"""Seconds to a target return with several agents that share one policy: ActorQ's PPO beside that of other libraries.

actorq runs `actorq train` with PPO and int8 actors. actorq-joint also shows all agents' observations to the value
network (MAPPO). rllib is Ray RLlib's PPO with one policy for all agents. stable-baselines3 has all agents as rows of
one vector environment; its agents cannot leave. Networks, environments, rollouts, minibatches, epochs and step sizes
are the same (benchmarks.libraries.peer_runs.rllib_agents names RLlib's differences). The virtual environments of the
other libraries are in --environments.

Tasks, with targets from before the runs (benchmarks.training.agents.tasks):

- simple_spread_v3 of MPE2, with its default settings. Papoudakis et al. 2021 (arXiv 2006.07869) report a return of
  about -133 for IPPO and for MAPPO. Their agents also collide with themselves in each step, and MPE2 halves all
  rewards. Their return is therefore -29 here. The target is half of the way from random actions to it, because runs
  have about a hundredth of their steps.
- Doors (benchmarks.environments.doors), whose agents have masks, leave and come back. The target is 90% of the best
  return.

An evaluation has greedy episodes, for ActorQ in int8. It reaches the target as in benchmarks.reached, and the benchmark
then ends the run. A run that misses the target counts as its time limit. seconds: from the start of the command to the
end of the evaluation that reached the target. The last policy of each run of ActorQ plays new episodes, in int8.

Targets: every seed of ActorQ reaches the return in time, and its median seed needs at most as long as that of the other
libraries.

Systems take turns, one run at a time. Runs are kept in --directory, and complete runs are not repeated.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Meaning, Target, run_benchmark, without_verdict
from benchmarks.libraries.peers.table import line
from benchmarks.runs import cached, chosen, refusal
from benchmarks.training.agents.systems import OTHERS, OURS, SYSTEMS, fits, run_system, settings_of
from benchmarks.training.agents.tasks import TASKS, AgentsTask

Run = dict[str, Any]

LEAST_SEEDS = 3
_FEW_SEEDS = f"fewer than {LEAST_SEEDS} seeds give no verdict"
_INT8 = "runs of ActorQ whose transitions all came from int8 policies"

MEANINGS = (
    Meaning(
        r"(?P<task>\S+): seeds of (?P<system>\S+) that reached the target",
        "Do agents that share an int8 policy reach the target return in time?",
        "A run can miss the target within the time limit. Another seed or more time may help.",
        case="{task}, {system}",
    ),
    Meaning(
        r"(?P<task>\S+): median seconds of (?P<other>\S+) over those of (?P<system>\S+)",
        "How many times as long does another library's PPO with one policy for all agents take?",
        "The other library is faster here.",
        " times",
        case="{task}, {other} over {system}",
    ),
    Meaning(
        _INT8,
        "Do int8 policies collect all data of several agents?",
        "The gate kept a policy in another scheme. The table then does not show int8.",
    ),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", metavar="PATTERN", help="names, shell patterns (default: *)")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="systems (default: all)")
    parser.add_argument("--seeds", type=int, default=LEAST_SEEDS, metavar="N", help=f"seeds 1 to N ({LEAST_SEEDS})")
    parser.add_argument("--environments", type=Path, metavar="DIR", help="folder for the other libraries")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    tasks = chosen(TASKS, arguments.tasks, "--tasks")
    if {*OTHERS} & {*arguments.systems} and not arguments.environments:
        raise SystemExit(
            f"--environments: expected a folder to install the other libraries in, or --systems {' '.join(OURS)}"
        )
    systems = [system for system in SYSTEMS if system in arguments.systems]
    with tempfile.TemporaryDirectory() as nowhere:
        folder = arguments.directory or Path(nowhere)
        runs = list(make_runs(tasks, systems, arguments.seeds, folder, arguments.environments))
    figures = {"runs": runs}
    return figures, targets(figures)


def make_runs(
    tasks: Sequence[AgentsTask], systems: Sequence[str], seeds: int, directory: Path, environments: Path | None
) -> Iterator[Run]:
    """The runs of all systems, seed by seed and task by task. Every second seed reverses the order of the systems."""
    for seed in range(1, seeds + 1):
        for task in tasks:
            own = [system for system in systems if fits(system, task)]
            for system in own if seed % 2 else reversed(own):
                folder = directory / f"{task.name}-{system}-{seed}"
                made = cached(
                    folder.with_name(f"{folder.name}.json"),
                    settings_of(system, task),
                    lambda: run_system(system, task, seed, folder, environments),  # noqa: B023
                )
                run = {"system": system, "task": task.name, "seed": seed, **made}
                print(line(run), flush=True)
                yield run


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """The targets of all tasks with runs of ActorQ."""
    runs: list[Run] = figures["runs"]
    found, fewest = [], LEAST_SEEDS
    for task in TASKS:
        own = {system: [r for r in runs if (r["task"], r["system"]) == (task.name, system)] for system in SYSTEMS}
        fewest = min([fewest, *(len(each) for each in own.values() if each)])
        for system in OURS:
            if not own[system]:
                continue
            reached = sum(run["reached"] for run in own[system])
            name = f"{task.name}: seeds of {system} that reached the target"
            found.append(Target(name, reached, len(own[system]), at_most=False))
            # 0 if the median run of ActorQ misses the target.
            ours = median(run["seconds"] if run["reached"] else float("inf") for run in own[system])
            for other in OTHERS:
                if own[other]:
                    times = median(run["seconds"] for run in own[other]) / ours
                    name = f"{task.name}: median seconds of {other} over those of {system}"
                    found.append(Target(name, times, 1.0, at_most=False))
    of_actorq = [run for run in runs if run["system"] in OURS]
    int8_only = sum({*run["transitions_by_scheme"]} == {"int8"} for run in of_actorq)
    found.append(Target(_INT8, int8_only, len(of_actorq), at_most=False))
    return without_verdict(found, _FEW_SEEDS if fewest < LEAST_SEEDS else refusal(runs))


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
