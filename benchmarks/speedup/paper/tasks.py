"""The tasks of ActorQ's table (arXiv 1910.01055), the actors to compare, and the settings of each algorithm."""

from dataclasses import dataclass

from actorq.domain.policy import FP32
from actorq_apps.comparison.schedule import TORCH, TORCH_ACTOR
from benchmarks.runs import LearningTask
from benchmarks.speedup.paper.half import FP16

INT8 = "int8"
# The kinds of actors. The baseline of all ratios is fp32, which runs in ONNX Runtime.
SCHEMES = (TORCH, FP32, FP16, INT8, "int4")
# The algorithms on DM Control.
CONTINUOUS = ("d4pg", "xqc")


@dataclass(frozen=True)
class Task(LearningTask):
    """A task to learn. A run ends after `steps` environment steps, or after limit_s seconds if that is sooner."""

    steps: int
    limit_s: float
    flags: tuple[str, ...] = ()


def _falling(updates: int) -> tuple[str, ...]:
    """Flags for a step size that falls until the run's end. DQN's last policy otherwise depends much on chance."""
    return "--dqn.learning-rate-end=1e-4", f"--dqn.learning-rate-updates={updates}"


# Environment steps, and updates in these steps. CartPole-v0 is the paper's CartPole, with at most 200 steps.
_GYM = {"CartPole-v0": (50_000, 6_000), "Acrobot-v1": (100_000, 25_000), "MountainCar-v0": (200_000, 50_000)}
# Environment steps of D4PG.
_DM_CONTROL = {
    "cartpole-balance": 100_000,
    "walker-stand": 250_000,
    "cheetah-run": 600_000,
    "finger-spin": 500_000,
    "hopper-stand": 500_000,
    "reacher-hard": 500_000,
    "humanoid-stand": 1_000_000,
    "humanoid-walk": 1_000_000,
}
# XQC learns from each transition half as often as D4PG, so it gets twice as many steps.
_TIMES = {"d4pg": 1, "xqc": 2}
_LIMIT_S, _HUMANOID_LIMIT_S = 1_800.0, 3_600.0

# The shortest runs first.
TASKS = (
    *(Task("dqn", name, steps, _LIMIT_S, _falling(updates)) for name, (steps, updates) in _GYM.items()),
    *(
        Task(
            algorithm,
            f"dm_control/{name}",
            steps * _TIMES[algorithm],
            _HUMANOID_LIMIT_S if name.startswith("humanoid") else _LIMIT_S,
        )
        for name, steps in _DM_CONTROL.items()
        for algorithm in CONTINUOUS
    ),
)

# All kinds of actors have the same settings. With both numbers given, the preset auto measures nothing.
_OF_ALGORITHM: dict[str, tuple[str, ...]] = {
    "dqn": (),
    "d4pg": ("--learner.precision=auto",),
    "xqc": ("--preset=auto", "--rate-limiter.samples-per-insert=16", "--actors=1"),
}
# Evaluations are frequent enough to show when a run reaches a return.
_EVALUATIONS = ("--evaluation.episodes=20", "--evaluation.share=0.1")
_NEVER = 1e9


def flags_of(task: Task, scheme: str, seed: int) -> list[str]:
    """The flags of `actorq train`. scheme: one of SCHEMES."""
    return [
        *(f"--algorithm={task.algorithm}", f"--environment={task.environment}", f"--seed={seed}"),
        *(*_OF_ALGORITHM[task.algorithm], *task.flags, *_EVALUATIONS),
        f"--target-return={_NEVER:g}",
        *(f"--max-environment-steps={task.steps}", f"--max-seconds={task.limit_s:g}"),
        f"--scheme={FP32 if scheme == TORCH else scheme}",
        *([f"--actor-module={TORCH_ACTOR}"] if scheme == TORCH else []),
    ]
