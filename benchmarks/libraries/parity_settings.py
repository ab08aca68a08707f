"""The hyperparameters of parity.py for both sides.

| | SAC | TD3 | source |
|---|---|---|---|
| hidden layers of policy and critics, ReLU | 256-256 | 400-300 | Stable-Baselines3's defaults |
| Adam step size of all networks and SAC's temperature | 3e-4 | 1e-3 | as above |
| batch, discount, tau | 256, 0.99, 0.005 | 256, 0.99, 0.005 | as above |
| replay | 1,000,000 | 1,000,000 | as above |
| steps of random actions, then updates | 100 | 100 | as above |
| updates per environment step | 1 | 1 | as above |
| target entropy, first temperature | -components, 1 | - | as above |
| policy delay, target noise, its clip | - | 2, 0.2, 0.5 | as above |
| Gaussian noise on actions, relative to half their range | - | 0.1 | its zoo, for both environments (default: none) |
| environments per step | 1 | 1 | Stable-Baselines3's defaults |

ActorQ's actor runs an int8 policy. Stable-Baselines3 acts with the float network of the last update. ActorQ's policies
are as fresh as three services allow: every update is offered, the actor takes the newest policy, and each policy acts
for at most two steps. The actor is one or two steps ahead of the learner. With 32 steps per policy, more seeds on
HalfCheetah learn to slide on their backs (docs/decisions/0010-fresh-policies.md).
"""

from dataclasses import dataclass
from typing import Any

# The first number is the smallest lead or lag, in steps, that the rate limiter allows between actor and learner. The
# second is the number of steps before the actor waits for a newer policy: the smallest above a segment of one step.
_STEPS_AHEAD = 2
_STEPS_PER_POLICY = 2


@dataclass(frozen=True)
class Hyperparameters:
    """Hyperparameters of both libraries. All others are equal by default; see the module's table."""

    algorithm: str
    hidden_sizes: tuple[int, ...]
    learning_rate: float
    action_noise: float | None = None
    batch_size: int = 256
    discount: float = 0.99
    target_rate: float = 0.005
    replay: int = 1_000_000
    random_steps: int = 100

    def stable_baselines(self) -> dict[str, Any]:
        """Arguments of Stable-Baselines3's class, without the noise, which is an object there."""
        return {
            "policy_kwargs": {"net_arch": list(self.hidden_sizes)},
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "gamma": self.discount,
            "tau": self.target_rate,
            "buffer_size": self.replay,
            "learning_starts": self.random_steps,
            "train_freq": 1,
            "gradient_steps": 1,
        }

    def actorq(self) -> list[str]:
        """Flags of `actorq train`."""
        section = self.algorithm
        settings: dict[str, Any] = {
            "algorithm": self.algorithm,
            f"{section}.hidden-sizes": ",".join(map(str, self.hidden_sizes)),
            f"{section}.learning-rate": self.learning_rate,
            f"{section}.batch-size": self.batch_size,
            f"{section}.discount": self.discount,
            f"{section}.target-rate": self.target_rate,
            f"{section}.n-step": 1,
            "replay.capacity": self.replay,
            "replay.min-size": self.random_steps,
            "exploration.random-steps": self.random_steps,
            # SAC samples its actions and ignores this flag.
            "exploration.noise": self.action_noise or 0.0,
            "rate-limiter.samples-per-insert": self.batch_size,
            "rate-limiter.error-buffer": _STEPS_AHEAD * self.batch_size,
            "publication.period-updates": 1,
            "actors": 1,
            "environments-per-actor": 1,
            "actor.segment-length": 1,
            "actor.max-steps-per-policy": _STEPS_PER_POLICY,
            "scheme": "int8",
            "learner.device": "cpu",
            "learner.torch-threads": 1,
        }
        flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        return [*flags, "--no-replay.prioritized", "--no-normalize-observations", "--no-energy.enabled"]


SAC = Hyperparameters("sac", (256, 256), 3e-4)
TD3 = Hyperparameters("td3", (400, 300), 1e-3, action_noise=0.1)
