"""Epsilon-greedy, with a fixed generator."""

import numpy as np

from actor_service.exploration import EpsilonGreedy

VALUES = np.tile(np.array([0.0, 3.0, 1.0, 2.0], np.float32), (2, 1))


def rates(epsilons: list[float], draws: int = 8000) -> list[list[float]]:
    """How often each environment took each action."""
    explore = EpsilonGreedy(epsilons, actions=4, rng=np.random.default_rng(1))
    taken = np.array([explore(VALUES[: len(epsilons)]) for _ in range(draws)])
    return [list(np.bincount(column, minlength=4) / draws) for column in taken.T]


def test_without_epsilon_the_best_action_is_taken() -> None:
    assert rates([0.0, 0.0], draws=500) == [[0, 1, 0, 0]] * 2


def test_with_epsilon_1_all_actions_are_equally_likely() -> None:
    np.testing.assert_allclose(rates([1.0]), [[0.25] * 4], atol=0.015)


def test_every_environment_has_a_rate_of_its_own() -> None:
    lazy, keen = rates([0.1, 0.8])
    np.testing.assert_allclose(lazy, [0.025, 0.925, 0.025, 0.025], atol=0.01)
    np.testing.assert_allclose(keen, [0.2, 0.4, 0.2, 0.2], atol=0.015)


def test_actions_are_int64_and_follow_the_generator() -> None:
    first, second = (EpsilonGreedy([0.5, 0.5], 4, np.random.default_rng(3)) for _ in range(2))
    for _ in range(20):
        actions = first(VALUES)
        assert actions.dtype == np.int64
        assert actions.shape == (2,)
        np.testing.assert_array_equal(actions, second(VALUES))
