"""The simulation of autoscaling gives its stored figures: it has a seed and simulated time."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.scale.scaling import HALF_S, simulate

STORED = Path(__file__).parents[2] / "benchmarks" / "results" / "scaling.json"


@pytest.mark.parametrize("needed", [1, 10])
def test_the_learners_present_signal_gives_the_stored_figures(needed: int) -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))["figures"][str(needed)]
    _, phases = simulate(needed, HALF_S)
    # A failure means that limiter, credits or signal scale differently. Check the new figures, then store them.
    assert [asdict(phase) for phase in phases] == [pytest.approx(phase) for phase in stored]
