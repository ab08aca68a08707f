"""All tuned settings that stored results have trained: a preset of an algorithm on an environment."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from actorq.config.presets import STANDARD
from benchmarks.training import presets, returns

Run = Mapping[str, Any]
RESULTS = (
    "presets",
    "returns_mountain_car_continuous",
    "returns",
    "returns_repeated",
    "returns_finger_spin",
    "returns_cheetah_run",
    "returns_pong",
)
"""The results with runs of presets, from the older to the newer. The last one with a setting counts."""


class Setting(NamedTuple):
    """A preset of an algorithm on an environment."""

    algorithm: str
    environment: str
    preset: str

    @property
    def task(self) -> str:
        """ALGORITHM/ENVIRONMENT."""
        return f"{self.algorithm}/{self.environment}"

    @property
    def title(self) -> str:
        """Two lines for a plot."""
        return f"{self.algorithm.upper()}, {self.preset}\n{self.environment.rpartition('/')[2]}"


def settings_of(results: Iterable[Sequence[Run]]) -> dict[Setting, list[Run]]:
    """The runs of each setting. results: the runs of each result, from the older to the newer."""
    newest: dict[Setting, list[Run]] = {}
    for runs in results:
        found: dict[Setting, list[Run]] = {}
        for run in runs:
            algorithm, _, environment = run["task"].partition("/")
            found.setdefault(Setting(algorithm, environment, run.get("preset", STANDARD)), []).append(run)
        newest |= found
    return newest


def command_of(setting: Setting, target_return: float) -> str:
    """The command that trained a setting to this return, without its seed."""
    flags = ["--algorithm", setting.algorithm, "--environment", setting.environment]
    task = next((task for task in returns.TASKS if task.name == setting.task), None)
    if setting.preset != STANDARD:
        flags += ["--preset", setting.preset]
    if task is not None and setting.preset == STANDARD:
        flags += [*task.flags, "--max-environment-steps", str(task.steps)]
    else:
        episodes = next(task.episodes for task in presets.TASKS if task.name == setting.task)
        flags += ["--evaluation.episodes", str(episodes)]
    return " ".join(("actorq train", *flags, f"--target-return={target_return:g}"))
