"""The rule for a reached target: one lucky evaluation does not count."""

from collections.abc import Sequence

import pytest

from benchmarks.reached import first_reached
from benchmarks.training.regime import has_reached


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        # The first evaluation with the target is lucky, the third one is confirmed.
        ((1_100.0, 400.0, 1_000.0, 900.0, 2_000.0), 2),
        # A successor just below 0.9 of the target.
        ((1_000.0, 899.9), None),
        # The successor may itself be the evaluation that counts.
        ((1_000.0, 899.0, 1_000.0, 1_001.0), 2),
        ((999.9, 2_000.0), None),
        # Without a successor.
        ((2_000.0,), None),
        ((), None),
    ],
)
def test_the_successor_confirms_an_evaluation_with_the_target(returns: Sequence[float], expected: int | None) -> None:
    assert first_reached(returns, 1_000.0) == expected


def test_a_tenth_of_a_negative_target_is_below_it() -> None:
    assert first_reached((-200.0, -220.0), -200.0) == 0
    assert first_reached((-200.0, -220.1), -200.0) is None


@pytest.mark.parametrize(
    ("evaluation", "confirmed", "reached"),
    [(1_050.0, 900.0, True), (1_050.0, 890.0, False), (999.0, 1_500.0, False), (None, 1_500.0, False)],
)
def test_new_episodes_confirm_the_last_evaluation_of_a_run(
    evaluation: float | None, confirmed: float, reached: bool
) -> None:
    last = None if evaluation is None else {"mean_return": evaluation}
    assert has_reached({"evaluation": last, "confirmed": {"mean_return": confirmed}}, 1_000.0) == reached
