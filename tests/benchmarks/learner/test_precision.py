"""Returns in both precisions: what decides, and what is refused."""

from typing import Any

import pytest

from benchmarks.harness import ONE_SEED
from benchmarks.learner.precision import BF16, FP32, TASKS, row, verdict


def _made(precision: str, seed: int, mean_return: float, used: str = "") -> dict[str, Any]:
    return {
        "task": TASKS[0].name,
        "asked": precision,
        "precision": used or precision,
        "seed": seed,
        "environment_steps": 1_000,
        "updates": 900,
        "updates_per_s": 90.0,
        "confirmed": {"mean_return": mean_return},
    }


def test_bf16_may_be_below_by_the_spread_of_fp32() -> None:
    runs = [_made(FP32, seed, 100.0 + 10 * seed) for seed in (1, 2, 3)]
    assert verdict(TASKS[0], [*runs, *(_made(BF16, seed, 110.0) for seed in (1, 2, 3))]).met
    assert not verdict(TASKS[0], [*runs, *(_made(BF16, seed, 109.0) for seed in (1, 2, 3))]).met


def test_one_seed_gives_no_verdict() -> None:
    assert verdict(TASKS[0], [_made(FP32, 1, 100.0), _made(BF16, 1, 100.0)]).refused == ONE_SEED


def test_a_run_in_another_precision_than_asked_ends_the_benchmark() -> None:
    with pytest.raises(SystemExit, match="expected a run in bf16, got one in fp32"):
        verdict(TASKS[0], [_made(FP32, 1, 100.0), _made(BF16, 1, 100.0, used=FP32)])


def test_a_row_names_precision_and_seed() -> None:
    assert "bf16 seed 2" in row(_made(BF16, 2, 110.0))
