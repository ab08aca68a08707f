"""Trains in environments of twelve packages from PyPI, as their user would.

Each package has one environment, and goes into a folder of its own, without its dependencies: Gymnasium and NumPy are
those of this project. A run is `actorq train` for some seconds. The target is a mean return of the run's last
evaluation above the mean return of random actions, by two standard errors. A package whose observations are refused
without wrappers is stored with the line of that refusal. Packages are installed and run one after the other.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from benchmarks.harness import Target, run_benchmark

ROOT = Path(__file__).resolve().parents[2]
EPISODES, SECONDS = 20, 120
# Of a run without an evaluation: JSON has no infinity.
_NO_RETURN = -1e30
_COMPLETE = (0, 3)
_FLATTEN = "gymnasium.wrappers:FlattenObservation"


@dataclass(frozen=True)
class Package:
    """A package with one of its environments, and the wrappers that make its observations a vector or an image."""

    requirements: tuple[str, ...]
    environment: str
    wrappers: tuple[str, ...] = ()
    # A greedy policy may repeat an action for ever that changes nothing.
    max_episode_steps: int | None = None

    @property
    def name(self) -> str:
        """The package's name."""
        return self.requirements[0].partition("==")[0]


PACKAGES = (
    Package(("minigrid==3.2.0",), "minigrid:MiniGrid-Empty-5x5-v0", ("minigrid.wrappers:ImgObsWrapper",)),
    Package(("flappy-bird-gymnasium==0.4.0",), "flappy_bird_gymnasium:FlappyBird-v0"),
    Package(("highway-env==1.12.1",), "highway_env:highway-fast-v0", (_FLATTEN,)),
    Package(("gymnasium-2048==0.1.2",), "gymnasium_2048:gymnasium_2048/TwentyFortyEight-v0", max_episode_steps=1000),
    Package(("gym-anytrading==2.0.0",), "gym_anytrading:stocks-v0", (_FLATTEN,)),
    Package(("gym-simplegrid==1.1.0",), "gym_simplegrid:SimpleGrid-4x4-v0", (_FLATTEN,)),
    Package(
        ("gymnasium-robotics==1.4.2", "pettingzoo==1.27.0"),
        "gymnasium_robotics:PointMaze_UMazeDense-v3",
        (_FLATTEN,),
    ),
    Package(("gymnasium-cartpole-swingup==0.1.8",), "gymnasium_cartpole_swingup:CartPoleSwingUp-v0"),
    Package(("gym-invmgmt==0.2.1",), "gym_invmgmt:GymInvMgmt/Serial-v0"),
    Package(("boing-gym==0.1.0",), "boing_gym:Boing-v0"),
    Package(("gym-sailing==0.2.1",), "gym_sailing:Motorboat-v0"),
    Package(("glucosim==0.1.1",), "glucosim:glucosim/BasalControl-v0"),
)


def main() -> int:
    """Measure. Returns 1 with --check when a package's policy is not above random actions."""
    return run_benchmark(str(__doc__), _flags, _measure)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="of each run (default: 120)")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this package; may be given again")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    known = {package.name: package for package in PACKAGES}
    if unknown := sorted({*(arguments.only or ())} - {*known}):
        raise UserError(f"--only: expected one of {', '.join(known)}, got {unknown[0]}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only or known:
            row = _row(known[name], Path(folder) / name, arguments.seconds)
            rows.append(row)
            print(f"{name}: {row['mean_return']:.4g}, random actions {np.mean(row['random_returns']):.4g}", flush=True)
    figures = {"packages": rows}
    return figures, targets(figures)


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """Whether each package's policy is above random actions. The bound has two standard errors of both means."""
    return [
        Target(f"{row['package']}: return above random actions", row["mean_return"], _bound(row), at_most=False)
        for row in figures["packages"]
    ]


def _bound(row: Mapping[str, Any]) -> float:
    random = np.asarray(row["random_returns"], np.float64)
    spread = float(random.std(ddof=1)) if len(random) > 1 else 0.0
    return float(random.mean()) + 2 * spread * math.sqrt(1 / max(1, len(random)) + 1 / EPISODES)


def _row(package: Package, folder: Path, seconds: float) -> dict[str, Any]:
    """Install a package, let random actions play, and train."""
    modules = folder / "modules"
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--target", str(modules))
    _python(os.environ, *pip, *package.requirements)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(modules), str(ROOT))),
        # Many draw with pygame, also without a screen.
        "SDL_VIDEODRIVER": "dummy",
    }
    limit = {} if package.max_episode_steps is None else {"max_episode_steps": package.max_episode_steps}
    config = RunConfig(environment=package.environment, environment_wrappers=package.wrappers, environment_args=limit)
    text = config.environment_arguments.to_text()
    played = _python(environment, "-m", "benchmarks.environments.random_episodes", package.environment, text, "20")
    plain = _run(environment, "-m", "actor_service.environments", package.environment) if package.wrappers else None
    run = folder / "run"
    flags = ("--environment", package.environment, "--max-seconds", str(seconds))
    wrappers = ("--environment-wrappers", ",".join(package.wrappers)) if package.wrappers else ()
    keywords = [part for name, value in limit.items() for part in ("--environment-args", f"{name}={value}")]
    limits = ("--max-environment-steps", "10000000", "--evaluation.episodes", str(EPISODES))
    command = (
        "-m",
        "actorq_apps.cli.main",
        "train",
        "--run-directory",
        str(run),
        *flags,
        *wrappers,
        *keywords,
        *limits,
    )
    _python(environment, *command, codes=_COMPLETE)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return {
        "package": package.name,
        "requirements": package.requirements,
        "environment": package.environment,
        "wrappers": package.wrappers,
        "max_episode_steps": package.max_episode_steps,
        "refused_without_wrappers": plain.stderr.splitlines()[-1] if plain and plain.returncode else "",
        "random_returns": json.loads(played.splitlines()[-1]),
        "algorithm": summary["algorithm"],
        "environment_steps": summary["environment_steps"],
        "wall_clock_s": summary["wall_clock_s"],
        "mean_return": (summary.get("evaluation") or {}).get("mean_return", _NO_RETURN),
    }


def _run(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def _python(environment: Mapping[str, str], *arguments: str, codes: Sequence[int] = (0,)) -> str:
    """Standard output of a command of this interpreter. Raises UserError with its last line when it fails."""
    ended = _run(environment, *arguments)
    if ended.returncode not in codes:
        lines = [*ended.stdout.splitlines(), *ended.stderr.splitlines()] or [f"exit code {ended.returncode}"]
        raise UserError(f"{' '.join(arguments[:3])}: {lines[-1]}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
