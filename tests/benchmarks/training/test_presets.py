"""Seconds under both presets: who is compared, in which order, and what decides."""

from pathlib import Path
from typing import Any

import pytest

from actorq.config.presets import DATA_RICH, STANDARD
from actorq.config.run_config import RunConfig
from benchmarks.harness import ONE_SEED
from benchmarks.training import presets
from benchmarks.training.presets import PRESETS, TASKS, row, verdict


def _made(preset: str, seed: int, seconds: float, reached: bool = True) -> dict[str, Any]:
    return {
        "task": TASKS[0].name,
        "preset": preset,
        "seed": seed,
        "seconds": seconds,
        "reached": reached,
        "environment_steps": 1_000,
        "updates": 10,
        "confirmed": {"mean_return": 210.0},
    }


def test_medians_decide() -> None:
    runs = [_made(STANDARD, seed, 30.0 * seed) for seed in (1, 2, 3)]
    runs += [_made(DATA_RICH, seed, 10.0 * seed) for seed in (1, 2, 3)]
    found = verdict(TASKS[0], runs)
    assert (found.measured, found.met) == (3.0, True)


def test_a_missed_target_is_no_success() -> None:
    runs = [_made(preset, seed, 10.0, preset == STANDARD or seed == 1) for preset in PRESETS for seed in (1, 2)]
    found = verdict(TASKS[0], runs)
    assert (found.measured, found.met) == (0.0, False)
    assert "target missed" in row(runs[-1])


def test_one_seed_gives_no_verdict() -> None:
    assert verdict(TASKS[0], [_made(preset, 1, 10.0) for preset in PRESETS]).refused == ONE_SEED


def test_a_run_gets_its_preset_and_its_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def train(folder: Path, flags: list[str]) -> dict[str, Any]:
        asked.append((flags[flags.index("--preset") + 1], flags[flags.index("--seed") + 1]))
        return {**_made("", int(asked[-1][1]), 0.0), "state": "solved", "first_transition_s": 1, "last_transition_s": 3}

    monkeypatch.setattr(presets, "train", train)
    monkeypatch.setattr(presets, "confirm", lambda folder, episodes: presets.Task("", "", 0.0))
    for seed in (1, 2):
        for preset in PRESETS[:: 1 if seed % 2 else -1]:
            assert presets._run(TASKS[0], preset, seed, tmp_path)["seconds"] == 2
    assert asked == [(STANDARD, "1"), (DATA_RICH, "1"), (DATA_RICH, "2"), (STANDARD, "2")]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_presets_differ_on_every_task(task: presets.Task) -> None:
    standard, rich = (
        RunConfig(environment=task.environment, algorithm=task.algorithm, preset=preset) for preset in PRESETS
    )
    assert rich.rate_limiter.samples_per_insert < standard.rate_limiter.samples_per_insert
    assert rich.environments_per_actor > standard.environments_per_actor
