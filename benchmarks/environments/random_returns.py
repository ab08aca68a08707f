"""Mean return of random actions, by environment: the zero of scores that several tasks share.

Actions are uniform over the environment's values. Each environment runs in its own process. Other benchmarks and the
pages read the stored result with `random_returns`.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.harness import Target, run_benchmark

ENVIRONMENTS = (
    "CartPole-v0",
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "LunarLander-v3",
    "ALE/Pong-v5",
    "Pendulum-v1",
    "MountainCarContinuous-v0",
    "HalfCheetah-v5",
    "Hopper-v5",
    "dm_control/cartpole-balance",
    "dm_control/cartpole-swingup",
    "dm_control/cheetah-run",
    "dm_control/finger-spin",
    "dm_control/hopper-stand",
    "dm_control/humanoid-stand",
    "dm_control/humanoid-walk",
    "dm_control/reacher-easy",
    "dm_control/reacher-hard",
    "dm_control/walker-stand",
)
_RESULT = Path(__file__).parents[1] / "results" / "random_returns.json"


def random_returns() -> dict[str, float]:
    """The stored mean return of random actions, by the environment's id."""
    stored = json.loads(_RESULT.read_text(encoding="utf-8"))["figures"]["environments"]
    return {environment: fmean(found["returns"]) for environment, found in stored.items()}


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--episodes", type=int, default=50, metavar="N", help="episodes of each (default: 50)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    found = {}
    for environment in ENVIRONMENTS:
        returns = _played(environment, arguments.episodes)
        found[environment] = {"returns": returns}
        print(f"{environment}: {fmean(returns):.4g} over {len(returns)} episodes", flush=True)
    return {"environments": found}, []


def _played(environment: str, episodes: int) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.environments.random_episodes", environment, "", str(episodes)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise SystemExit(f"{environment} failed with exit code {process.returncode}: {reason}")
    returns: list[float] = json.loads(process.stdout.splitlines()[-1])
    return returns


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
