"""Time to solve CartPole-v1 with one command, over several seeds: `actorq train` as a user runs it.

A run is solved if 20 greedy episodes of the int8 policy have a mean return of at least 475. The evaluator runs them.
The wall clock covers the whole command with its processes and imports. One seed gives no verdict.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ONE_SEED, Target, run_benchmark, without_verdict
from benchmarks.runs import actor_megabytes, confirm, refusal, train
from benchmarks.training.cartpole_plot import plot

_TARGET_RETURN = 475.0


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 1 to N (default: 5)")
    parser.add_argument(
        "--confirm", type=int, default=0, metavar="N", help="evaluate the solved policy again on N new episodes"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw return against seconds to FILE, such as a PNG")
    parser.add_argument("rest", nargs="*", help="more flags for actorq train, after --")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    runs = []
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(1, arguments.seeds + 1):
            folder = Path(directory) / f"seed-{seed}"
            run = train(folder, ["--environment", "CartPole-v1", "--seed", str(seed), *arguments.rest])
            if arguments.confirm:
                run["confirmation"] = confirm(folder, arguments.confirm).mean_return
            runs.append(run)
            print(_row(run), flush=True)
    if arguments.plot:
        plot(runs, arguments.plot)
    found = without_verdict(targets(runs), refusal(runs))
    return {"runs": runs, "median_s": statistics.median(run["wall_clock_s"] for run in runs)}, found


def targets(runs: Sequence[dict[str, Any]]) -> list[Target]:
    """Bounds for all seeds, slightly above the stored result."""
    training = [run["wall_clock_s"] for run in runs]
    solved = sum(
        run["solved"] and run["evaluation"]["mean_return"] >= _TARGET_RETURN and run["evaluation"]["scheme"] == "int8"
        for run in runs
    )
    int8_only = sum(set(run["transitions_by_scheme"]) == {"int8"} for run in runs)
    found = [
        Target("seeds solved by the int8 policy", solved, len(runs), at_most=False),
        Target("median seconds of training", statistics.median(training), 10.0),
        Target("longest seconds of training", max(training), 12.0),
        Target("most environment steps", max(run["environment_steps"] for run in runs), 40_000),
        Target("runs whose transitions all came from int8 policies", int8_only, len(runs), at_most=False),
        Target("largest actor in MB", max(mb for run in runs for mb in actor_megabytes(run)), 120.0),
    ]
    return without_verdict(found, ONE_SEED if len(runs) == 1 else "")


def _row(run: dict[str, Any]) -> str:
    evaluation = run["evaluation"]
    return (
        f"seed {run['seed']}: {'solved' if run['solved'] else 'NOT solved'}, {evaluation['scheme']} return "
        f"{evaluation['mean_return']:.1f}, {run['wall_clock_s']:.1f} s ({run['command_s']:.1f} s with start and end), "
        f"{run['environment_steps']} steps, {run['updates']} updates"
        + (f", {run['confirmation']:.1f} on new episodes" if "confirmation" in run else "")
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
