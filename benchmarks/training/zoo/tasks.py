"""The tasks whose trained policies are stored, with the return that each policy must reach."""

from dataclasses import dataclass
from pathlib import Path

from actorq.config.presets import STANDARD
from benchmarks.runs import LearningTask

POLICIES = Path(__file__).parents[2] / "results" / "policies"
"""The folder of the stored policies."""


@dataclass(frozen=True)
class Task(LearningTask):
    """A preset of an algorithm on an environment.

    stop_at: the evaluation's return that ends a run. threshold: the mean return that the stored policy must reach on
    new episodes, also on a few ones. It is lower, because the last evaluation of a run is a lucky one.
    """

    stop_at: float
    threshold: float
    preset: str = STANDARD

    @property
    def file(self) -> str:
        """The name of the policy's ONNX file."""
        return f"{self.name.replace('/', '-')}.onnx"

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of `actorq train`, without the seed. The preset decides the rest."""
        preset = () if self.preset == STANDARD else ("--preset", self.preset)
        task = ("--algorithm", self.algorithm, "--environment", self.environment, *preset)
        return (*task, f"--target-return={self.stop_at:g}")


TASKS = (
    Task("dqn", "CartPole-v1", 475.0, 450.0),
    Task("ppo", "CartPole-v1", 475.0, 450.0),
    Task("impala", "CartPole-v1", 475.0, 450.0),
    Task("dqn", "Acrobot-v1", -90.0, -100.0),
    Task("dqn", "MountainCar-v0", -115.0, -120.0),
    Task("dqn", "LunarLander-v3", 240.0, 200.0),
    Task("sac", "Pendulum-v1", -160.0, -200.0),
    Task("td3", "Pendulum-v1", -160.0, -200.0),
    Task("xqc", "Pendulum-v1", -160.0, -200.0),
)
