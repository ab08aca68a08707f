"""The targets of the sweep benchmark: slow sweeps and lost trials miss them."""

from typing import Any

import pytest

from benchmarks.training.sweep import targets

FIGURES = {
    "trials": [{"state": "complete"}] * 6 + [{"state": "pruned"}] * 7 + [{"state": "not solved"}] * 3,
    "wanted": 16,
    "seconds": 200.0,
    "has_policy": True,
}


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, []),
        ({"seconds": 361.0}, ["seconds of the whole sweep"]),
        ({"trials": FIGURES["trials"][:15]}, ["trials with a result"]),  # type: ignore[index]
        ({"trials": [*FIGURES["trials"][:15], {"state": "failed"}]}, ["failed trials"]),  # type: ignore[index]
        ({"trials": [{"state": "pruned"}] * 16}, ["trials that solved the task"]),
        ({"has_policy": False}, ["exported policies of the best run"]),
    ],
)
def test_each_target_can_be_missed(change: dict[str, Any], missed: list[str]) -> None:
    assert [target.name for target in targets({**FIGURES, **change}) if not target.met] == missed
