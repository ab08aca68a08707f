"""One run of Ray RLlib: `python -m benchmarks.libraries.peer_runs.rllib` with JSON on stdin.

The run tells its evaluations to the parent process, which ends it. Settings come from RLlib's examples,
rllib/examples/algorithms/dqn/cartpole_dqn.py, ppo/cartpole_ppo.py, sac/pendulum_sac.py, sac/halfcheetah_sac.py and
sac/mujoco_sac.py. RLlib has no example of DQN on LunarLander, so CartPole's settings apply. RLlib makes the
evaluations, without exploration.
"""

import importlib
import json
import os
import sys
import time
from typing import Any

from benchmarks.libraries.peer_runs.schedule import EvaluationSchedule
from benchmarks.libraries.peer_runs.telling import tell

_DQN: dict[str, Any] = {
    "training": {
        "lr": 5e-4,
        "train_batch_size_per_learner": 32,
        "replay_buffer_config": {
            "type": "PrioritizedEpisodeReplayBuffer",
            "capacity": 50_000,
            "alpha": 0.6,
            "beta": 0.4,
        },
        "n_step": (2, 5),
        "double_q": True,
        "dueling": True,
        "epsilon": [(0, 1.0), (25_000, 0.02)],
    },
    "model": {
        "fcnet_hiddens": [256],
        "fcnet_activation": "tanh",
        "fcnet_bias_initializer": "zeros_",
        "head_fcnet_hiddens": [256],
        "head_fcnet_bias_initializer": "zeros_",
    },
}
_SAC: dict[str, Any] = {
    "training": {
        "initial_alpha": 1.001,
        "actor_lr": 2e-4,
        "critic_lr": 8e-4,
        "alpha_lr": 9e-4,
        "lr": None,
        "target_entropy": "auto",
        "n_step": (2, 5),
        "tau": 0.005,
        "train_batch_size_per_learner": 256,
        "target_network_update_freq": 1,
        "replay_buffer_config": {
            "type": "PrioritizedEpisodeReplayBuffer",
            "capacity": 100_000,
            "alpha": 1.0,
            "beta": 0.0,
        },
        "num_steps_sampled_before_learning_starts": 256,
    },
    "model": {
        "fcnet_hiddens": [256, 256],
        "fcnet_activation": "relu",
        "fcnet_kernel_initializer": "xavier_uniform_",
        "head_fcnet_hiddens": [],
        "head_fcnet_activation": None,
        "head_fcnet_kernel_initializer": "orthogonal_",
        "head_fcnet_kernel_initializer_kwargs": {"gain": 0.01},
        "fusionnet_hiddens": [256, 256, 256],
        "fusionnet_activation": "relu",
    },
}
_PPO: dict[str, Any] = {
    "training": {"lr": 3e-4, "num_epochs": 6, "vf_loss_coeff": 0.01},
    "model": {"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True},
}
# Of the example for HalfCheetah-v4, and of the example for any MuJoCo task.
_SAC_MUJOCO: dict[str, Any] = {
    "training": {
        **_SAC["training"],
        "n_step": (1, 5),
        "replay_buffer_config": {
            "type": "PrioritizedEpisodeReplayBuffer",
            "capacity": 100_000,
            "alpha": 0.6,
            "beta": 0.4,
        },
        "num_steps_sampled_before_learning_starts": 10_000,
    },
    "model": {name: value for name, value in _SAC["model"].items() if not name.startswith("fusionnet")},
}
_MUJOCO = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5")
SETTINGS = {
    "dqn/CartPole-v1": _DQN,
    "dqn/LunarLander-v3": _DQN,
    "ppo/CartPole-v1": _PPO,
    "sac/Pendulum-v1": _SAC,
    **{f"sac/{name}": _SAC_MUJOCO for name in _MUJOCO},
}


def learn(task: str, environment: str, seed: int, episodes: int, period: int, share: float) -> None:
    """Learn, and tell the mean of `episodes` greedy episodes as often as EvaluationSchedule allows."""
    # Not a dependency of this project: the run's environment has it.
    ray = importlib.import_module("ray")
    ray.init(num_cpus=len(os.sched_getaffinity(0)), include_dashboard=False, log_to_driver=False)
    train(_config(task, environment, seed, episodes).build_algo(), period, share)


def train(algorithm: Any, period: int, share: float) -> None:
    """Train an algorithm without end, and tell its evaluations as often as EvaluationSchedule allows."""
    schedule = EvaluationSchedule(period, share)
    tell("started")
    while True:
        steps = int(algorithm.train()["num_env_steps_sampled_lifetime"])
        if schedule.is_due(steps):
            began = time.monotonic()
            mean_return = float(algorithm.evaluate()["env_runners"]["episode_return_mean"])
            seconds = time.monotonic() - began
            schedule.ended(steps, seconds)
            tell("evaluated", environment_steps=steps, mean_return=mean_return, seconds=seconds)


def _config(task: str, environment: str, seed: int, episodes: int) -> Any:
    name = task.partition("/")[0].upper()
    settings = SETTINGS[task]
    model_config = importlib.import_module("ray.rllib.core.rl_module.default_model_config").DefaultModelConfig
    config = getattr(importlib.import_module(f"ray.rllib.algorithms.{name.lower()}"), f"{name}Config")()
    return (
        config.environment(environment)
        .training(**settings["training"])
        .rl_module(model_config=model_config(**settings["model"]))
        .evaluation(
            evaluation_duration=episodes,
            evaluation_duration_unit="episodes",
            # The mean covers only the episodes of one evaluation.
            evaluation_config={"explore": False, "metrics_num_episodes_for_smoothing": episodes},
            # Never by itself. But with an interval there is an environment for evaluations.
            evaluation_interval=1_000_000_000,
        )
        .debugging(seed=seed, log_level="ERROR")
    )


if __name__ == "__main__":
    learn(**json.load(sys.stdin))
