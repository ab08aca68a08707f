"""Trains in environments of twelve packages from PyPI, like a user. Each package has one environment, and is installed
into a separate folder without its dependencies. Gymnasium and NumPy are those of this project. A run is `actorq train`
for some seconds. Then `actorq evaluate` runs its policy in new episodes. The target is a mean return above that of
random actions in the same number of episodes, by two standard errors of the difference. If ActorQ refuses the
observations of a package without wrappers, the result has the error. Packages are installed and run one after the
other.
"""

import argparse
import json
import math
import os
import re
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
from benchmarks.harness import Meaning, Target, run_benchmark
from benchmarks.runs import ACTORQ

ROOT = Path(__file__).resolve().parents[2]
EPISODES, SECONDS = 100, 120
_COMPLETE = (0, 3)
# A line of `actorq evaluate`.
_EPISODE = re.compile(r"^episode .* return +(-?[0-9.,e+]+)", re.MULTILINE)
_FLATTEN = "gymnasium.wrappers:FlattenObservation"


@dataclass(frozen=True)
class Package:
    """A package with one of its environments, and the wrappers that make its observations a vector or an image.

    flags: settings of the run, without the environment. evaluation: flags of its evaluation.
    """

    requirements: tuple[str, ...]
    environment: str
    wrappers: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    evaluation: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The package's name."""
        return self.requirements[0].partition("==")[0]


PACKAGES = (
    Package(("minigrid==3.2.0",), "minigrid:MiniGrid-Empty-5x5-v0", ("minigrid.wrappers:ImgObsWrapper",)),
    Package(("flappy-bird-gymnasium==0.4.0",), "flappy_bird_gymnasium:FlappyBird-v0"),
    Package(("highway-env==1.12.1",), "highway_env:highway-fast-v0", (_FLATTEN,)),
    # A move without effect does not end the game: a greedy policy would repeat it forever.
    Package(
        ("gymnasium-2048==0.1.2",),
        "gymnasium_2048:gymnasium_2048/TwentyFortyEight-v0",
        flags=("--algorithm", "ppo", "--queue.normalize-rewards", "--evaluation.sampled"),
        evaluation=("--sampled",),
    ),
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
    # Random doses work well here. SAC needs more than two minutes to be better, even with normalized observations. PPO
    # is better after seconds, but gets worse later.
    Package(
        ("glucosim==0.1.1",),
        "glucosim:glucosim/BasalControl-v0",
        flags=("--algorithm", "ppo", "--normalize-observations"),
        evaluation=("--version", "best"),
    ),
)


def main() -> int:
    """Measure. Returns 1 with --check when a package's policy is not above random actions."""
    return run_benchmark(str(__doc__), _flags, _measure)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="of each run (default: 120)")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this package; repeatable")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    known = {package.name: package for package in PACKAGES}
    if unknown := sorted({*(arguments.only or ())} - {*known}):
        raise UserError(f"--only: expected one of {', '.join(known)}, got {unknown[0]}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only or known:
            row = _row(known[name], Path(folder) / name, arguments.seconds)
            rows.append(row)
            print(f"{targets({'packages': [row]})[0]}; random actions {np.mean(row['random_returns']):.4g}", flush=True)
    figures = {"packages": rows}
    return figures, targets(figures)


MEANINGS = (
    Meaning(
        r"(?P<package>.+): return above random actions",
        "Does a short run return more than random actions?",
        "The defaults learn too little in two minutes in this environment.",
        case="{package}",
    ),
)


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """Whether each package's policy is above random actions. The bound has two standard errors of the difference."""
    return [
        Target(
            f"{row['package']}: return above random actions",
            float(np.mean(row["returns"])),
            _bound(row["returns"], row["random_returns"]),
            at_most=False,
        )
        for row in figures["packages"]
    ]


def _bound(returns: Sequence[float], random: Sequence[float]) -> float:
    return float(np.mean(random)) + 2 * math.hypot(_error(returns), _error(random))


def _error(returns: Sequence[float]) -> float:
    """Standard error of the mean."""
    return float(np.std(returns, ddof=1)) / math.sqrt(len(returns))


def _row(package: Package, folder: Path, seconds: float) -> dict[str, Any]:
    """Install a package, measure random actions, and train."""
    modules = folder / "modules"
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--target", str(modules))
    _python(os.environ, *pip, *package.requirements)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(modules), str(ROOT))),
        # Many packages draw with pygame, even without a screen.
        "SDL_VIDEODRIVER": "dummy",
    }
    run = folder / "run"
    text = RunConfig(
        environment=package.environment, environment_wrappers=package.wrappers
    ).environment_arguments.to_text()
    random = ("-m", "benchmarks.environments.random_episodes", package.environment, text, str(EPISODES))
    played = _python(environment, *random)
    plain = _run(environment, "-m", "actor_service.environments", package.environment) if package.wrappers else None
    limits = ("--max-seconds", str(seconds), "--max-environment-steps", "10000000")
    wrappers = ("--environment-wrappers", ",".join(package.wrappers)) if package.wrappers else ()
    flags = ("--environment", package.environment, *wrappers, *limits, *package.flags)
    _python(environment, *ACTORQ, "train", "--run-directory", str(run), *flags, codes=_COMPLETE)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    evaluate = ("evaluate", str(run), "--episodes", str(EPISODES), *package.evaluation)
    evaluated = _python(environment, *ACTORQ, *evaluate)
    return {
        "package": package.name,
        "requirements": package.requirements,
        "environment": package.environment,
        "wrappers": package.wrappers,
        "flags": package.flags,
        "evaluation": package.evaluation,
        "refused_without_wrappers": plain.stderr.splitlines()[-1] if plain and plain.returncode else "",
        "random_returns": json.loads(played.splitlines()[-1]),
        "algorithm": summary["algorithm"],
        "environment_steps": summary["environment_steps"],
        "wall_clock_s": summary["wall_clock_s"],
        "returns": [float(each.replace(",", "")) for each in _EPISODE.findall(evaluated)],
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
