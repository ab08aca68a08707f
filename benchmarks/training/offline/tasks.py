"""The tasks of the benchmark of stored data, and the data sets that are recorded for them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """An environment with continuous actions.

    medium, target: mean returns of the recording policies, and of a run that is done. steps: budget of a run.
    updates: of an offline run. settings: flags of all runs but the teachers'. teaching: another environment with the
        same spaces, in which the recording policies have learned; "" for the same one. taught: mean return of the
        better one there. inverse_temperature: of IQL. The paper's 3 is for rewards near 1.
    """

    name: str
    environment: str
    medium: float
    target: float
    steps: int
    updates: int
    settings: tuple[str, ...] = ()
    teaching: str = ""
    taught: float | None = None
    inverse_temperature: float = 3.0

    @property
    def teachers(self) -> str:
        """The environment in which the recording policies have learned."""
        return self.teaching or self.environment

    @property
    def teachers_target(self) -> float:
        """Mean return of the better recording policy where it has learned."""
        return self.target if self.taught is None else self.taught


TASKS = (
    Task("hopper", "Hopper-v5", 1_000.0, 2_500.0, 400_000, 200_000),
    # Rewards are down to -16.
    Task("pendulum", "Pendulum-v1", -700.0, -200.0, 20_000, 15_000, inverse_temperature=0.3),
    # The pendulum with rare rewards. A policy of the dense rewards with a medium return has found the top.
    Task(
        "upright",
        "benchmarks.environments.changed:PendulumUpright-v1",
        *(-700.0, 100.0, 30_000, 6_000),
        settings=("--like=Pendulum-v1", "--evaluation.period-updates=500"),
        teaching="Pendulum-v1",
        taught=-200.0,
    ),
)

MIXES: Mapping[str, Mapping[str, float]] = {
    "medium": {"medium": 1.0},
    "mixed": {"random": 0.3, "medium": 0.4, "expert": 0.3},
}
"""For each data set the shares of transitions by the policy that acted."""
