"""Presets of PPO and IMPALA, by family of environments. Sources: docs/how-to/presets.md."""

from typing import Any

# The queue holds many rollouts. A restarted learner finds the rollouts that its checkpoint has not learned from.
ON_POLICY: dict[str, Any] = {
    "actors": 1,
    "environments_per_actor": 8,
    "max_environment_steps": 1_000_000,
    "replay": {"capacity": 65_536},
    "actor": {"segment_length": 32},
    "evaluation": {"episodes": 5},
}
_NORMALIZED: dict[str, Any] = {"normalize_observations": True, "queue": {"normalize_rewards": True}}
_ANNEALED = {"learning_rate_end": 0.0, "clip_end": 0.0}


def _rollouts(environments: int, horizon: int, **ppo: Any) -> dict[str, Any]:
    """Rollouts of `horizon` steps of all environments, as one segment per environment batch."""
    size = environments * horizon
    return {
        "environments_per_actor": environments,
        "actor": {"segment_length": horizon},
        "replay": {"capacity": max(65_536, 5 * size)},
        "ppo": {"rollout_size": size, **ppo},
    }


_LOCOMOTION = {**_NORMALIZED, **_rollouts(8, 256, learning_rate_end=0.0, value_clip=0.2)}

_BOX2D = {**_NORMALIZED, **_rollouts(32, 512, discount=0.999, clip=0.18), "max_environment_steps": 5_000_000}

PPO_OF_FAMILY: dict[str, dict[str, Any]] = {
    "CartPole": {
        **_rollouts(8, 32, batch_size=256, epochs=20, discount=0.98, gae_lambda=0.8, learning_rate=1e-3, **_ANNEALED),
        "max_environment_steps": 100_000,
        "evaluation": {"episodes": 20, "period_updates": 250},
    },
    "Acrobot": {**_NORMALIZED, **_rollouts(16, 256, epochs=4, gae_lambda=0.94)},
    "MountainCar": {**_NORMALIZED, **_rollouts(16, 16, epochs=4, gae_lambda=0.98)},
    "LunarLander": _rollouts(16, 1024, epochs=4, discount=0.999, gae_lambda=0.98, entropy_cost=0.01),
    "Pendulum": {**_rollouts(4, 1024, discount=0.9, learning_rate=1e-3), "max_environment_steps": 200_000},
    "MuJoCo": _LOCOMOTION,
    "DM Control": _LOCOMOTION,
    "Box2D": _BOX2D,
    "MountainCarContinuous": _BOX2D,
    # Episodes have 25 steps, so a rollout has one of each environment.
    "MPE": {
        **_rollouts(32, 25, batch_size=240, discount=0.95, learning_rate=1e-3, entropy_cost=0.01),
        "max_environment_steps": 2_000_000,
        "evaluation": {"episodes": 100},
    },
    "Atari": {
        **_rollouts(8, 128, batch_size=256, epochs=4, clip=0.1, learning_rate=2.5e-4, entropy_cost=0.01, **_ANNEALED),
        "replay": {"capacity": 65_536, "clip_rewards": 1.0},
        "max_environment_steps": 10_000_000,
        "scheme": "int8-static",
    },
}

IMPALA_OF_FAMILY: dict[str, dict[str, Any]] = {
    "CartPole": {
        "impala": {"learning_rate": 2e-3, "discount": 0.98},
        "max_environment_steps": 500_000,
        "evaluation": {"episodes": 20, "period_updates": 50},
    },
    "MuJoCo": _NORMALIZED,
    "DM Control": _NORMALIZED,
    "Atari": {"scheme": "int8-static", "max_environment_steps": 10_000_000, "replay": {"clip_rewards": 1.0}},
}
