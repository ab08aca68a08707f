"""The contract of all backends of environments."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from environment_doubles import copied
from numpy.typing import NDArray

from actor_service.environments import Backend, Environments, Step, make_environments
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Episode


@dataclass(frozen=True)
class Case:
    """An environment and a backend; `steps` of random actions hold ends, or more steps than the time limit."""

    environment_id: str
    backend: Backend
    steps: int

    def make(self, count: int = 3) -> Environments:
        return make_environments(self.environment_id, count, self.backend)


IDS = {
    "CartPole-v1": 120,
    "MountainCar-v0": 420,
    "Pendulum-v1": 420,
    "LunarLander-v3": 400,
    "LunarLanderContinuous-v3": 400,
    "Hopper-v5": 150,
    "dm_control/cartpole-swingup": 1_010,
    "ALE/Breakout-v5": 400,
}
CASES = [
    *(Case(environment_id, "python", steps) for environment_id, steps in IDS.items()),
    *(Case(environment_id, "envpool", steps) for environment_id, steps in IDS.items()),
]


def some_actions(spec: EnvironmentSpec, steps: int, count: int) -> NDArray[Any]:
    # A longer series begins as a shorter one does.
    rng = np.random.default_rng(0)
    if spec.sizes:
        return rng.integers(spec.acting_size, size=(steps, count))
    low, high = spec.actions.bounds()
    return rng.uniform(low, high, (steps, count, *spec.actions.shape)).astype(np.float32)


@dataclass(frozen=True)
class Played:
    """What `steps` steps gave: observations [T + 1, N, ...], steps, and lengths [T + 1, N]."""

    spec: EnvironmentSpec
    observations: NDArray[Any]
    steps: list[Step]
    lengths: NDArray[np.int64]

    def column(self, name: str) -> NDArray[Any]:
        return np.array([getattr(step, name) for step in self.steps])


def play(case: Case, seed: int, steps: int) -> Played:
    environments = case.make()
    observations, taken, lengths = [environments.reset(seed).copy()], [], [environments.lengths.copy()]
    for actions in some_actions(environments.spec, steps, environments.count):
        taken.append(copied(environments.step(actions)))
        observations.append(taken[-1].observations)
        lengths.append(environments.lengths.copy())
    environments.close()
    return Played(environments.spec, np.array(observations), taken, np.array(lengths))


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case.environment_id} {case.backend}")
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def played(case: Case) -> Played:
    return play(case, 5, case.steps)


def test_arrays_have_the_dtypes_and_shapes_of_the_spec(played: Played) -> None:
    spec = played.spec
    assert played.observations.shape[2:] == spec.observations.shape
    assert played.observations.dtype == spec.observations.dtype
    assert spec.observations.dtype in ("float32", "uint8")
    for name, dtype in (("rewards", "float32"), ("terminated", "bool"), ("truncated", "bool"), ("valid", "bool")):
        assert played.column(name).shape == (len(played.steps), 3), name
        assert played.column(name).dtype == dtype, name


def test_everything_is_finite_and_nothing_failed(played: Played) -> None:
    assert np.isfinite(played.observations).all()
    assert np.isfinite(played.column("rewards")).all()
    assert not any(step.faults for step in played.steps)


def test_actions_are_discrete_or_have_bounds(played: Played) -> None:
    spec = played.spec
    assert spec.actions.bounded != bool(spec.sizes)
    assert spec.actions.dtype == ("int64" if spec.sizes else "float32")


def test_the_step_after_an_end_only_resets(played: Played) -> None:
    ended = played.column("terminated") | played.column("truncated")
    assert ended.any()
    np.testing.assert_array_equal(~played.column("valid")[1:], ended[:-1])
    assert played.column("valid")[0].all()
    assert not (ended & ~played.column("valid")).any()
    assert (played.column("rewards")[~played.column("valid")] == 0.0).all()


def test_the_final_observation_is_kept_and_the_next_begins_an_episode(played: Played) -> None:
    resets = np.argwhere(~played.column("valid"))
    # Somewhere, at least, an episode does not begin as the one before ended.
    assert len(resets)
    assert any(not np.array_equal(played.observations[t, i], played.observations[t + 1, i]) for t, i in resets)
    if "CartPole" in played.spec.environment_id and "/" not in played.spec.environment_id:
        for step, index in resets:
            assert abs(played.observations[step, index, 2]) > 0.2 or abs(played.observations[step, index, 0]) > 2.4
            assert abs(played.observations[step + 1, index]).max() <= 0.05


def test_lengths_are_steps_since_the_reset(played: Played) -> None:
    expected = np.zeros(3, np.int64)
    for valid, lengths in zip(played.column("valid"), played.lengths[1:], strict=True):
        expected = np.where(valid, expected + 1, 0)
        np.testing.assert_array_equal(lengths, expected)
    assert not played.lengths[0].any()


def test_episodes_are_the_sums_of_their_rewards(played: Played) -> None:
    totals, lengths = np.zeros(3), np.zeros(3, np.int64)
    found = 0
    for step in played.steps:
        totals = np.where(step.valid, totals + step.rewards, 0.0)
        lengths = np.where(step.valid, lengths + 1, 0)
        ended = [int(index) for index in np.flatnonzero(step.terminated | step.truncated)]
        assert [episode.environment for episode in step.episodes] == ended
        for episode in step.episodes:
            assert isinstance(episode, Episode)
            assert episode.episode_return == pytest.approx(totals[episode.environment], rel=1e-4, abs=1e-4)
            assert episode.length == lengths[episode.environment]
            found += 1
    assert found


def test_no_episode_is_longer_than_the_limit_and_the_limit_truncates(played: Played) -> None:
    limit = played.spec.max_episode_steps
    assert 0 < played.lengths.max() <= limit
    at_limit = played.lengths[1:] == limit
    ended = played.column("terminated") | played.column("truncated")
    assert ended[at_limit].all()
    if played.spec.environment_id in ("Pendulum-v1", "dm_control/cartpole-swingup"):
        # These end by time alone.
        np.testing.assert_array_equal(played.column("truncated"), at_limit)
        assert at_limit.any()
        assert not played.column("terminated").any()


def test_a_seed_gives_the_same_episodes_and_another_gives_others(case: Case, played: Played) -> None:
    same, other = (play(case, seed, 60) for seed in (5, 6))
    np.testing.assert_array_equal(played.observations[:61], same.observations)
    for name in ("rewards", "terminated", "truncated", "valid"):
        np.testing.assert_array_equal(played.column(name)[:60], same.column(name), err_msg=name)
    assert not np.array_equal(same.observations, other.observations)


def test_environments_of_a_batch_differ(played: Played) -> None:
    columns = [played.observations[:30, index] for index in range(3)]
    assert not np.array_equal(columns[0], columns[1])
    assert not np.array_equal(columns[1], columns[2])


def test_a_reset_begins_anew(case: Case) -> None:
    environments = case.make()
    first = environments.reset(7).copy()
    for actions in some_actions(environments.spec, 25, 3):
        environments.step(actions)
    np.testing.assert_array_equal(environments.reset(7), first)
    assert not environments.lengths.any()
    assert environments.step(some_actions(environments.spec, 1, 3)[0]).valid.all()
    environments.close()


@pytest.mark.parametrize("backend", ["python", "envpool"])
def test_a_reset_forgets_the_ends_of_the_step_before(backend: Backend) -> None:
    environments = make_environments("CartPole-v1", 3, backend)
    try:
        environments.reset(1)
        push_right = np.ones(3, np.int64)
        while not (ended := environments.step(push_right)).terminated.any():
            pass
        assert ended.episodes
        environments.reset(2)
        assert not environments.step(push_right).terminated.any()
    finally:
        environments.close()


def test_the_actions_are_left_as_they_are(case: Case) -> None:
    environments = case.make()
    environments.reset(1)
    actions = some_actions(environments.spec, 1, 3)[0]
    before = actions.copy()
    environments.step(actions)
    np.testing.assert_array_equal(actions, before)
    environments.close()
