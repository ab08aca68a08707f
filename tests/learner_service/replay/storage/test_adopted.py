"""A store adopts the segments of another run's replay, and the other run's files stay as they are."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from actorq.domain.columns import GREEDY_ACTIONS
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import Segment
from actorq.errors import ExhaustedError, UserError
from learner_service.replay import RateLimiter, ReplayBuffer, ReplayStore, Returns, UniformSampler, actor_key
from learner_service.replay.storage.adopted import adopt, adoptable
from learner_service.replay.storage.columns import VALID
from learner_service.replay.storage.mapped_files import read_checked, write_checked
from learner_service.replay.storage.verify import verify
from tests.builders.clocks import ManualClock
from tests.builders.segments import changed
from tests.learner_service.replay.replay_segments import SPEC, STACKED, kill, plain_segment, random_segment, source

CONTINUOUS = EnvironmentSpec("Test-v0", ArraySpec((2,), "float32"), ArraySpec((1,), "float32", (-1.0,), (1.0,)))


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def filled(folder: Path, *segments: Segment, spec: EnvironmentSpec = SPEC, capacity: int = 100) -> Path:
    store = ReplayStore.open(folder, spec, capacity)
    for each in segments:
        store.insert(each, source(each.sequence))
    store.close()
    return folder


def _check_and_adopt(folder: Path, store: ReplayStore) -> None:
    adoptable(folder, ())
    adopt(folder, store)


def buffer(store: ReplayStore, min_size: int = 8) -> ReplayBuffer:
    limiter = RateLimiter(4.0, min_size, 1000.0, ManualClock())
    return ReplayBuffer(store, UniformSampler(store, np.random.default_rng(0)), limiter, Returns(3, 0.9))


@pytest.mark.parametrize("stack", [1, 3])
def test_every_row_is_that_of_the_other_run_but_its_policy_version(stack: int, tmp_path: Path) -> None:
    spec, rng = (SPEC if stack == 1 else STACKED), np.random.default_rng(0)
    segments = [random_segment(rng, 5, 2, sequence, frame_stack=stack) for sequence in range(4)]
    filled(tmp_path / "there", *segments, spec=spec)
    there = ReplayStore.open(tmp_path / "there", spec, 100)
    here = ReplayStore.open(tmp_path / "here", spec, 100)
    assert adopt(tmp_path / "there", here) == here.transitions == there.transitions > 0
    for name in ("observations", "actions", "rewards", "flags", "ages"):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name))
    assert there.policy_versions.any()
    assert not here.policy_versions.any()


def test_adopted_transitions_are_none_of_this_run_also_after_a_restart(tmp_path: Path) -> None:
    filled(tmp_path / "there", *map(plain_segment, range(5)))
    store = ReplayStore.open(tmp_path / "here", SPEC, 100)
    adopt(tmp_path / "there", store)
    assert (store.transitions, store.total_transitions) == (20, 0)
    kill(store)
    store = ReplayStore.open(tmp_path / "here", SPEC, 100)
    assert (store.transitions, store.total_transitions) == (20, 0)
    store.insert(plain_segment(9), source(9))
    store.close()
    store = ReplayStore.open(tmp_path / "here", SPEC, 100)
    assert (store.transitions, store.total_transitions) == (24, 4)
    assert {finding.state for finding in verify(tmp_path / "here")} <= {"whole", "unchecked"}


def test_an_actor_of_the_same_name_and_incarnation_stores_the_same_sequences(tmp_path: Path) -> None:
    filled(tmp_path / "there", *map(plain_segment, range(3)))
    store = ReplayStore.open(tmp_path / "here", SPEC, 100)
    adopt(tmp_path / "there", store)
    assert store.sequences.last(actor_key("actor-0"), 7, -1) == -1
    assert store.insert(plain_segment(0), source(0)) is not None


def test_windows_go_on_into_the_next_segment_of_an_actor(tmp_path: Path) -> None:
    first = plain_segment(0)
    second = plain_segment(1)
    observations = second.observations.copy()
    observations[0] = first.observations[-1]
    filled(tmp_path / "there", first, changed(second, observations=observations, follows=True))
    store = ReplayStore.open(tmp_path / "here", SPEC, 100)
    adopt(tmp_path / "there", store)
    assert store.next_rows[3] == 5


def test_a_smaller_ring_takes_the_newest_segments(tmp_path: Path) -> None:
    filled(tmp_path / "there", *map(plain_segment, range(10)))
    store = ReplayStore.open(tmp_path / "here", SPEC, 23)
    assert adopt(tmp_path / "there", store) == 16
    assert [record.source.sequence for record in store.segments.live] == [6, 7, 8, 9]


def test_the_other_files_do_not_change_although_their_learner_is_running(tmp_path: Path) -> None:
    there = ReplayStore.open(tmp_path / "there", SPEC, 23)
    for sequence in range(9):
        there.insert(plain_segment(sequence), source(sequence))
    before = digests(tmp_path / "there")
    store = ReplayStore.open(tmp_path / "here", SPEC, 100)
    assert adopt(tmp_path / "there", store) == there.transitions
    assert digests(tmp_path / "there") == before
    assert there.insert(plain_segment(9), source(9)) is not None


def test_a_segment_that_is_overwritten_meanwhile_is_left_out(tmp_path: Path) -> None:
    filled(tmp_path / "there", *map(plain_segment, range(5)))
    with (tmp_path / "there" / "rewards.bin").open("r+b") as file:
        file.seek(4 * 11)
        file.write(b"\x7f")
    store = ReplayStore.open(tmp_path / "here", SPEC, 100)
    assert adopt(tmp_path / "there", store) == 16
    assert [record.source.sequence for record in store.segments.live] == [0, 1, 3, 4]


def test_updates_begin_at_once_and_keep_the_pace_of_the_new_transitions(tmp_path: Path) -> None:
    filled(tmp_path / "there", *map(plain_segment, range(5)))
    store = ReplayStore.open(tmp_path / "here", SPEC, 100)
    adopt(tmp_path / "there", store)
    replay = buffer(store)
    assert replay.limiter.missing == 0
    assert replay.draw(8)[0].returns.shape == (8,)
    # As after the first min_size transitions of a run that begins empty.
    assert replay.limiter.can_sample(1000)
    assert not replay.limiter.can_sample(1001)
    replay.limiter.sample(1000)
    assert replay.limiter.try_reserve(4)
    replay.insert(plain_segment(0), source(0), 4)
    assert replay.limiter.can_sample(16)
    assert not replay.limiter.can_sample(17)
    state = replay.state_dict()
    replay.close()
    again = buffer(ReplayStore.open(tmp_path / "here", SPEC, 100))
    again.load_state_dict(state)
    assert (again.limiter.inserts, again.limiter.missing) == (4, 0)
    assert again.limiter.can_sample(16)
    assert not again.limiter.can_sample(17)


def test_fewer_transitions_than_the_minimum_are_filled_up(tmp_path: Path) -> None:
    filled(tmp_path / "there", *map(plain_segment, range(5)))
    store = ReplayStore.open(tmp_path / "here", SPEC, 100)
    adopt(tmp_path / "there", store)
    assert buffer(store, min_size=30).limiter.missing == 10


def test_columns_that_the_run_does_not_have_are_left_out(tmp_path: Path) -> None:
    there = ReplayStore.open(tmp_path / "there", CONTINUOUS, 100, (GREEDY_ACTIONS,))
    actions = np.zeros((4, 1, 1), np.float32)
    there.insert(changed(plain_segment(0), actions=actions, **{GREEDY_ACTIONS: actions}), source(0))
    there.close()
    store = ReplayStore.open(tmp_path / "here", CONTINUOUS, 100)
    assert adopt(tmp_path / "there", store) == 4
    assert np.count_nonzero(store.flags & VALID) == 4
    assert adoptable(tmp_path / "there", (GREEDY_ACTIONS,)).observations == CONTINUOUS.observations


def test_a_column_that_is_missing_there_is_told_with_the_flag(tmp_path: Path) -> None:
    filled(tmp_path / "there", spec=CONTINUOUS)
    with pytest.raises(UserError, match=r"greedy_actions.*--no-dynamic-capacity\.enabled.*--init-replay"):
        adoptable(tmp_path / "there", (GREEDY_ACTIONS,))


@pytest.mark.parametrize("damage", ["no folder", "description", "format", "column"])
def test_a_replay_that_cannot_be_read_is_told_in_one_line(damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    if damage != "no folder":
        filled(folder, plain_segment(0))
    if damage == "description":
        for path in folder.glob("meta*.json"):
            path.write_text("{}")
    if damage == "format":
        for path in folder.glob("meta*.json"):
            write_checked(path, {**read_checked(path), "format_version": 99})
    if damage == "column":
        (folder / "rewards.bin").unlink()
    with pytest.raises(UserError, match=r"init_replay: .*leave --init-replay out") as raised:
        _check_and_adopt(folder, ReplayStore.open(tmp_path / "here", SPEC, 100))
    assert "\n" not in str(raised.value)
    assert "start empty" not in str(raised.value)


def test_a_replay_without_transitions_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "there")
    store = ReplayStore.open(tmp_path / "here", SPEC, 100)
    with pytest.raises(UserError, match="expected transitions"):
        adopt(tmp_path / "there", store)


def test_segments_of_more_than_half_of_the_ring_are_refused(tmp_path: Path) -> None:
    filled(tmp_path / "there", plain_segment(0, steps=12))
    store = ReplayStore.open(tmp_path / "here", SPEC, 20)
    with pytest.raises(ExhaustedError, match="half of 20 rows"):
        adopt(tmp_path / "there", store)
