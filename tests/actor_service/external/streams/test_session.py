"""One stream: which of its steps are accepted, and what they mean."""

import math
from typing import Any

import numpy as np
import pytest

from actor_service.external.streams.session import PlaySession
from actor_service.external.streams.spaces import SimulatorSpaces
from actorq.domain.environments import NO_ARGUMENTS
from actorq.errors import InvalidInputError
from tests.actor_service.external.simulators import NAME, opening, step

TWO = np.zeros((2, 4), np.float32)


def session(environments: int = 2) -> PlaySession:
    given = opening(environments)
    return PlaySession(SimulatorSpaces.of(given, NAME, NO_ARGUMENTS), given, lambda reply: None)


def test_the_first_step_has_only_observations() -> None:
    arrival = session().accept(step(TWO, rewards=[math.nan, 5.0], terminated=1, truncated=1))
    assert arrival.begins.all()
    assert not arrival.rewards.any()
    assert not (arrival.terminated | arrival.truncated).any()


def test_the_step_after_an_end_begins_the_next_episode_of_this_environment() -> None:
    playing = session()
    playing.accept(step(TWO))
    ended = playing.accept(step(TWO, terminated=[0, 1]))
    np.testing.assert_array_equal(ended.begins, [False, False])
    np.testing.assert_array_equal(ended.rewards, [1.0, 1.0])
    after = playing.accept(step(TWO, rewards=[1.0, math.nan], terminated=1))
    np.testing.assert_array_equal(after.begins, [False, True])
    np.testing.assert_array_equal(after.rewards, [1.0, 0.0])
    np.testing.assert_array_equal(after.terminated, [True, False])


def test_success_is_reported_or_not() -> None:
    playing = session()
    assert playing.accept(step(TWO)).successes is None
    told = playing.accept(step(TWO, successes=[0, 1])).successes
    assert told is not None
    np.testing.assert_array_equal(told, [False, True])


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        (
            {"rewards": [1.0, math.nan]},
            r"^step 2: step.rewards: must be from -1e\+09 to 1e\+09, got nan in environment 1",
        ),
        ({"rewards": [-math.inf, 0.0]}, "got -inf in environment 0; scale them"),
        ({"rewards": [1.0]}, "step.rewards: expected one for each of 2 environments, got 1"),
        ({"rewards": []}, "step.rewards: expected one for each of 2 environments, got 0"),
        ({"terminated": [0]}, "step.terminated: expected one for each of 2 environments, got 1"),
        ({"truncated": [0, 0, 0]}, "step.truncated: expected one for each of 2 environments, got 3"),
        ({"successes": [1]}, "step.successes: expected one for each of 2 environments, got 1"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_with_its_number(changed: dict[str, Any], error: str) -> None:
    playing = session()
    playing.accept(step(TWO))
    with pytest.raises(InvalidInputError, match=error):
        playing.accept(step(TWO, **changed))


def test_a_stream_is_quick_if_its_steps_usually_come_soon() -> None:
    playing = session()
    assert not playing.is_quick(0.0, 0.01)
    for moment in range(3):
        playing.answered_at = float(moment)
        playing.arrived(moment + 0.001)
    assert not playing.is_quick(2.002, 0.01), "no answer was sent since its last step"
    playing.answered_at = 3.0
    assert playing.is_quick(3.005, 0.01)
    assert not playing.is_quick(3.005, 0.0005), "its steps take longer"
    assert not playing.is_quick(3.03, 0.01), "it has stopped"
