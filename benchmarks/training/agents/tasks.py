"""The tasks with several agents, their targets, and the settings of PPO in all libraries. The targets are older than
the runs.
"""

from dataclasses import asdict, dataclass
from typing import Any

from actorq.config.presets import STANDARD
from benchmarks.environments.doors import LIVES, best_return
from benchmarks.libraries.peers.tasks import TunedTask

# Papoudakis et al. 2021 (arXiv 2006.07869), table 3: return of the team with IPPO and with MAPPO, whose policies share
# parameters. Both are within one of this number.
PUBLISHED_SPREAD = -133.0
# There, agents have no weight of 1/2 before rewards, and each collides with itself in each of 25 steps.
_STEPS, _AGENTS, _WEIGHT = 25, 3, 0.5
RESCALED_SPREAD = _WEIGHT * (PUBLISHED_SPREAD + _STEPS * _AGENTS)
# The mean return of random actions in 1,000 episodes.
RANDOM_SPREAD = -78.4
# A run has a minute or two. The published runs have 20 million environment steps.
_SHARE_SPREAD, _SHARE_DOORS = 0.5, 0.9


@dataclass(frozen=True)
class Settings:
    """Settings of PPO that all libraries have.

    environments: of all actors together. rollout_size: environment steps. batch_size: rows, one for each agent.
    value_cost: weight of half the squared error.
    """

    environments: int
    rollout_size: int
    batch_size: int
    epochs: int
    learning_rate: float
    discount: float
    entropy_cost: float
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_cost: float = 0.5
    max_gradient_norm: float = 0.5
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "tanh"

    def flags(self) -> tuple[str, ...]:
        """The flags of actorq train."""
        sizes = ",".join(map(str, self.hidden_sizes))
        ppo = {
            **{name: value for name, value in asdict(self).items() if name not in ("environments", "hidden_sizes")},
            **{"hidden_sizes": sizes, "value_sizes": sizes},
        }
        return (
            f"--environments-per-actor={self.environments}",
            f"--actor.segment-length={self.rollout_size // self.environments}",
            *(f"--ppo.{name.replace('_', '-')}={value}" for name, value in ppo.items()),
        )


@dataclass(frozen=True)
class AgentsTask(TunedTask):
    """A task with several agents.

    random, best: mean returns of a random policy, and of the best policy or the best published one, for the pages.
    agents: their number. leave: whether agents leave and come back, and have masks. lives: the most lives of an agent
    in an episode.
    """

    random: float = 0.0
    best: float = 0.0
    agents: int = 0
    leave: bool = False
    lives: int = 1
    settings: Settings | None = None

    @property
    def name(self) -> str:
        """The name that the patterns of --tasks match."""
        return self.environment.rpartition(":")[2].rpartition("/")[2]


def _task(environment: str, target: float, limit_s: float, settings: Settings, **more: Any) -> AgentsTask:
    return AgentsTask(
        "ppo",
        environment,
        target,
        period=settings.rollout_size,
        limit_s=limit_s,
        preset=STANDARD,
        share=0.1,
        flags=(*settings.flags(), "--evaluation.share=0.1", "--evaluation.period-updates=1"),
        steps=100_000_000,
        settings=settings,
        **more,
    )


TASKS = (
    _task(
        "pettingzoo/mpe2/simple_spread_v3",
        round(RANDOM_SPREAD + _SHARE_SPREAD * (RESCALED_SPREAD - RANDOM_SPREAD), 1),
        150.0,
        Settings(
            environments=32,
            rollout_size=800,
            batch_size=240,
            epochs=10,
            learning_rate=1e-3,
            discount=0.95,
            entropy_cost=0.01,
        ),
        episodes=100,
        random=RANDOM_SPREAD,
        best=RESCALED_SPREAD,
        agents=_AGENTS,
    ),
    _task(
        "benchmarks.environments.doors:Doors",
        _SHARE_DOORS * best_return(),
        90.0,
        Settings(
            environments=32,
            rollout_size=2_048,
            batch_size=512,
            epochs=10,
            learning_rate=1e-3,
            discount=0.9,
            entropy_cost=0.01,
        ),
        random=1.3,
        best=float(best_return()),
        agents=4,
        leave=True,
        lives=LIVES,
    ),
)
