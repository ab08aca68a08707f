"""The steps of actors in a synchronous rollout while others are missing."""

import re

import pytest

from learner_service.actors.shares import Shares
from tests.builders.clocks import ManualClock


def shares(actors: int = 4, steps: int = 64, segment: int = 32) -> tuple[Shares, ManualClock]:
    clock = ManualClock()
    return Shares(steps, actors, segment, clock), clock


def after(shares: Shares, clock: ManualClock, seconds: float, *present: str, away: tuple[str, ...] = ()) -> int:
    """The last share of updates once a second."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now += 1.0
        shares.update(present, away)
    return shares.share


def test_after_ten_seconds_the_others_collect_the_share_of_a_missing_actor(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found, clock = shares()
    assert after(found, clock, 20, "a", "b", "c", "d") == 0
    assert after(found, clock, 10, "a", "b", "c", away=("d",)) == 0
    assert after(found, clock, 1, "a", "b", "c", away=("d",)) == 96
    (line,) = caplog.messages
    assert re.search(r"queue\.synchronous.*1 of 4.*\(d\).* 96 .* 64", line)
    assert after(found, clock, 100, "a", "b", away=("c", "d")) == 128
    assert len(caplog.records) == 2


def test_the_share_is_normal_as_soon_as_the_actor_returns(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    found, clock = shares(actors=2)
    assert after(found, clock, 30, "a") == 128
    assert found.update(("a", "b")) == 0
    assert "all 2 actors" in caplog.text
    caplog.clear()
    assert after(found, clock, 30, "a") == 128
    # When all are missing, none has returned.
    assert found.update(()) == 0
    assert "all 2 actors" not in caplog.text
    assert found.update(("a", "b")) == 0
    # A short absence is no absence.
    assert after(found, clock, 9, "a") == 0
    assert found.update(("a", "b")) == 0
    assert after(found, clock, 9, "a") == 0


def test_a_share_is_of_whole_segments_and_enough_for_a_rollout() -> None:
    for actors in range(2, 9):
        for segments in range(1, 5):
            for present in range(1, actors):
                found, clock = shares(actors, 32 * segments)
                share = after(found, clock, 12, *map(str, range(present)))
                assert share % 32 == 0
                assert present * (share - 32) < actors * 32 * segments <= present * share


@pytest.mark.parametrize(("steps", "present"), [(0, ("a",)), (64, ()), (64, ("a", "b", "c", "d", "e"))])
def test_a_run_without_steps_or_with_no_or_surplus_actors_has_no_share(steps: int, present: tuple[str, ...]) -> None:
    found, clock = shares(steps=steps)
    assert after(found, clock, 60, *present) == 0


def test_a_silent_actor_counts_as_missing_at_once_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    found, clock = shares()
    clock.now = 100.0
    assert found.update(("a", "b", "c"), (), ("d",)) == 96
    assert re.search(r"1 of 4.*\(d\)", caplog.text)
    assert found.update(("a", "b", "c", "d")) == 0
