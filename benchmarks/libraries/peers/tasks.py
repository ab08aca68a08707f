"""Tasks of benchmarks.libraries.peers: a target return on an environment, with a time limit."""

from dataclasses import dataclass

from benchmarks.runs import LearningTask
from benchmarks.training.memory.tasks import PPO_CARTPOLE

# Greedy episodes of an evaluation, unless the task has another number.
EPISODES = 20


@dataclass(frozen=True)
class Task(LearningTask):
    """A target return on an environment.

    target: mean return of an evaluation.
    period: least environment steps between two evaluations of the other libraries. ActorQ has an evaluator process.
    limit_s: time limit of a run in seconds.
    threads: PyTorch threads of the other libraries (their default is one per core). DQN's networks are too small to
        gain from a second thread, which halves the speed when another program uses a core.
    preset: of ActorQ.
    share: largest share of a run's time for the evaluations of the other libraries.
    episodes: greedy episodes of an evaluation.
    """

    target: float
    period: int
    limit_s: float
    threads: int = 1
    preset: str = "standard"
    share: float = 1.0
    episodes: int = EPISODES


@dataclass(frozen=True)
class TunedTask(Task):
    """A task with the benchmark's own settings of ActorQ.

    flags: of actorq train, besides the environment's preset. steps: environment steps of a run of ActorQ, the length of
        its schedules. A run that ends with them has missed the target.
    """

    flags: tuple[str, ...] = ()
    steps: int = 300_000


@dataclass(frozen=True)
class MemoryTask(TunedTask):
    """A task that needs memory, in a registered environment of this project. environment: MODULE:ID.

    Nothing depends on the length of a run, so only the time limit ends one, as with the other libraries.
    """

    steps: int = 100_000_000

    @property
    def name(self) -> str:
        """ALGORITHM/ID."""
        return f"{self.algorithm}/{self.environment.rpartition(':')[2]}"


def _continuous(algorithm: str, environment: str, target: float, limit_s: float, preset: str = "auto") -> Task:
    # Evaluations of long episodes are expensive, and the systems need 1 to 100 steps for an update. A period in steps
    # alone would therefore slow down some systems, and be coarse for others.
    return Task(algorithm, environment, target, 2_000, limit_s, threads=2, preset=preset, share=0.1)


# Continuous control, where a step of the simulator is cheap and an update is expensive.
CONTINUOUS = (
    _continuous("sac", "HalfCheetah-v5", 5_000.0, 1_200.0),
    _continuous("sac", "Hopper-v5", 2_500.0, 1_200.0),
    _continuous("sac", "Walker2d-v5", 2_500.0, 1_200.0),
    _continuous("sac", "Ant-v5", 3_000.0, 2_400.0),
    _continuous("sac", "dm_control/walker-walk", 900.0, 1_200.0),
    _continuous("sac", "LunarLanderContinuous-v3", 240.0, 600.0),
    _continuous("td3", "HalfCheetah-v5", 5_000.0, 1_200.0),
    # PPO has the same settings in all presets.
    _continuous("ppo", "HalfCheetah-v5", 5_000.0, 1_200.0, "standard"),
)
# RecurrentPPO of sb3-contrib has an LSTM with as many units as the GRU. A second thread makes it many times slower if
# another program uses a core.
MEMORY = (
    MemoryTask(
        "ppo",
        "benchmarks.environments.memory:CartPoleWithoutVelocities-v1",
        475.0,
        4_096,
        300.0,
        flags=("--like=CartPole-v1", "--memory=gru", *PPO_CARTPOLE),
    ),
)
TASKS = (
    Task("dqn", "CartPole-v1", 475.0, 5_000, 300.0),
    Task("ppo", "CartPole-v1", 475.0, 4_096, 300.0),
    Task("dqn", "LunarLander-v3", 200.0, 10_000, 480.0),
    Task("sac", "Pendulum-v1", -200.0, 1_000, 300.0, threads=2),
    *CONTINUOUS,
    *MEMORY,
)
