"""Starts of sequences are drawn uniformly, or in proportion to one priority each."""

from pathlib import Path

import numpy as np
import pytest

from tests.learner_service.replay.recurrent.sequence_replays import Coded


def filled(directory: Path, alpha: float, segments: int = 8) -> Coded:
    coded = Coded(directory, alpha=alpha)
    actor = coded.actor(2)
    for _ in range(segments):
        coded.insert(actor, 4)
    return coded


def test_uniform_draws_have_equal_shares(tmp_path: Path) -> None:
    coded = filled(tmp_path, 0.0)
    sampled = coded.sampler.sample(14_000)
    rows, counts = np.unique(sampled.rows, return_counts=True)
    assert len(rows) == len(coded.ready()) == 14
    assert counts.min() > 900
    assert (sampled.weights == 1).all()
    coded.replay.update_priorities(sampled, np.arange(14_000, dtype=np.float32))
    assert np.unique(coded.sampler.sample(14_000).rows, return_counts=True)[1].min() > 900
    coded.close()


def test_draws_follow_the_priorities(tmp_path: Path) -> None:
    coded = filled(tmp_path, 1.0)
    sampled = coded.sampler.sample(14)
    chosen = sampled.rows[0]
    coded.replay.update_priorities(sampled, np.where(sampled.rows == chosen, 8.0, 1.0).astype(np.float32))
    drawn = coded.sampler.sample(10_000)
    others = len(np.unique(drawn.rows)) - 1
    assert np.count_nonzero(drawn.rows == chosen) / 10_000 == pytest.approx(8 / (8 + others), rel=0.1)
    assert drawn.weights[drawn.rows == chosen].max() < drawn.weights[drawn.rows != chosen].min()
    coded.close()


def test_priorities_survive_a_restart(tmp_path: Path) -> None:
    coded = filled(tmp_path, 1.0)
    sampled = coded.sampler.sample(64)
    coded.replay.update_priorities(sampled, sampled.rows.astype(np.float32) + 1)
    before = coded.store.priorities.copy()
    coded.close()
    coded.open()
    np.testing.assert_array_equal(coded.store.priorities, before)
    drawn = coded.sampler.sample(10_000).rows
    rows, counts = np.unique(drawn, return_counts=True)
    np.testing.assert_allclose(counts / 10_000, before[rows] / before[rows].sum(), rtol=0.25)
    coded.close()


def test_a_start_becomes_ready_with_the_largest_priority(tmp_path: Path) -> None:
    coded = filled(tmp_path, 1.0, segments=2)
    sampled = coded.sampler.sample(8)
    coded.replay.update_priorities(sampled, np.full(8, 5.0, np.float32))
    coded.insert(coded.actors[0], 4)
    coded.insert(coded.actors[0], 4)
    rows = coded.store.segments.live[2].step_rows[0]
    assert (coded.store.priorities[rows] == np.float32(5.0) + np.float32(1e-6)).all()
    assert set(rows) < set(coded.sampler.sample(100).rows)
    coded.close()


def test_priorities_of_overwritten_starts_are_ignored(tmp_path: Path) -> None:
    coded = Coded(tmp_path, capacity=80, alpha=1.0)
    actor = coded.actor(2)
    for _ in range(8):
        coded.insert(actor, 4)
    sampled = coded.sampler.sample(16)
    for _ in range(8):
        coded.insert(actor, 4)
    before = coded.store.priorities.copy()
    coded.replay.update_priorities(sampled, np.full(16, 50.0, np.float32))
    np.testing.assert_array_equal(coded.store.priorities, before)
    coded.close()
