"""One run of Stable-Baselines3, sb3-contrib or SBX, in a separate process: JSON in on stdin.

The run tells its evaluations to the parent process, which ends it. Settings: stable_baselines3_settings. The number of
torch threads is the library's default. Evaluations use `evaluate_policy` in a separate environment.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.libraries.peer_runs.schedule import EvaluationSchedule
from benchmarks.libraries.peer_runs.stable_baselines3_settings import SETTINGS, STEPS, Settings
from benchmarks.libraries.peer_runs.suite_task import PREFIX, SuiteTask
from benchmarks.libraries.peer_runs.telling import tell


def learn(
    system: str,
    task: str,
    environment: str,
    seed: int,
    episodes: int,
    period: int,
    share: float,
    steps_per_update: int | None = None,
) -> None:
    """Learn, and tell the mean of `episodes` greedy episodes as often as EvaluationSchedule allows.

    steps_per_update: None for the settings' own number.
    """
    settings = SETTINGS[system][task]
    evaluated = _environments(environment, 1, 10_000 + seed, settings, is_evaluation=True)
    model = _model(settings, _environments(environment, settings.environments, seed, settings), seed, steps_per_update)
    # Not a dependency of this project: the run's environment has it.
    evaluate = importlib.import_module("stable_baselines3.common.evaluation").evaluate_policy
    synchronize = importlib.import_module("stable_baselines3.common.vec_env").sync_envs_normalization
    schedule = EvaluationSchedule(period, share)

    def after_step(*_: object) -> bool:
        steps = model.num_timesteps
        if schedule.is_due(steps):
            began = time.monotonic()
            if settings.normalized:
                synchronize(model.get_env(), evaluated)
            mean_return, _deviation = evaluate(model, evaluated, n_eval_episodes=episodes, deterministic=True)
            seconds = time.monotonic() - began
            schedule.ended(steps, seconds)
            tell("evaluated", environment_steps=steps, mean_return=float(mean_return), seconds=seconds)
        return True

    tell("started")
    model.learn(STEPS, callback=after_step)


def _environments(environment: str, count: int, seed: int, settings: Settings, is_evaluation: bool = False) -> Any:
    """A vector environment. Evaluations may see normalized observations, but the environment's own rewards."""
    vector = importlib.import_module("stable_baselines3.common.vec_env")
    make = importlib.import_module("stable_baselines3.common.env_util").make_vec_env
    kind: str | Callable[[], SuiteTask] = environment
    if environment.startswith(PREFIX):
        kind = partial(SuiteTask, environment)
    found = make(kind, n_envs=count, seed=seed)
    if not settings.normalized:
        return found
    discount = settings.arguments["gamma"]
    scaled = not (is_evaluation or settings.own_rewards)
    return vector.VecNormalize(found, training=not is_evaluation, norm_reward=scaled, gamma=discount)


def _model(settings: Settings, environments: Any, seed: int, steps_per_update: int | None) -> Any:
    algorithm = getattr(importlib.import_module(settings.library), settings.algorithm)
    arguments = settings.all_arguments(steps_per_update)
    if settings.activation:
        kind = getattr(importlib.import_module("torch.nn"), settings.activation)
        arguments["policy_kwargs"] = {**arguments["policy_kwargs"], "activation_fn": kind}
    if settings.noise:
        noise = importlib.import_module("stable_baselines3.common.noise").NormalActionNoise
        size = environments.action_space.shape
        arguments["action_noise"] = noise(np.zeros(size), np.full(size, settings.noise))
    return algorithm(settings.policy, environments, seed=seed, device="cpu", **arguments)


if __name__ == "__main__":
    learn(**json.load(sys.stdin))
