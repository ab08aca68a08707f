"""One run of Stable-Baselines3 until its target, in a separate process: JSON in on stdin.

Hyperparameters come from its zoo (rl-baselines3-zoo: dqn.yml, ppo.yml and sac.yml in hyperparams). Others are the
library's defaults, including the number of torch threads. Evaluations use `evaluate_policy` in a separate environment.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.libraries.peer_runs.telling import tell

# The run ends at the target or the time limit, so there are always enough steps.
_STEPS = 100_000_000


@dataclass(frozen=True)
class Settings:
    """The zoo's entry of a task.

    schedule_steps: the zoo's `n_timesteps`, the length of all schedules.
    exploration_fraction: share of schedule_steps until exploration reaches its final value; None without epsilon.
    environments: number of environments.
    annealed: first values of arguments that fall to 0 linearly.
    """

    algorithm: str
    arguments: dict[str, Any]
    schedule_steps: int
    exploration_fraction: float | None = None
    network: dict[str, Any] = field(default_factory=dict)
    environments: int = 1
    annealed: dict[str, float] = field(default_factory=dict)

    def all_arguments(self) -> dict[str, Any]:
        """Arguments of the algorithm's class, for `_STEPS` steps."""
        found = {**self.arguments, **({"policy_kwargs": self.network} if self.network else {})}
        found |= {name: self._falling(first) for name, first in self.annealed.items()}
        if self.exploration_fraction is not None:
            found["exploration_fraction"] = self.exploration_fraction * self.schedule_steps / _STEPS
        return found

    def _falling(self, first: float) -> Callable[[float], float]:
        """A schedule over `schedule_steps`, as a function of the share of `_STEPS` that is left."""
        return lambda left: first * max(0.0, 1.0 - (1.0 - left) * _STEPS / self.schedule_steps)


SETTINGS = {
    "dqn/CartPole-v1": Settings(
        "DQN",
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1_000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_final_eps": 0.04,
        },
        50_000,
        0.16,
        {"net_arch": [256, 256]},
    ),
    "dqn/LunarLander-v3": Settings(
        "DQN",
        {
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "gamma": 0.99,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_final_eps": 0.1,
        },
        100_000,
        0.12,
        {"net_arch": [256, 256]},
    ),
    "ppo/CartPole-v1": Settings(
        "PPO",
        {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8, "ent_coef": 0.0},
        100_000,
        environments=8,
        annealed={"learning_rate": 1e-3, "clip_range": 0.2},
    ),
    "sac/Pendulum-v1": Settings("SAC", {"learning_rate": 1e-3}, 20_000),
    # Of HalfCheetah-v4: the zoo has no entry for v5.
    "sac/HalfCheetah-v5": Settings("SAC", {"learning_starts": 10_000}, 1_000_000),
}


def learn(task: str, environment: str, seed: int, target: float, episodes: int, period: int) -> None:
    """Learn until the mean of `episodes` greedy episodes, every `period` steps, is at least `target`."""
    # Not a dependency of this project: the run's environment has it.
    library = importlib.import_module("stable_baselines3")
    monitored = importlib.import_module("stable_baselines3.common.monitor").Monitor
    evaluate = importlib.import_module("stable_baselines3.common.evaluation").evaluate_policy
    gymnasium = importlib.import_module("gymnasium")
    settings = SETTINGS[task]
    evaluated = monitored(gymnasium.make(environment))
    evaluated.reset(seed=10_000 + seed)
    algorithm = getattr(library, settings.algorithm)
    learned: Any = environment
    if settings.environments > 1:
        make = importlib.import_module("stable_baselines3.common.env_util").make_vec_env
        learned = make(environment, n_envs=settings.environments, seed=seed)
    model = algorithm("MlpPolicy", learned, seed=seed, device="cpu", **settings.all_arguments())

    def after_step(*_: object) -> bool:
        if model.num_timesteps % period:
            return True
        began = time.monotonic()
        mean_return, _deviation = evaluate(model, evaluated, n_eval_episodes=episodes, deterministic=True)
        tell(
            "evaluated",
            environment_steps=model.num_timesteps,
            mean_return=float(mean_return),
            seconds=time.monotonic() - began,
        )
        return bool(mean_return < target)

    tell("started")
    model.learn(_STEPS, callback=after_step)


if __name__ == "__main__":
    learn(**json.load(sys.stdin))
