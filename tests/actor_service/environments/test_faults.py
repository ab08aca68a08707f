"""Environments that raise or return NaN: they continue, the others are not affected, and the caller gets the faults."""

import re
from itertools import pairwise

import numpy as np
import pytest

from actor_service.environments import Environments, make_environments
from actor_service.environments.failures import MOST_FAULTS, MOST_FAULTS_AT_START
from actorq.errors import ActorQError, UserError

FINE, FATAL = 0, 2


def doubles(name: str, count: int = 3) -> Environments:
    environments = make_environments(f"environment_doubles:{name}-v0", count)
    environments.reset(0)
    return environments


def actions(*fatal: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array([FATAL if index in fatal else FINE for index in range(3)])


@pytest.mark.parametrize(
    ("name", "restarted", "fact"),
    [
        ("NaNReward", False, r"1e\+09"),
        ("HugeReward", False, r"1e\+09"),
        ("InfiniteObservation", False, r"1e\+09"),
        ("Raising", True, "^RuntimeError: the simulator is gone"),
        ("LongObservation", True, r"observation .*float32\[2\] .*float32\[3\]"),
        ("VectorReward", True, r"reward .*array\(\[1\.\]\)"),
        ("EndlessReward", True, "^OverflowError: "),
        ("UnreadableObservation", True, r"^RuntimeError: call detach\(\) first"),
    ],
)
def test_an_environment_that_fails_begins_a_new_episode(name: str, restarted: bool, fact: str) -> None:
    environments = doubles(name)
    for _ in range(4):
        assert environments.step(actions()).faults == ()
    step = environments.step(actions(1))
    assert [(fault.environment, fault.restarted) for fault in step.faults] == [(1, restarted)]
    assert re.search(fact, step.faults[0].reason)
    # Nothing is left of the failed episode. A recreated environment counts its episodes from 1.
    np.testing.assert_array_equal(step.observations, [[5, 1], [0, 1 if restarted else 2], [5, 1]])
    np.testing.assert_array_equal(step.rewards, [1, 0, 1])
    np.testing.assert_array_equal(step.valid, [True, False, True])
    assert not (step.terminated | step.truncated).any()
    assert step.episodes == ()
    np.testing.assert_array_equal(environments.lengths, [5, 0, 5])
    after = environments.step(actions())
    assert after.valid.all()
    assert after.faults == ()
    np.testing.assert_array_equal(after.observations[:, 0], [6, 1, 6])
    environments.close()


def test_episodes_after_a_failure_are_whole_and_count_from_zero() -> None:
    environments = doubles("NaNReward")
    for _ in range(4):
        environments.step(actions())
    environments.step(actions(1))
    episodes = [episode for _ in range(20) for episode in environments.step(actions()).episodes]
    assert {(episode.length, episode.episode_return) for episode in episodes} == {(12, 12.0)}
    assert {episode.environment for episode in episodes} == {0, 1, 2}


def test_an_episode_that_fails_at_its_limit_has_no_end() -> None:
    environments = doubles("NaNReward")
    for _ in range(11):
        environments.step(actions())
    step = environments.step(actions(1))
    np.testing.assert_array_equal(step.truncated, [True, False, True])
    assert [episode.environment for episode in step.episodes] == [0, 2]
    following = environments.step(actions())
    np.testing.assert_array_equal(following.valid, [False, True, False])
    np.testing.assert_array_equal(environments.lengths, [0, 1, 0])


def test_an_action_at_a_reset_is_ignored_even_if_it_would_be_fatal() -> None:
    environments = doubles("Raising")
    for _ in range(12):
        environments.step(actions())
    step = environments.step(actions(0, 1, 2))
    assert step.faults == ()
    assert not step.valid.any()


@pytest.mark.parametrize("name", ["Raising", "NaNReward"])
def test_an_environment_that_fails_at_every_step_is_given_up(name: str) -> None:
    environments = doubles(name)
    environments.step(actions())
    for _ in range(MOST_FAULTS - 1):
        assert len(environments.step(actions(0)).faults) >= 1
    with pytest.raises(ActorQError, match=f"{name}-v0 .*{MOST_FAULTS} times"):
        environments.step(actions(0))


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("AlwaysRaising", r"RuntimeError: no license for the simulator \(.*environment_doubles.py:\d+\)"),
        ("AlwaysExiting", r"sys\.exit\(3\) \(.*environment_doubles.py:\d+\)"),
        ("FourValues", "ValueError: .*reset .*step "),
        ("NoReward", r"1e\+09: .* reward None"),
    ],
)
def test_an_environment_that_never_takes_a_good_step_is_a_users_mistake(name: str, fact: str) -> None:
    environments = doubles(name)
    for _ in range(MOST_FAULTS_AT_START - 1):
        environments.step(actions())
    with pytest.raises(UserError, match=f"{name}-v0 .*{fact}"):
        environments.step(actions())


def test_an_environment_that_fails_now_and_then_is_not_given_up() -> None:
    environments = doubles("Raising")
    faults = 0
    for _ in range(3 * MOST_FAULTS):
        faults += len(environments.step(actions(0)).faults)
        environments.step(actions())
    assert faults > 2 * MOST_FAULTS


def test_an_environment_that_cannot_begin_an_episode_is_given_up() -> None:
    environments = make_environments("environment_doubles:AlwaysNaN-v0", 2)
    with pytest.raises(UserError, match=r"1e\+09 .*first observation"):
        environments.reset(0)


@pytest.mark.parametrize("number", [np.nan, np.inf, 2e9, -3e38])
def test_a_number_out_of_range_is_found_among_large_ones(number: float) -> None:
    environments = doubles("Counting")
    columns = environments._columns  # type: ignore[attr-defined]
    columns.observations[:] = -1e9
    assert columns.broken() == []
    columns.observations[2, 1] = number
    assert columns.broken() == [2]


def test_lengths_never_jump() -> None:
    environments = doubles("Raising")
    rng = np.random.default_rng(0)
    rows = [environments.lengths.copy()]
    for _ in range(200):
        environments.step(actions(*np.flatnonzero(rng.random(3) < 0.05)))
        rows.append(environments.lengths.copy())
    for one, following in pairwise(rows):
        assert ((following == one + 1) | (following == 0)).all()
    assert max(row.max() for row in rows) == 12


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("NoObservation", r"float32\[2\] .*float32\[2, 2\]"),
        ("NoInfo", r"reset .*info.*float32\[2\]"),
        ("NoSeed", "TypeError: .*'seed'"),
    ],
)
def test_an_environment_whose_reset_breaks_the_interface_is_given_up(name: str, fact: str) -> None:
    environments = make_environments(f"environment_doubles:{name}-v0", 2)
    with pytest.raises(UserError, match=fact):
        environments.reset(0)


def test_an_environment_may_keep_or_change_its_action() -> None:
    environments = doubles("Keeping", 2)
    actions = np.zeros((2, 1), np.float32)
    rewards = []
    for value in (0.1, 0.4, 0.2):
        # One array for all steps, as a policy's outputs are.
        actions[:] = value
        rewards.append(environments.step(actions).rewards.copy())
        np.testing.assert_array_equal(actions, np.full((2, 1), value, np.float32))
    np.testing.assert_allclose(rewards, [[0.0] * 2, [0.5] * 2, [0.6] * 2], atol=1e-6)


def test_all_environments_are_closed_also_when_one_close_fails() -> None:
    environments = doubles("Unclosable")
    singles = [single.unwrapped for single in environments._singles]  # type: ignore[attr-defined]
    environments.close()
    assert [single.closed for single in singles] == [True] * 3
