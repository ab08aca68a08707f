"""Trains on observations and actions of several parts, with int8 actors, and checks that each part is used.

Each kind is a coded environment (benchmarks.environments.coded). A run is `actorq train` to a mean return of 18 of 20,
within 90 seconds. A policy that does not see a part cannot exceed the stored bound.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymnasium.spaces import Box

from actor_service.environments.spaces.observations import leaves_of
from actorq.config.algorithms import taking
from actorq.errors import UserError
from benchmarks.environments.coded import KINDS, blind
from benchmarks.harness import Target, run_benchmark
from benchmarks.runs import ACTORQ

ROOT = Path(__file__).resolve().parents[2]
TARGET, SECONDS = 18.0, 90
# The first suitable algorithm has several seeds.
SEEDS = 3
_COMPLETE = (0, 3)
# A small task for algorithms whose defaults are for long runs: updates begin early and have few rows. Codes are
# independent of each other, so a discount of 0 ignores only the noise of later rewards.
_EARLY = ("--replay.min-size", "1000", "--exploration.random-steps", "4000", "--evaluation.period-updates", "200")
_SMALL = {
    "sac": {"batch-size": "64", "discount": "0", "temperature": "0.02"},
    # A faster policy would saturate tanh, where it has no gradient, before the critic has learned anything.
    "td3": {"batch-size": "64", "discount": "0", "learning-rate": "1e-4"},
    "d4pg": {
        **{"batch-size": "64", "discount": "0", "policy-learning-rate": "2e-4", "critic-learning-rate": "1e-3"},
        **{"policy-delay": "4", "n-step": "1", "value-min": "0", "value-max": "1"},
    },
    "impala": {"discount": "0.5"},
}
# For a continuous action, which must be close to its target.
_CLOSE = {
    "ppo": {"discount": "0.5", "log-std": "-1"},
    "impala": {"discount": "0", "log-std": "-1", "entropy-cost": "0", "learning-rate": "2e-3"},
}
# The value of a choice depends on how often earlier choices are allowed, and therefore on the learned policy.
_MASKED = {"dqn": {"discount": "0"}}


def main() -> int:
    """Measure. Returns 1 with --check when a run misses its target."""
    return run_benchmark(str(__doc__), _flags, _measure)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", action="append", metavar="KIND", help="only this kind; repeatable")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    if unknown := sorted({*(arguments.only or ())} - KINDS.keys()):
        raise UserError(f"--only: expected one of {', '.join(KINDS)}, got {unknown[0]}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.only or KINDS:
            algorithms = able(kind)
            for algorithm in algorithms:
                for seed in range(1, 1 + (SEEDS if algorithm == algorithms[0] else 1)):
                    rows.append(_row(kind, algorithm, seed, Path(folder) / f"{kind}-{algorithm}-{seed}"))
                    print(targets({"runs": rows})[-1], flush=True)
    figures = {"runs": rows}
    return figures, targets(figures)


def able(kind: str) -> tuple[str, ...]:
    """The algorithms that support its actions."""
    parts = [part for _, part in leaves_of(KINDS[kind][1])]
    kinds = sorted({"continuous" if isinstance(part, Box) else "discrete" for part in parts})
    first = {"continuous": "sac", "discrete": "dqn"}[kinds[0]] if len(kinds) == 1 else "ppo"
    found = taking(*kinds)
    return (first, *(each for each in found if each != first))


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """Targets: each run reaches a return that a policy that does not see a part cannot reach."""
    return [
        Target(
            f"{row['kind']}, {row['algorithm']}, seed {row['seed']}: return (blind to a part: {row['blind']:g})",
            row["mean_return"],
            TARGET,
            at_most=False,
        )
        for row in figures["runs"]
    ]


def _row(kind: str, algorithm: str, seed: int, run: Path) -> dict[str, Any]:
    flags = (
        "--environment",
        "benchmarks.environments.coded:Parts-v0",
        "--environment-args",
        json.dumps({"kind": kind}),
    )
    limits = ("--target-return", str(TARGET), "--max-seconds", str(SECONDS), "--max-environment-steps", "10000000")
    how = ("--algorithm", algorithm, "--seed", str(seed), "--scheme", "int8", "--run-directory", str(run))
    special = _CLOSE if "continuous action" in kind else _MASKED if kind == "mask of each part" else {}
    settings = (_SMALL | special).get(algorithm, {})
    own = [text for name, value in settings.items() for text in (f"--{algorithm}.{name}", value)]
    early = _EARLY if "batch-size" in settings else ("--evaluation.period-updates", "100")
    small = (*early, *own) if own else ()
    command = [sys.executable, *ACTORQ, "train", *flags, *limits, *how, *small]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode not in _COMPLETE:
        raise UserError(f"{' '.join(command[2:])}: {ended.stderr.splitlines()[-1]}")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return {
        "kind": kind,
        "algorithm": algorithm,
        "seed": seed,
        "blind": blind(kind),
        "mean_return": summary["evaluation"]["mean_return"],
        "scheme": summary["evaluation"]["scheme"],
        "environment_steps": summary["environment_steps"],
        "wall_clock_s": summary["wall_clock_s"],
    }


if __name__ == "__main__":
    sys.exit(main())
