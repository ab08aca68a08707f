"""Records transitions of our own policies, and stores them as data sets."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import actorq
from benchmarks.runs import ACTORQ, train, with_project
from benchmarks.training.offline.tasks import MIXES, Task

Act = Callable[[NDArray[Any]], NDArray[Any]]

# Deviation of the noise on recorded actions, in units of half their range.
_NOISE = 0.1


def teachers(task: Task, seed: int, directory: Path) -> dict[str, Path]:
    """Finished runs of SAC with the returns of the task: "medium" and "expert"."""
    found = {}
    for name, target in (("medium", task.medium), ("expert", task.teachers_target)):
        flags = [
            *("--environment", task.teachers, "--algorithm", "sac", "--seed", str(seed)),
            *("--target-return", str(target), "--max-environment-steps", str(task.steps)),
        ]
        folder = directory / f"{task.name}-{name}-{seed}"
        if not train(folder, flags)["solved"]:
            raise SystemExit(f"{folder}: the recording policy has not reached {target:g}; give it more steps")
        found[name] = folder
    return found


def record(task: Task, policies: dict[str, Path], mix: str, transitions: int, seed: int, file: Path) -> None:
    """Write transitions of a mix of policies to a file of flat arrays. An existing file stays."""
    if file.exists():
        return
    parts: list[dict[str, NDArray[Any]]] = []
    for number, (name, share) in enumerate(MIXES[mix].items()):
        rng = np.random.default_rng([seed, number])
        environment = gymnasium.make(task.environment)
        act = _policy(environment, policies.get(name), rng)
        parts.append(_steps(environment, act, round(share * transitions), int(rng.integers(2**31))))
        environment.close()
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    np.savez_compressed(file, allow_pickle=False, **arrays)


def imported(task: Task, file: Path) -> Path:
    """The data set with the transitions of a file, in a folder beside it."""
    folder = file.with_suffix("")
    if not folder.exists():
        command = [
            *(sys.executable, *ACTORQ, "dataset", "import", str(file)),
            *("--environment", task.environment, "--directory", str(folder)),
        ]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, **with_project()})
    return folder


def _policy(environment: Any, run: Path | None, rng: np.random.Generator) -> Act:
    space = environment.action_space
    middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
    if run is None:
        return lambda observation: rng.uniform(space.low, space.high).astype(np.float32)
    policy = actorq.load_policy(run)

    def act(observation: NDArray[Any]) -> NDArray[Any]:
        scaled = (policy.predict(observation) - middle) / half + _NOISE * rng.standard_normal(half.shape)
        noisy: NDArray[Any] = (middle + half * np.clip(scaled, -1.0, 1.0)).astype(np.float32)
        return noisy

    return act


def _steps(environment: Any, act: Act, steps: int, seed: int) -> dict[str, NDArray[Any]]:
    rows: dict[str, list[Any]] = {
        name: [] for name in ("observations", "next_observations", "actions", "rewards", "terminations", "truncations")
    }
    observation, _ = environment.reset(seed=seed)
    for step in range(steps):
        action = act(observation)
        following, reward, terminated, truncated, _ = environment.step(action)
        # The recording ends here.
        truncated = truncated or (step == steps - 1 and not terminated)
        for name, value in zip(rows, (observation, following, action, reward, terminated, truncated), strict=True):
            rows[name].append(value)
        observation = environment.reset()[0] if terminated or truncated else following
    return {name: np.array(column) for name, column in rows.items()}
