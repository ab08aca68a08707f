"""The tasks of the benchmark of stored data, and the data sets that are recorded for them."""

from collections.abc import Mapping
from dataclasses import dataclass

# Four updates for each environment step: with few, a run needs its steps for updates, whatever data it has. Evaluations
# are frequent, because runs end after them.
_SEVERAL_UPDATES = ("--rate-limiter.samples-per-insert=1024", "--evaluation.period-updates=500")


@dataclass(frozen=True)
class Task:
    """An environment with continuous actions.

    medium, target: mean returns of the recording policies, and of a run that is done. steps: budget of a run.
    updates: of an offline run. settings: flags of all runs. online: more flags of the runs with actors.
    """

    name: str
    environment: str
    medium: float
    target: float
    steps: int
    updates: int
    settings: tuple[str, ...] = ()
    online: tuple[str, ...] = ()


TASKS = (
    Task("hopper", "Hopper-v5", 1_000.0, 2_500.0, 400_000, 200_000),
    Task("pendulum", "Pendulum-v1", -700.0, -200.0, 20_000, 6_000, online=_SEVERAL_UPDATES),
)

MIXES: Mapping[str, Mapping[str, float]] = {
    "medium": {"medium": 1.0},
    "mixed": {"random": 0.3, "medium": 0.4, "expert": 0.3},
}
"""For each data set the shares of transitions by the policy that acted."""
