"""The hyperparameters of ppo.py for both sides, with their sources.

Zoo: hyperparameters/ppo.yml of rl-baselines3-zoo, without generalized state-dependent exploration, which ActorQ lacks.
Huang: Huang et al. 2022, "The 37 Implementation Details of Proximal Policy Optimization", continuous actions, here with
8 environments. Networks have two tanh layers of 64 units, policy and value apart, with orthogonal initialization.
"""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """An environment with PPO's hyperparameters. All others are equal by default.

    environments, horizon: number of environments, and steps of each per rollout. steps: environment steps of a run.
    anneal, anneal_clip: whether the step size and the clipping bound fall to 0 linearly. normalize: running
    normalization of observations and rewards. largest_action: bound of the environment's actions. Stable-Baselines3's
    policy outputs actions, with an initial standard deviation of 1. ActorQ's outputs fractions of this bound.
    synchronous: whether ActorQ's actor waits for each new policy, as Stable-Baselines3 does. Otherwise it collects
    meanwhile, and the data are one or two versions old.
    """

    environment: str
    source: str
    steps: int
    environments: int
    horizon: int
    batch_size: int = 64
    epochs: int = 10
    discount: float = 0.99
    gae_lambda: float = 0.95
    learning_rate: float = 3e-4
    anneal: bool = False
    clip: float = 0.2
    anneal_clip: bool = False
    entropy_cost: float = 0.0
    normalize: bool = False
    largest_action: float = 1.0
    synchronous: bool = False

    @property
    def name(self) -> str:
        """The name that the patterns of --task match."""
        return f"ppo/{self.environment}"

    def stable_baselines(self) -> dict[str, Any]:
        """Arguments of Stable-Baselines3's PPO, without the schedules, which are functions there."""
        return {
            "n_steps": self.horizon,
            "batch_size": self.batch_size,
            "n_epochs": self.epochs,
            "gamma": self.discount,
            "gae_lambda": self.gae_lambda,
            "ent_coef": self.entropy_cost,
            "vf_coef": 0.5,
            "max_grad_norm": 0.5,
        }

    def actorq(self) -> list[str]:
        """Flags of `actorq train`."""
        rollout = self.environments * self.horizon
        updates = self.steps // self.batch_size * self.epochs
        settings: dict[str, Any] = {
            "algorithm": "ppo",
            "environment": self.environment,
            "ppo.rollout-size": rollout,
            "ppo.batch-size": self.batch_size,
            "ppo.epochs": self.epochs,
            "ppo.discount": self.discount,
            "ppo.gae-lambda": self.gae_lambda,
            "ppo.learning-rate": self.learning_rate,
            "ppo.learning-rate-end": 0 if self.anneal else "none",
            "ppo.clip": self.clip,
            "ppo.clip-end": 0 if self.anneal_clip else "none",
            "ppo.value-clip": "none",
            # Stable-Baselines3's value loss is (V - R)^2 with the weight 0.5. ActorQ's loss already is half of this
            # square.
            "ppo.value-cost": 1.0,
            "ppo.log-std": -math.log(self.largest_action),
            "ppo.entropy-cost": self.entropy_cost,
            "ppo.hidden-sizes": "64,64",
            "ppo.value-sizes": "64,64",
            "replay.capacity": max(65_536, 4 * rollout),
            "actors": 1,
            "environments-per-actor": self.environments,
            "actor.segment-length": self.horizon,
            # Stable-Baselines3 makes no evaluations during a run.
            "evaluation.period-updates": updates // 10,
            "max-environment-steps": self.steps,
            "scheme": "int8",
            "learner.device": "cpu",
            "learner.torch-threads": 1,
            # An unreachable return, so that the run does not end early.
            "target-return": "1e9",
        }
        switches = {
            "normalize-observations": self.normalize,
            "queue.normalize-rewards": self.normalize,
            "queue.synchronous": self.synchronous,
            "energy.enabled": False,
        }
        flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        return [*flags, *(f"--{'' if on else 'no-'}{name}" for name, on in switches.items())]


TASKS = (
    Task(
        *("CartPole-v1", "Zoo", 300_000, 8, 32, 256, 20, 0.98, 0.8),
        learning_rate=1e-3,
        anneal=True,
        anneal_clip=True,
    ),
    Task("Acrobot-v1", "Zoo", 300_000, 16, 256, 64, 4, 0.99, 0.94, normalize=True),
    Task("LunarLander-v3", "Zoo", 300_000, 16, 1024, 64, 4, 0.999, 0.98, entropy_cost=0.01),
    Task(
        *("Pendulum-v1", "Zoo", 300_000, 4, 1024, 64, 10, 0.9, 0.95),
        learning_rate=1e-3,
        largest_action=2.0,
        synchronous=True,
    ),
    Task("HalfCheetah-v5", "Huang", 300_000, 8, 256, anneal=True, normalize=True, synchronous=True),
    Task("Hopper-v5", "Huang", 300_000, 8, 256, anneal=True, normalize=True, synchronous=True),
)
