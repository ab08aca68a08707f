"""Settings of Stable-Baselines3, sb3-contrib and SBX, for each system and task of benchmarks.libraries.peers.

Hyperparameters come from rl-baselines3-zoo (dqn.yml, ppo.yml, sac.yml, td3.yml, crossq.yml and ppo_lstm.yml in
hyperparams). The zoo has MuJoCo's tasks as v4 only, and no DM Control. Tasks of v5 have the settings of v4, and
walker-walk has those of MuJoCo's tasks. Other arguments are the library's defaults.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

# The parent process ends the run, so there are always enough steps.
STEPS = 100_000_000
# The multi-step return of stable-baselines3-n3. ActorQ's preset has it too for robots that can fall.
N_STEPS = 3
_MUJOCO = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5")


@dataclass(frozen=True)
class Settings:
    """The zoo's entry of a task.

    library: package with the algorithm's class. schedule_steps: the zoo's `n_timesteps`, the length of all schedules.
    exploration_fraction: share of schedule_steps until exploration reaches its final value; None without epsilon.
    environments: number of environments. annealed: first values of arguments that fall to 0 linearly.
    noise: standard deviation of the normal noise of actions. normalized: whether observations are, and rewards unless
        `own_rewards`.
    activation: name of a class of torch.nn; empty for the default. policy: name of the library's policy.
    """

    algorithm: str
    arguments: dict[str, Any]
    schedule_steps: int
    exploration_fraction: float | None = None
    network: dict[str, Any] = field(default_factory=dict)
    environments: int = 1
    annealed: dict[str, float] = field(default_factory=dict)
    noise: float = 0.0
    normalized: bool = False
    own_rewards: bool = False
    activation: str = ""
    policy: str = "MlpPolicy"
    library: str = "stable_baselines3"

    def all_arguments(self, steps_per_update: int | None = None) -> dict[str, Any]:
        """Arguments of the algorithm's class, for `STEPS` steps. steps_per_update: None for the zoo's number."""
        found = {**self.arguments, **({"policy_kwargs": self.network} if self.network else {})}
        found |= {name: self._falling(first) for name, first in self.annealed.items()}
        if self.exploration_fraction is not None:
            found["exploration_fraction"] = self.exploration_fraction * self.schedule_steps / STEPS
        if steps_per_update is not None:
            found |= {"train_freq": steps_per_update, "gradient_steps": 1}
        return found

    def _falling(self, first: float) -> Callable[[float], float]:
        """A schedule over `schedule_steps`, as a function of the share of `STEPS` that is left."""
        return lambda left: first * max(0.0, 1.0 - (1.0 - left) * STEPS / self.schedule_steps)


_SAC_MUJOCO = Settings("SAC", {"learning_starts": 10_000}, 1_000_000)
_ZOO = {
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
    "ppo/HalfCheetah-v5": Settings(
        "PPO",
        {
            "n_steps": 512,
            "batch_size": 64,
            "n_epochs": 20,
            "gamma": 0.98,
            "gae_lambda": 0.92,
            "learning_rate": 2.0633e-5,
            "ent_coef": 0.000401762,
            "clip_range": 0.1,
            "max_grad_norm": 0.8,
            "vf_coef": 0.58096,
        },
        1_000_000,
        network={"log_std_init": -2.0, "ortho_init": False, "net_arch": {"pi": [256, 256], "vf": [256, 256]}},
        normalized=True,
        activation="ReLU",
    ),
    "sac/Pendulum-v1": Settings("SAC", {"learning_rate": 1e-3}, 20_000),
    "sac/LunarLanderContinuous-v3": Settings(
        "SAC",
        {"batch_size": 256, "buffer_size": 1_000_000, "gamma": 0.99, "tau": 0.01, "learning_starts": 10_000},
        500_000,
        network={"net_arch": [400, 300]},
        annealed={"learning_rate": 7.3e-4},
    ),
    **{f"sac/{name}": _SAC_MUJOCO for name in (*_MUJOCO, "dm_control/walker-walk")},
    "td3/HalfCheetah-v5": Settings(
        "TD3",
        {
            "learning_starts": 10_000,
            "train_freq": 1,
            "gradient_steps": 1,
            "learning_rate": 1e-3,
            "batch_size": 256,
        },
        1_000_000,
        network={"net_arch": [400, 300]},
        noise=0.1,
    ),
}
_CROSSQ_MUJOCO = Settings(
    "CrossQ",
    {"buffer_size": 1_000_000, "learning_rate": 1e-3, "learning_starts": 5_000, "policy_delay": 3},
    5_000_000,
    network={"net_arch": {"pi": [256, 256], "qf": [2048, 2048]}},
    library="sb3_contrib",
)
# CrossQ is a variant of SAC, so it runs beside SAC.
_CROSSQ = {
    "sac/Pendulum-v1": Settings(
        "CrossQ", {"policy_delay": 2}, 20_000, network={"net_arch": [256, 256]}, library="sb3_contrib"
    ),
    "sac/LunarLanderContinuous-v3": Settings(
        "CrossQ", {"buffer_size": 1_000_000, "learning_starts": 10_000}, 200_000, library="sb3_contrib"
    ),
    **{f"sac/{name}": _CROSSQ_MUJOCO for name in (*_MUJOCO, "dm_control/walker-walk")},
}
# The zoo's CartPoleNoVel-v1, with the arguments of its published policy, sb3/ppo_lstm-CartPoleNoVel-v1 on Hugging Face.
# That policy has a return of 500. The zoo sets velocities to 0; here observations lack them.
_RECURRENT_PPO = {
    "ppo/CartPoleWithoutVelocities-v1": Settings(
        "RecurrentPPO",
        {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8, "ent_coef": 0.0},
        100_000,
        network={
            **{"ortho_init": False, "lstm_hidden_size": 64, "enable_critic_lstm": True},
            **{"net_arch": {"pi": [64], "vf": [64]}},
        },
        environments=8,
        annealed={"learning_rate": 1e-3, "clip_range": 0.2},
        normalized=True,
        own_rewards=True,
        activation="ReLU",
        policy="MlpLstmPolicy",
        library="sb3_contrib",
    ),
}
# Algorithms with a replay of continuous actions. Those with ActorQ's updates per step get them when a run starts.
_REPLAYING = {name: each for name, each in _ZOO.items() if each.algorithm in ("SAC", "TD3")}
# By system and task.
SETTINGS: dict[str, dict[str, Settings]] = {
    "stable-baselines3": _ZOO,
    "stable-baselines3-n1": _REPLAYING,
    "stable-baselines3-n3": {
        name: replace(each, arguments={**each.arguments, "n_steps": N_STEPS}) for name, each in _REPLAYING.items()
    },
    "crossq": _CROSSQ,
    "sbx": {name: replace(each, library="sbx") for name, each in _REPLAYING.items()},
    "sbx-crossq": {name: replace(each, library="sbx") for name, each in _CROSSQ.items()},
    "recurrent-ppo": _RECURRENT_PPO,
}
