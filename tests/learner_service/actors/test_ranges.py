"""Outliers of one actor are left out of calibration; values of many actors stay."""

import logging

import numpy as np
import pytest
from numpy.typing import NDArray

from learner_service.actors.ranges import ObservedRanges


def rows(scale: float, seed: int, count: int = 64) -> NDArray[np.float32]:
    return (scale * np.random.default_rng(seed).uniform(-1, 1, (count, 1, 3))).astype(np.float32)


def ranges(*scales: float) -> ObservedRanges:
    found = ObservedRanges()
    for number, scale in enumerate(scales):
        found.update(f"actor-{number}", rows(scale, number))
    return found


def test_the_rows_of_an_outlier_actor_are_left_out_and_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    found = ranges(1.0, 1.2, 0.8, 1e6)
    good, wild = rows(1.0, 9)[:, 0], rows(1e6, 10, 16)[:, 0]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            both = np.concatenate([good, wild])
            np.testing.assert_array_equal(both[found.inside(both)], good)
    assert found.left_out == 32
    (line,) = caplog.messages
    assert line.startswith("actor-3: ")


def test_actors_that_explore_differently_are_no_outliers() -> None:
    found, batch = ranges(1.0, 2.0, 5.0, 8.0), rows(8.0, 9)[:, 0]
    assert found.inside(batch).all()


@pytest.mark.parametrize("scales", [(), (1.0,), (1.0, 1e6)])
def test_with_fewer_than_three_actors_no_rows_are_left_out(scales: tuple[float, ...]) -> None:
    batch = rows(1e6, 9)[:, 0]
    assert ranges(*scales).inside(batch).all()


def test_a_batch_that_is_mostly_outside_stays_whole() -> None:
    """As after a change of the environment that most actors have not sent yet."""
    found, batch = ranges(1.0, 1.0, 1.0), rows(1e6, 9)[:, 0]
    assert found.inside(batch).all()


def test_a_component_that_most_actors_never_change_has_no_bound() -> None:
    found = ObservedRanges()
    for number in range(3):
        segment = rows(1.0, number)
        segment[..., 2] = 0.0
        found.update(f"actor-{number}", segment)
    batch = rows(1.0, 9)[:, 0]
    assert found.inside(batch).all()


def test_a_range_follows_the_actor() -> None:
    found = ranges(1.0, 1.0, 1e6)
    for _ in range(400):
        for number in range(3):
            found.update(f"actor-{number}", rows(1e6, number))
    batch = rows(1e6, 9)[:, 0]
    assert found.inside(batch).all()


def test_stacked_observations_are_compared_by_their_components_and_integers_are_not() -> None:
    found = ranges(1.0, 1.0, 1.0)
    stacked = np.stack([rows(1.0, 9)[:, 0]] * 4, axis=1)
    stacked[5, 2, 1] = 1e9
    assert np.count_nonzero(found.inside(stacked)) == 63
    found.update("actor-0", np.full((4, 1, 3), 255, np.uint8))
    codes = np.full((4, 3), 255, np.uint8)
    assert found.inside(codes).all()


def test_the_number_of_actors_is_bounded() -> None:
    found = ObservedRanges()
    for number in range(1000):
        found.update(f"actor-{number}", rows(1.0, number, 2))
    assert len(found._ranges) == 256


@pytest.mark.parametrize(
    ("scales", "named"),
    [
        ((1.0, 1.0, 1.0), ""),
        ((1.0, 1.0, 21.0), "actor-2 "),
        ((1.0, 21.0), ""),
        ((), ""),
    ],
)
def test_the_actor_whose_range_is_widest_is_named(scales: tuple[float, ...], named: str) -> None:
    found = ranges(*scales).widest()
    assert found.startswith(named)
    assert bool(found) == bool(named)
