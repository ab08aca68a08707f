"""Batches with rows of a data set, and runs without actors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorq.domain.trajectory import PolicySpan, Segment
from actorq.errors import ConflictError, UserError
from learner_service.datasets.episodes import Episode
from learner_service.datasets.stored import StoredDataset, write
from learner_service.replay import (
    DelayedReturns,
    MixedReplay,
    OfflineReplay,
    PrioritizedSampler,
    RateLimiter,
    ReplayStore,
    Returns,
    SegmentSource,
    StoredRows,
    UniformSampler,
    UpdateLimiter,
)
from learner_service.replay.moments import ObservationMoments
from learner_service.replay.reward_scale import RewardScale
from tests.builders.clocks import ManualClock
from tests.learner_service.datasets.dataset_parts import SPEC, Recorded, episode, stored
from tests.learner_service.datasets.dataset_parts import arrays as recorded

OWN = 100.0


def own_segment(sequence: int, steps: int = 20) -> Segment:
    """Steps whose observations and rewards have values that the data set lacks."""
    ends = np.zeros((steps, 1), np.bool_)
    return Segment(
        sequence,
        {
            "observations": np.full((steps + 1, 1, 3), OWN, np.float32),
            "actions": np.zeros((steps, 1, 1), np.float32),
            "rewards": np.full((steps, 1), OWN, np.float32),
            "terminated": ends,
            "truncated": ends,
            "valid": ~ends,
            "ages": np.zeros(1, np.uint8),
        },
        (PolicySpan(0, 1, "int8"),),
    )


def mixed(
    tmp_path: Path, dataset: StoredDataset, rows: int = 2, prioritized: bool = False, **given: Any
) -> MixedReplay:
    """A replay with 40 own transitions, whose minibatches have 8 rows."""
    rng = np.random.default_rng(1)
    store = ReplayStore.open(tmp_path / "replay", SPEC, 1000)
    sampler = PrioritizedSampler(store, rng) if prioritized else UniformSampler(store, rng)
    limiter = RateLimiter(8.0, 8, 1000.0, ManualClock())
    returns = given.get("returns", Returns(1, 0.9))
    parts = (store, sampler, limiter, returns, None, None, given.get("scale"))
    replay = MixedReplay(*parts, stored=StoredRows(dataset.open(), rng), minibatch=8, rows=rows)
    for sequence in (1, 2):
        assert limiter.try_reserve(20)
        replay.insert(own_segment(sequence), SegmentSource.from_name("a", 1, sequence), 20)
    return replay


def is_own(batch: Any) -> Any:
    return (batch.observations == OWN).all(axis=1)


@pytest.mark.parametrize("rows", [2, 4, 7])
@pytest.mark.parametrize("reuse", [True, False])
def test_each_minibatch_has_its_rows_of_the_data_set(rows: int, reuse: bool, tmp_path: Path) -> None:
    replay = mixed(tmp_path, stored(tmp_path / "set"), rows)
    batch, sampled = replay.draw(24, replay.empty_batch(24) if reuse else None)
    np.testing.assert_array_equal(is_own(batch).reshape(3, 8), np.tile(np.arange(8) < 8 - rows, (3, 1)))
    assert len(sampled.rows) == len(sampled.weights) == 24
    given = recorded()
    for index in np.flatnonzero(~is_own(batch)):
        (row,) = np.flatnonzero((given["observations"].astype(np.float32) == batch.observations[index]).all(axis=1))
        assert batch.returns[index] == np.float32(given["rewards"][row])
        np.testing.assert_array_equal(batch.actions[index], given["actions"][row].astype(np.float32))
        following = given["next_observations"][row].astype(np.float32)
        np.testing.assert_array_equal(batch.bootstrap_observations[index], following)
        # A time limit is no terminal state.
        assert batch.bootstrap_discounts[index] == np.float32(0.9)
    replay.close()


def test_every_transition_of_the_data_set_is_drawn(tmp_path: Path) -> None:
    replay = mixed(tmp_path, stored(tmp_path / "set"))
    drawn = np.concatenate([replay.draw(8)[0].returns[6:] for _ in range(200)])
    assert {*drawn} == {*recorded()["rewards"].astype(np.float32)}
    replay.close()


def test_the_same_generator_draws_the_same_batches(tmp_path: Path) -> None:
    dataset = stored(tmp_path / "set")
    first, second = (mixed(tmp_path / name, dataset) for name in "ab")
    for _ in range(3):
        np.testing.assert_array_equal(first.draw(16)[0].observations, second.draw(16)[0].observations)
    first.close()
    second.close()


def test_priorities_of_the_data_set_change_no_row_of_the_replay(tmp_path: Path) -> None:
    replay = mixed(tmp_path, stored(tmp_path / "set"), rows=4, prioritized=True)
    _, sampled = replay.draw(8)
    before = replay._store.priorities.copy()
    own = sampled.rows[:4]
    replay.update_priorities(sampled, np.array([2.0] * 4 + [50.0] * 4, np.float32))
    after = replay._store.priorities
    np.testing.assert_allclose(after[own], 2.0, rtol=1e-5)
    others = np.setdiff1d(np.arange(len(after)), own)
    np.testing.assert_array_equal(after[others], before[others])
    np.testing.assert_array_equal(sampled.weights[4:], 1.0)
    replay.close()


def test_counts_are_those_of_the_runs_own_transitions(tmp_path: Path) -> None:
    replay = mixed(tmp_path, stored(tmp_path / "set"))
    assert replay.total_transitions == replay.transitions == replay.limiter.inserts == replay.progress == 40
    assert replay.state_dict()["stored"] == 40
    replay.close()


def test_both_parts_have_returns_of_as_many_steps(tmp_path: Path) -> None:
    returns = DelayedReturns(Returns(1, 0.5), Returns(3, 0.5), after=60)
    replay = mixed(tmp_path, stored(tmp_path / "set"), returns=returns)
    assert {*replay.draw(80)[0].bootstrap_discounts} == {np.float32(0.5)}
    assert replay.limiter.try_reserve(20)
    replay.insert(own_segment(3), SegmentSource.from_name("a", 1, 3), 20)
    batch, _ = replay.draw(80)
    assert np.float32(0.125) in batch.bootstrap_discounts[~is_own(batch)]
    assert np.float32(0.125) in batch.bootstrap_discounts[is_own(batch)]
    replay.close()


def test_rewards_of_both_parts_have_the_scale_of_the_run(tmp_path: Path) -> None:
    scale = RewardScale(0.9, bound=5.0)
    replay = mixed(tmp_path, stored(tmp_path / "set"), scale=scale)
    batch, _ = replay.draw(8)
    assert scale.divisor > 10
    np.testing.assert_allclose(batch.returns[:6], OWN / scale.divisor, rtol=1e-5)
    unscaled = batch.returns[6:] * scale.divisor
    assert all(np.isclose(recorded()["rewards"], value, rtol=1e-4).any() for value in unscaled)
    replay.close()


def offline(tmp_path: Path, dataset: StoredDataset, updates: int = 4, **given: Any) -> OfflineReplay:
    """A replay without actors, whose updates have 8 rows."""
    limiter = UpdateLimiter(updates * 8, ManualClock())
    rng = np.random.default_rng(1)
    returns = given.pop("returns", Returns(1, 0.9))
    return OfflineReplay(dataset.open(), rng, limiter, returns, 8, tmp_path, **given)


def test_an_offline_replay_has_no_transitions_of_the_run(tmp_path: Path) -> None:
    replay = offline(tmp_path, stored(tmp_path / "set"))
    assert (replay.total_transitions, replay.transitions, replay.limiter.missing) == (0, 30, 0)
    batch, _ = replay.draw(16)
    assert {*batch.returns} <= {*recorded()["rewards"].astype(np.float32)}
    assert not replay.limiter.try_reserve(1)
    with pytest.raises(ConflictError, match="the run is offline"):
        replay.insert(own_segment(1), SegmentSource.from_name("a", 1, 1), 0)
    replay.close()


def test_its_limiter_allows_the_updates_of_the_budget(tmp_path: Path) -> None:
    replay = offline(tmp_path, stored(tmp_path / "set"), updates=4)
    for update in range(4):
        assert replay.progress == update
        assert replay.limiter.await_sample(8, 0.0)
        replay.limiter.sample(8)
    assert not replay.limiter.await_sample(8, 0.0)
    state = replay.state_dict()
    again = offline(tmp_path, StoredDataset.read(tmp_path / "set"), updates=5)
    again.load_state_dict(state)
    assert (again.progress, again.limiter.can_sample(8)) == (4, True)
    replay.close()
    again.close()


def test_its_schedules_follow_the_updates(tmp_path: Path) -> None:
    returns = DelayedReturns(Returns(1, 0.5), Returns(3, 0.5), after=2)
    replay = offline(tmp_path, stored(tmp_path / "set"), returns=returns)
    assert {*replay.draw(80)[0].bootstrap_discounts} == {np.float32(0.5)}
    replay.limiter.sample(16)
    assert np.float32(0.125) in replay.draw(80)[0].bootstrap_discounts
    assert replay.multi_step_since == 2
    replay.close()


def test_its_normalizer_counts_every_stored_observation_once(tmp_path: Path) -> None:
    replay = offline(tmp_path, stored(tmp_path / "set"), moments=ObservationMoments((3,)))
    for _ in range(2):
        moments = replay.observation_moments()
        assert moments is not None
        np.testing.assert_allclose(moments[0], recorded()["observations"].mean(axis=0), rtol=1e-5)
    replay.close()


def test_an_offline_replay_writes_nothing(tmp_path: Path) -> None:
    dataset = stored(tmp_path / "set")
    before = {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()}
    replay = offline(tmp_path, dataset)
    replay.draw(8)
    replay.flush()
    assert replay.reserve_ahead()
    replay.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()} == before


@pytest.mark.parametrize("make", [mixed, offline])
def test_a_data_set_that_is_damaged_while_it_is_read_ends_the_run_with_one_line(make: Any, tmp_path: Path) -> None:
    made: Episode = episode(np.random.default_rng(0), 5)
    write(tmp_path / "set", SPEC, Recorded(made))
    dataset = StoredDataset.read(tmp_path / "set")
    replay = make(tmp_path / "run", dataset)
    store = replay._stored._store if isinstance(replay, MixedReplay) else replay._store
    store.segments._unchecked = {record.index: record for record in store.segments.live}
    store.rewards[0] += 1
    with pytest.raises(UserError, match=r"every segment in .* is damaged; import the data again"):
        replay.draw(8)
