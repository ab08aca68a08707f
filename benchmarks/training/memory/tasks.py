"""The tasks, their bounds, and the policies that the benchmark trains in them. The bounds are older than the runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.environments.memory import SYMBOLS

GRU, NONE = "gru", "none"
_MODULE = "benchmarks.environments.memory"
# SAC with full observations has a mean return of -145 on Pendulum-v1 (benchmarks/results/zoo.json), less this margin.
_FULL_PENDULUM, _MARGIN = -145.0, 55.0
# More than guesses have by chance, in this number of episodes.
_RECALLS = 400
_GUESSED = 1.4 / SYMBOLS
# PPO on CartPole with memory: more environments than in the preset, so that a minibatch has several sequences.
PPO_CARTPOLE = (
    *("--memory.units=64", "--environments-per-actor=32", "--actor.segment-length=32", "--ppo.rollout-size=1024"),
    *("--ppo.batch-size=512", "--ppo.epochs=10", "--ppo.learning-rate=2e-3", "--ppo.gae-lambda=0.9"),
)


@dataclass(frozen=True)
class Task:
    """An environment that shows only a part of its state.

    environment: its id in benchmarks.environments.memory. hidden: what the policy must remember, for the pages.
    least: mean return that every seed with memory reaches. most: mean return that no seed without memory exceeds.
    end: mean return of an evaluation that ends a run. It is above `least`, because the last policy then plays new
        episodes. episodes: their number.
    steps: environment steps that end a run, by algorithm. flags: more flags for actorq train, by algorithm.
    like: id of the environment whose presets the runs have; "" without one.
    """

    environment: str
    hidden: str
    least: float
    most: float
    end: float
    steps: dict[str, int]
    episodes: int = 100
    like: str = ""
    flags: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name that the patterns of --task match."""
        return self.environment

    @property
    def module(self) -> str:
        """The module of the environment."""
        return _MODULE


@dataclass(frozen=True)
class Case:
    """A task with an algorithm and a kind of memory, as in `memory.kind`."""

    task: Task
    algorithm: str
    memory: str

    @property
    def name(self) -> str:
        """The case as text, also in the names of targets."""
        return f"{self.task.name}, {self.algorithm}, {self.memory}"

    def flags(self, seed: int) -> list[str]:
        """The flags of actorq train."""
        task = self.task
        own = [flag for flag in task.flags.get(self.algorithm, ()) if self.memory != NONE or "--memory." not in flag]
        given = {
            "environment": f"{task.module}:{task.environment}",
            **({"like": task.like} if task.like else {}),
            "algorithm": self.algorithm,
            "memory": self.memory,
            "scheme": "int8",
            "seed": seed,
            "target-return": f"{task.end:g}",
            "max-environment-steps": task.steps[self.algorithm],
        }
        return [*(f"--{name}={value}" for name, value in given.items()), *own]


TASKS = (
    Task(
        "CartPoleWithoutVelocities-v1",
        "velocities",
        least=475.0,
        most=150.0,
        end=490.0,
        steps={"ppo": 300_000, "dqn": 200_000},
        like="CartPole-v1",
        flags={"ppo": PPO_CARTPOLE},
    ),
    Task(
        "PendulumWithoutVelocity-v1",
        "velocity",
        least=_FULL_PENDULUM - _MARGIN,
        most=_FULL_PENDULUM - _MARGIN,
        end=-160.0,
        # Earlier runs with half the units, twice the step size and fewer steps missed the bound. Most units before the
        # cell had become 0, and the state drifted.
        steps={"sac": 60_000},
        like="Pendulum-v1",
        flags={"sac": ("--sac.hidden-sizes=128,128", "--sac.learning-rate=5e-4", "--evaluation.episodes=30")},
    ),
    Task(
        "Recall-v0",
        "a symbol",
        least=0.95,
        most=_GUESSED,
        end=1.0,
        steps={"ppo": 2_000_000},
        episodes=_RECALLS,
        # A rollout has two episodes of each environment, and a sequence has both. Gradients therefore reach the symbol.
        flags={
            "ppo": (
                *("--memory.units=64", "--memory.sequence-length=104", "--environments-per-actor=64"),
                *("--actor.segment-length=104", "--ppo.rollout-size=6656", "--ppo.batch-size=1664", "--ppo.epochs=8"),
                *("--ppo.learning-rate=1e-3", "--evaluation.episodes=200"),
            )
        },
    ),
)


def cases(tasks: Sequence[Task] = TASKS) -> Iterator[Case]:
    """All cases, task by task, with memory and without it."""
    return (Case(task, algorithm, memory) for task in tasks for algorithm in task.steps for memory in (GRU, NONE))
