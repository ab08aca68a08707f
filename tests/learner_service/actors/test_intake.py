"""What the intake stores, refuses and counts."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorq.domain.policy import SCHEMES
from actorq.domain.trajectory import Episode, PolicySpan
from actorq.errors import InvalidInputError
from actorq.statefiles.highwater import LEAP
from learner_service.actors.intake import Intake, IntakeStatistics
from learner_service.actors.members import Member
from learner_service.replay import RateLimiter, ReplayBuffer, ReplayStore, Returns, UniformSampler
from tests.learner_service.learner_parts import SPEC, open_replay, segment, store_segment, with_an_episode_end

ACTOR = Member("actor-0", "actor", 0, incarnation=1)


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[ReplayBuffer]:
    buffer = open_replay(tmp_path)
    yield buffer
    buffer.close()


def an_intake(replay: ReplayBuffer, scheme: str = "int8") -> Intake:
    """Of a run that has published versions 1 to 5."""
    made = Intake(SPEC, replay, scheme, published_version=lambda: 5)
    for version in range(1, 6):
        made.published(version)
    return made


@pytest.fixture
def intake(replay: ReplayBuffer) -> Intake:
    return an_intake(replay)


def reserve(replay: ReplayBuffer, transitions: int = 8) -> int:
    assert replay.limiter.try_reserve(transitions)
    return transitions


def nothing_is_reserved(replay: ReplayBuffer) -> bool:
    """The room that the limiter has left is all that its error buffer gives: nothing is outstanding."""
    limiter = replay.limiter
    room = int((8 * 4.0 + 1000.0 + limiter.samples) / 4.0) - limiter.inserts
    if not limiter.try_reserve(room):
        return False
    limiter.release(room)
    return True


def test_a_segment_is_stored_and_its_episodes_and_policies_are_counted(intake: Intake, replay: ReplayBuffer) -> None:
    spans = (PolicySpan(0, 4, "int8"), PolicySpan(1, 5, "int8"))
    store_segment(intake, ACTOR, replace(with_an_episode_end(1), spans=spans), reserve(replay))
    assert replay.total_transitions == 7
    stored = intake.statistics()
    assert (stored.episodes, stored.mean_return) == (1, 21.0)
    assert stored.transitions_by_scheme == {"int8": 7}
    assert replay.sequences.last(*ACTOR.source_key) == 1
    assert nothing_is_reserved(replay)


def test_policies_that_fell_back_to_fp32_are_counted_as_fp32(intake: Intake, replay: ReplayBuffer) -> None:
    spans = (PolicySpan(0, 4, "int8"), PolicySpan(3, 5, "fp32"))
    store_segment(intake, ACTOR, segment(1, spans=spans), reserve(replay))
    assert intake.statistics().transitions_by_scheme == {"int8": 6, "fp32": 2}


def test_with_auto_every_scheme_may_have_acted_and_no_other(replay: ReplayBuffer) -> None:
    intake = Intake(SPEC, replay, "auto", published_version=lambda: 5)
    for sequence, scheme in enumerate(SCHEMES, start=1):
        store_segment(intake, ACTOR, segment(sequence, spans=(PolicySpan(0, 1, scheme),)), reserve(replay))
    assert intake.statistics().transitions_by_scheme == dict.fromkeys(SCHEMES, 8)
    for stranger in ("auto", "int2"):
        with pytest.raises(InvalidInputError, match=f"fp32.*int8-weights.*int8.*int8-static.*int4.*'{stranger}'"):
            store_segment(intake, ACTOR, segment(9, spans=(PolicySpan(0, 1, stranger),)), reserve(replay))


def test_staleness_counts_only_transitions(intake: Intake, replay: ReplayBuffer) -> None:
    # Two environments: steps 0 and 1 by version 3, steps 2 (a reset in one of them) and 3 by version 5.
    spans = (PolicySpan(0, 3, "int8"), PolicySpan(2, 5, "int8"))
    store_segment(intake, ACTOR, replace(with_an_episode_end(1), spans=spans), reserve(replay))
    assert intake.state()["staleness"] == [3, 0, 4]


def test_staleness_counts_publications_even_if_a_killed_learner_skips_numbers(replay: ReplayBuffer) -> None:
    killed, intake = an_intake(replay), Intake(SPEC, replay, "int8", published_version=lambda: 1030)
    intake.load_state(json.loads(json.dumps(killed.state())))
    for version in (1029, 1030):
        intake.published(version)
    spans = (PolicySpan(0, 5, "int8"), PolicySpan(1, 1029, "int8"), PolicySpan(3, 1030, "int8"))
    store_segment(intake, ACTOR, segment(1, spans=spans), reserve(replay))
    assert intake.state()["staleness"] == [2, 4, 2]


def test_half_of_the_transitions_are_at_most_as_stale_as_the_median(intake: Intake, replay: ReplayBuffer) -> None:
    spans = (PolicySpan(0, 3, "int8"), PolicySpan(2, 5, "int8"))
    store_segment(intake, ACTOR, segment(1, spans=spans), reserve(replay))
    assert (intake.statistics().staleness_p50, intake.statistics().staleness_p99) == (0.0, 2.0)


def test_the_same_sequence_of_the_same_life_is_stored_once(intake: Intake, replay: ReplayBuffer) -> None:
    store_segment(intake, ACTOR, with_an_episode_end(1), reserve(replay))
    store_segment(intake, ACTOR, with_an_episode_end(1), reserve(replay))
    assert replay.total_transitions == 7
    assert intake.statistics().episodes == 1
    assert sum(intake.state()["staleness"]) == 7
    assert nothing_is_reserved(replay)
    store_segment(intake, replace(ACTOR, incarnation=2), with_an_episode_end(1), reserve(replay))
    assert replay.total_transitions == 14


def test_each_incarnation_resumes_after_its_own_last_sequence(intake: Intake, replay: ReplayBuffer) -> None:
    assert replay.sequences.last(*ACTOR.source_key) == 0
    for sequence in (1, 2):
        store_segment(intake, ACTOR, segment(sequence), reserve(replay))
    assert replay.sequences.last(*ACTOR.source_key) == 2
    assert replay.sequences.last(*replace(ACTOR, incarnation=2).source_key) == 0
    assert replay.sequences.last(*replace(ACTOR, name="actor-1").source_key) == 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a wrong shape": ({"observations": np.zeros((5, 2, 3), np.float32)}, r"observations.*\[5, 2, 4\].*\[5, 2, 3\]"),
    "a wrong dtype": ({"rewards": np.ones((4, 2))}, "rewards.*float32.*float64"),
    "NaN": ({"rewards": np.full((4, 2), np.nan, np.float32)}, r"rewards.*1e\+09.*nan"),
    "an action out of range": ({"actions": np.full((4, 2), 2)}, r"actions.*\[0, 2\)"),
    "another scheme": ({"spans": (PolicySpan(0, 1, "int4"),)}, "int8.*fp32.*int8-weights.*'int4'"),
    "version 0": ({"spans": (PolicySpan(0, 0, "int8"),)}, "versions.* 1 .* 0$"),
    "a version far above the published ones": (
        {"spans": (PolicySpan(0, 2**62, "int8"),)},
        f"versions.*{5 + LEAP}.*{2**62}",
    ),
    "no rows and columns": ({"rewards": np.ones(8, np.float32)}, r"rewards.*\[8\]"),
    "an episode of NaN": ({"episodes": (Episode(np.nan, 3, 0),)}, "episodes.*finite"),
    "an episode without a step": ({"episodes": (Episode(1.0, 0, 0),)}, "length=0"),
    "an episode of an unknown environment": ({"episodes": (Episode(1.0, 3, 2),)}, "environment=2"),
    "no policy": ({"spans": ()}, "spans.* 0"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_segment_changes_nothing_and_releases_its_credit(
    intake: Intake, replay: ReplayBuffer, what: str
) -> None:
    columns, fact = REFUSED[what]
    with pytest.raises(InvalidInputError, match=fact):
        store_segment(intake, ACTOR, segment(1, **columns), reserve(replay))
    assert replay.total_transitions == 0
    assert replay.sequences.last(*ACTOR.source_key) == 0
    assert intake.statistics().episodes == 0
    assert intake.state()["staleness"] == []
    assert nothing_is_reserved(replay)
    store_segment(intake, ACTOR, segment(1), reserve(replay))
    assert replay.total_transitions == 8


def test_a_segment_larger_than_its_credit_is_refused(intake: Intake, replay: ReplayBuffer) -> None:
    with pytest.raises(InvalidInputError, match=r"8.*5 x 2"):
        store_segment(intake, ACTOR, segment(1, steps=5), reserve(replay))
    assert replay.total_transitions == 0
    assert nothing_is_reserved(replay)
    # One that is smaller is not.
    store_segment(intake, ACTOR, segment(1, steps=2), reserve(replay))
    assert replay.total_transitions == 4
    assert nothing_is_reserved(replay)


def test_statistics_outlive_the_learner(intake: Intake, replay: ReplayBuffer) -> None:
    for sequence in (1, 2):
        store_segment(intake, ACTOR, with_an_episode_end(sequence), reserve(replay))
    before = intake.statistics()
    assert before.episodes == 2
    assert before.staleness_p50 == before.staleness_p99 == 4.0
    again = Intake(SPEC, replay, "int8", published_version=lambda: 5)
    assert again.statistics() == IntakeStatistics()
    again.load_state(json.loads(json.dumps(intake.state())))
    # Segments are counted for each life of the process.
    assert again.statistics() == replace(before, stored_segments=0)


def test_transitions_stored_after_the_last_checkpoint_are_counted_on_resume(
    intake: Intake, replay: ReplayBuffer
) -> None:
    store_segment(intake, ACTOR, segment(1), reserve(replay))
    state = intake.state()
    store_segment(intake, ACTOR, segment(2), reserve(replay))
    again = Intake(SPEC, replay, "int8", published_version=lambda: 5)
    again.load_state(state)
    again.account_for(replay.total_transitions)
    assert again.statistics().transitions_by_scheme == {"int8": 16}
    again.account_for(replay.total_transitions)
    assert again.statistics().transitions_by_scheme == {"int8": 16}


@pytest.mark.parametrize(
    ("scheme", "counted", "stored", "expected"),
    [
        ("auto", {"int8": 30, "fp32": 10}, 60, {"int8": 45, "fp32": 15}),
        # What cannot be shared out evenly goes to the scheme with the most.
        ("auto", {"int8": 20, "fp32": 10, "int4": 10}, 43, {"int8": 23, "fp32": 10, "int4": 10}),
        # A policy with nothing to quantize has acted as fp32 all along.
        ("int8", {"fp32": 16}, 24, {"fp32": 24}),
        ("int8", {}, 24, {"int8": 24}),
        ("auto", {}, 24, {"auto": 24}),
        ("int8", {"int8": 24}, 24, {"int8": 24}),
    ],
)
def test_uncounted_transitions_are_split_in_proportion_to_the_counted_ones(
    replay: ReplayBuffer, scheme: str, counted: dict[str, int], stored: int, expected: dict[str, int]
) -> None:
    intake = Intake(SPEC, replay, scheme, published_version=lambda: 5)
    intake.load_state({"episodes": {"count": 0, "returns": []}, "staleness": [], "transitions_by_scheme": counted})
    intake.account_for(stored)
    assert intake.statistics().transitions_by_scheme == expected
    assert sum(expected.values()) == stored


def test_the_returns_of_agents_are_counted_and_outlive_the_learner(tmp_path: Path) -> None:
    spec = replace(SPEC, agents=("red", "green"))
    store = ReplayStore.open(tmp_path / "team", spec, 400, rows_per_segment=4)
    limiter = RateLimiter(4.0, 8, 1000.0, lambda: 0.0)
    replay = ReplayBuffer(store, UniformSampler(store, np.random.default_rng(0)), limiter, Returns(1, 0.9))
    intake = Intake(spec, replay, "int8", published_version=lambda: 5)
    assert intake.statistics().agent_returns == {}
    valid = np.ones((4, 2), np.bool_)
    valid[1, 1] = valid[3] = False
    episodes = (Episode(3.0, 2, 0, agent_returns=(1.0, 2.0)), Episode(5.0, 2, 0, agent_returns=(2.0, 3.0)))
    sent = replace(segment(1), episodes=episodes).with_columns(valid=valid, present=np.ones_like(valid))
    # A segment of one environment has the credit of its four environment steps.
    store_segment(intake, ACTOR, sent, reserve(replay, 4))
    found = intake.statistics()
    assert (found.mean_return, found.agent_returns) == (4.0, {"red": 1.5, "green": 2.5})
    assert replay.total_transitions == 3
    assert found.transitions_by_scheme == {"int8": 3}
    again = Intake(spec, replay, "int8", published_version=lambda: 5)
    again.load_state(json.loads(json.dumps(intake.state())))
    assert again.statistics().agent_returns == found.agent_returns
    replay.close()
