"""How many environment steps does a warm start save?

A first run solves CartPole-v1. Then the pole becomes twice as long. Three runs train on the changed CartPole until they
reach its target: one with new networks, one with the networks of the first run (`--init-from`), and one that also has
its replay (`--init-replay`). The target is a mean return of 475 over 20 greedy episodes of the int8 policy. Only steps
of the changed CartPole count.

The fresh run has the defaults, which are tuned for it. The warm starts have a tenth of its step size. With the default,
the first updates of a new optimizer destroy most of the learned weights. One seed gives no verdict.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ONE_SEED, Target, run_benchmark, without_verdict
from benchmarks.runs import refusal, train

_TARGET_RETURN = 475.0
_LENGTH = 1.0
_SMALL_STEP = "1e-3"
_WRAPPER = "benchmarks.environments.changed:Physics"


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 1 to N (default: 5)")
    parser.add_argument(
        "--length", type=float, default=_LENGTH, metavar="M", help=f"half length of the pole in m (default: {_LENGTH})"
    )
    parser.add_argument("rest", nargs="*", help="more flags for actorq train on the changed CartPole, after --")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(1, arguments.seeds + 1):
            runs.append(_of_seed(Path(directory), seed, arguments.length, arguments.rest))
            print(_row(runs[-1]), flush=True)
    figures = {
        "length": arguments.length,
        "runs": runs,
        "median_steps": {
            start: statistics.median(run[start]["environment_steps"] for run in runs) for start in _STARTS
        },
    }
    of_all = [run[start] for run in runs for start in ("source", *_STARTS)]
    return figures, without_verdict(targets(figures), refusal(of_all))


def _starts(source: Path) -> dict[str, list[str]]:
    """The flags of each kind of start."""
    warm = ["--init-from", str(source), "--dqn.learning-rate", _SMALL_STEP]
    return {"fresh": [], "warm": warm, "warm_with_replay": [*warm, "--init-replay"]}


_STARTS = tuple(_starts(Path()))


def _of_seed(directory: Path, seed: int, length: float, rest: Sequence[str]) -> dict[str, Any]:
    source = directory / f"source-{seed}"
    common = ["--environment", "CartPole-v1", "--seed", str(seed)]
    changed = ["--environment-wrappers", f"[{{{_WRAPPER}: {{length: {length}}}}}]", *rest]
    found: dict[str, Any] = {"seed": seed, "source": _kept(train(source, common))}
    for start, flags in _starts(source).items():
        found[start] = _kept(train(directory / f"{start}-{seed}", [*common, *changed, *flags]))
    return found


def _kept(run: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run. first_return: return of its first evaluation, which measures an early policy."""
    names = ("seed", "solved", "environment_steps", "updates", "wall_clock_s", "conditions")
    return {
        **{name: run[name] for name in names},
        "mean_return": run["evaluation"]["mean_return"],
        "first_return": run["evaluations"][0]["mean_return"],
    }


def targets(figures: dict[str, Any]) -> list[Target]:
    """Targets: at most half of the steps, in the median of all seeds. An unsolved fresh run counts with its whole
    budget.
    """
    runs, medians = figures["runs"], figures["median_steps"]
    warm = [run[start] for run in runs for start in ("warm", "warm_with_replay")]
    solved = sum(run["solved"] and run["mean_return"] >= _TARGET_RETURN for run in warm)
    found = [
        Target("warm starts that reach a return of 475", solved, len(warm), at_most=False),
        Target("median steps with the networks, as a share of a fresh run", medians["warm"] / medians["fresh"], 0.5),
        Target(
            "median steps with networks and replay, as a share of a fresh run",
            medians["warm_with_replay"] / medians["fresh"],
            0.5,
        ),
    ]
    return without_verdict(found, ONE_SEED if len(runs) == 1 else "")


def _row(run: dict[str, Any]) -> str:
    steps = ", ".join(
        f"{start.replace('_', ' ')} {run[start]['environment_steps']:,} steps"
        + ("" if run[start]["solved"] else " NOT solved")
        for start in _STARTS
    )
    return f"seed {run['seed']}: {steps}; first return {run['warm']['first_return']:.1f}"


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
