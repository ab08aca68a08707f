"""Returns of agents with one policy, with one policy that knows its agent, and with policies by group, in int8.

In benchmarks.environments.lift a crane and two guides see the same and must act differently. One policy that does not
know its agent has a mean return of at most `best_shared_return`, whatever it learns. A run is `actorq train`. It ends
with an evaluation at 95% of the best return, or after its environment steps. Its last policy then plays new episodes.

Targets, older than the runs: with groups the lowest seed reaches 90% of the best return. One policy stays below its
bound, as a check of the bound. The policy that knows its agent has no target: it is the other way to solve the task.

Runs are kept in --directory, so that a measurement may continue later. All must come from one commit on one machine.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.environments.lift import GROUPS, best_return, best_shared_return
from benchmarks.harness import Meaning, Target, run_benchmark, without_verdict
from benchmarks.runs import cached, confirm, forget_incomplete, refusal, train, with_project

Run = dict[str, Any]

MODULE = "benchmarks.environments.lift"
LEAST_SEEDS = 3
ONE, IDENTITY, BY_GROUP = "one policy", "one policy that knows its agent", "policies by group"
SIDES: Mapping[str, tuple[str, ...]] = {
    ONE: (),
    IDENTITY: ("--agents.identity=one-hot",),
    BY_GROUP: tuple(f"--policies.{name}={','.join(agents)}" for name, agents in GROUPS.items()),
}
# By algorithm: environment steps that end a run.
STEPS = {"ppo": 100_000, "dqn": 60_000}
_LEAST, _END = 0.9, 0.95
_EPISODES = 100
_FEW_SEEDS = f"fewer than {LEAST_SEEDS} seeds give no verdict"
_INT8 = "runs whose transitions all came from int8 policies"
_KEPT = ("wall_clock_s", "environment_steps", "updates", "solved", "transitions_by_scheme")

MEANINGS = (
    Meaning(
        rf"(?P<algorithm>\w+), {BY_GROUP}: lowest return of a seed",
        "Do int8 policies by group solve a task that one policy cannot solve?",
        "Not every seed solves the task. Another seed or more steps may help.",
        case="{algorithm}",
    ),
    Meaning(
        rf"(?P<algorithm>\w+), {ONE}: highest return of a seed",
        "Does one policy for all agents stay below its computed bound?",
        "A return above the bound shows a mistake: in the bound, or in what agents see.",
        case="{algorithm}",
    ),
    Meaning(
        _INT8,
        "Do int8 policies collect all data of policies by group?",
        "The gate kept a policy in another scheme. The table then does not show int8.",
    ),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--algorithms", nargs="+", choices=STEPS, default=list(STEPS), help="default: all")
    parser.add_argument("--seeds", type=int, default=LEAST_SEEDS, metavar="N", help=f"seeds 1 to N ({LEAST_SEEDS})")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    with tempfile.TemporaryDirectory() as nowhere:
        runs = list(make_runs(arguments.algorithms, arguments.seeds, arguments.directory or Path(nowhere)))
    figures = {"runs": runs}
    return figures, targets(figures)


def make_runs(algorithms: list[str], seeds: int, directory: Path) -> Iterator[Run]:
    """The runs of all algorithms and sides."""
    for algorithm in algorithms:
        for side in SIDES:
            for seed in range(1, seeds + 1):
                run = _run(algorithm, side, seed, directory)
                print(_line(run), flush=True)
                yield run


def flags_of(algorithm: str, side: str, seed: int) -> list[str]:
    """The flags of actorq train."""
    given = {
        "environment": f"{MODULE}:Lift",
        "algorithm": algorithm,
        "scheme": "int8",
        "seed": seed,
        "target-return": f"{_END * best_return():g}",
        "max-environment-steps": STEPS[algorithm],
    }
    return [*(f"--{name}={value}" for name, value in given.items()), *SIDES[side]]


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """Two targets for each algorithm with runs, and one for the scheme of all actors."""
    runs: list[Run] = figures["runs"]
    found, fewest = [], LEAST_SEEDS
    for algorithm in STEPS:
        sides = {side: [r for r in runs if (r["algorithm"], r["side"]) == (algorithm, side)] for side in SIDES}
        returns = {side: [run["confirmed"]["mean_return"] for run in own] for side, own in sides.items() if own}
        fewest = min([fewest, *map(len, returns.values())])
        if BY_GROUP in returns:
            name, least = f"{algorithm}, {BY_GROUP}: lowest return of a seed", _LEAST * best_return()
            found.append(Target(name, min(returns[BY_GROUP]), least, at_most=False))
        if ONE in returns:
            name = f"{algorithm}, {ONE}: highest return of a seed"
            found.append(Target(name, max(returns[ONE]), best_shared_return()))
    int8_only = sum({*run["transitions_by_scheme"]} == {"int8"} for run in runs)
    found.append(Target(_INT8, int8_only, len(runs), at_most=False))
    return without_verdict(found, _FEW_SEEDS if fewest < LEAST_SEEDS else refusal(runs))


def _run(algorithm: str, side: str, seed: int, directory: Path) -> Run:
    folder = directory / f"{algorithm}-{side.replace(' ', '-')}-{seed}"
    flags, variables = flags_of(algorithm, side, seed), with_project()

    def make() -> Run:
        forget_incomplete(folder)
        made = train(folder, flags, variables)
        confirmed = confirm(folder, _EPISODES, variables=variables, flags=("--allow-modules", MODULE))
        return {**{name: made[name] for name in _KEPT}, "confirmed": asdict(confirmed)}

    made = cached(folder.with_suffix(".json"), {"flags": flags, "episodes": _EPISODES}, make)
    return {**made, "task": algorithm, "algorithm": algorithm, "side": side, "seed": seed}


def _line(run: Run) -> str:
    return (
        f"{run['algorithm']} {run['side']:32} seed {run['seed']}: {run['confirmed']['scheme']} return "
        f"{run['confirmed']['mean_return']:6.2f}, {run['environment_steps']:>8,} steps, {run['wall_clock_s']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
