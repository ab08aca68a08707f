"""Targets begin with one step. They become longer permanently after enough inserts."""

import json
from pathlib import Path

import numpy as np
import pytest

from learner_service.replay import DelayedReturns, RateLimiter, ReplayBuffer, ReplayStore, Returns, UniformSampler
from tests.learner_service.replay.replay_segments import SPEC, plain_segment, source

ONE, THREE = Returns(1, 0.5), Returns(3, 0.5)


@pytest.mark.parametrize("after", [0.0, 8.0, 7.5])
def test_returns_are_longer_after_the_share(after: float) -> None:
    delayed = DelayedReturns(ONE, THREE, after)
    assert delayed.longest is THREE
    if after:
        assert delayed.at(7) is ONE
        assert delayed.since is None
    assert delayed.at(8) is THREE
    assert delayed.since == 8
    assert delayed.at(12) is THREE
    assert delayed.since == 8


def open_buffer(directory: Path, after: float) -> ReplayBuffer:
    store = ReplayStore.open(directory, SPEC, 400)
    sampler = UniformSampler(store, np.random.default_rng(0))
    limiter = RateLimiter(8.0, 4, 64.0, clock=lambda: 0.0)
    return ReplayBuffer(store, sampler, limiter, DelayedReturns(ONE, THREE, after))


def insert(buffer: ReplayBuffer, number: int) -> None:
    """Four transitions, each with a reward of 1."""
    segment = plain_segment(number)
    segment.rewards[:] = 1
    assert buffer.limiter.try_reserve(4)
    buffer.insert(segment, source(number), 4)


def largest_return(buffer: ReplayBuffer) -> float:
    batch, _ = buffer.draw(64)
    return float(batch.returns.max())


def test_a_resumed_run_draws_the_same_returns(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path, after=8)
    insert(buffer, 0)
    assert (largest_return(buffer), buffer.multi_step_since) == (1.0, None)
    early = buffer.state_dict()
    assert early["multi_step_since"] is None
    insert(buffer, 1)
    assert (largest_return(buffer), buffer.multi_step_since) == (1.75, 8)
    late = json.loads(json.dumps(buffer.state_dict()))
    insert(buffer, 2)
    buffer.close()

    # After a restore of an earlier checkpoint, the store shows that the time has come.
    buffer = open_buffer(tmp_path, after=8)
    buffer.load_state_dict(early)
    assert (largest_return(buffer), buffer.multi_step_since) == (1.75, 12)
    buffer.close()
    # Longer targets do not become short again because the budget was raised.
    buffer = open_buffer(tmp_path, after=80)
    assert largest_return(buffer) == 1.0
    buffer.load_state_dict(late)
    assert (largest_return(buffer), buffer.multi_step_since) == (1.75, 8)
    buffer.close()


def test_a_checkpoint_without_delayed_returns_is_accepted(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path, after=8)
    insert(buffer, 0)
    buffer.load_state_dict({"inserts": 4, "samples": 0, "moments": None})
    assert (largest_return(buffer), buffer.multi_step_since) == (1.0, None)
    buffer.close()
