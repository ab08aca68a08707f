"""Evaluations: fixed shares, a pinned policy, greedy actions."""

import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from actor_service.counts import ActorCounts
from actor_service.environments import make_environments
from actor_service.roles.evaluation import MOST_ENVIRONMENTS, MOST_FAILED, EvaluationEpisodes, batch_size
from actorq.domain.policy import Policy
from actorq.domain.status import Sampling
from actorq.domain.trajectory import Episode, Evaluation
from actorq.errors import ActorQError, InvalidInputError, UnavailableError
from tests.actor_service.actor_policies import (
    all_in_float,
    as_policy,
    constant_policy,
    gaussian_policy,
    logits_policy,
    noisy_policy,
    random_policy,
)


def cartpoles(episodes: int) -> EvaluationEpisodes:
    return EvaluationEpisodes(make_environments("CartPole-v1", min(episodes, MOST_ENVIRONMENTS)), episodes)


def evaluate(episodes: int, seed: int = 1, policy_seed: int = 0, taken: list[Episode] | None = None) -> Evaluation:
    evaluator = cartpoles(episodes)
    try:
        policy = evaluator.load(random_policy(4, 2, policy_seed, version=6))
        return evaluator.run(policy, seed, 3, threading.Event(), on_episode=(taken if taken is not None else []).append)
    finally:
        evaluator.close()


def test_every_environment_runs_its_share_and_none_runs_more() -> None:
    taken: list[Episode] = []
    evaluation = evaluate(40, taken=taken)
    # 40 episodes in 32 environments: eight of them run two.
    shares = Counter(episode.environment for episode in taken)
    assert [shares[index] for index in range(32)] == [2] * 8 + [1] * 24
    assert evaluation.returns == tuple(episode.episode_return for episode in taken)
    assert evaluation.lengths == tuple(episode.length for episode in taken)


def test_the_episodes_are_the_first_ones_of_each_environment() -> None:
    taken: list[Episode] = []
    evaluate(40, seed=9, taken=taken)
    environments, policy = make_environments("CartPole-v1", 32), cartpoles(32).load(random_policy(4, 2))
    observations = environments.reset(9)
    first: dict[int, list[Episode]] = {index: [] for index in range(32)}
    while any(len(episodes) < 2 for episodes in first.values()):
        step = environments.step(policy(observations).argmax(axis=1))
        observations = step.observations
        for episode in step.episodes:
            first[episode.environment].append(episode)
    for index in range(32):
        expected = first[index][: 2 if index < 8 else 1]
        assert [episode for episode in taken if episode.environment == index] == expected


def test_a_policy_is_called_with_as_many_rows_as_in_an_actor() -> None:
    whole, parts = (EvaluationEpisodes(make_environments("CartPole-v1", 12), 15, rows=rows) for rows in (0, 4))
    called: list[int] = []

    def run(evaluator: EvaluationEpisodes) -> Evaluation:
        policy = evaluator.load(random_policy(4, 2))
        policy.on_observations = lambda _, rows: called.append(len(rows))
        evaluation = evaluator.run(policy, 5, 1, threading.Event())
        evaluator.close()
        return replace(evaluation, duration_s=0.0)

    expected = run(whole)
    assert set(called) == {12}
    calls = len(called)
    called.clear()
    assert run(parts) == expected
    assert called == [4] * (3 * calls)


@pytest.mark.parametrize(
    ("episodes", "rows", "environments"),
    [(20, 8, 24), (20, 1, 20), (100, 8, 32), (100, 5, 30), (3, 3, 3), (40, 32, 32)],
)
def test_as_many_episodes_as_possible_run_at_once(episodes: int, rows: int, environments: int) -> None:
    assert batch_size(episodes, rows) == environments


def test_an_evaluation_names_its_policy() -> None:
    began = time.monotonic()
    evaluation = evaluate(3)
    assert 0 < evaluation.duration_s <= time.monotonic() - began
    assert (evaluation.sequence, evaluation.policy_version, evaluation.learner_step) == (3, 6, 60)
    assert evaluation.scheme == "int8-weights"
    assert len(evaluation.returns) == 3
    assert evaluation.mean_return == pytest.approx(np.mean(evaluation.lengths))


def test_an_evaluation_names_the_scheme_that_acted_and_not_the_requested_one() -> None:
    evaluator = cartpoles(1)
    policy = evaluator.load(all_in_float(random_policy(4, 2), "int8-weights"))
    assert evaluator.run(policy, 0, 1, threading.Event()).scheme == "fp32"
    evaluator.close()


def test_the_same_seed_gives_the_same_episodes() -> None:
    assert evaluate(5, seed=1).returns == evaluate(5, seed=1).returns != evaluate(5, seed=2).returns


def test_actions_are_greedy() -> None:
    evaluator = cartpoles(4)
    for action in (0, 1):
        policy = evaluator.load(constant_policy([float(action == 0), float(action == 1)]))
        lengths = evaluator.run(policy, 0, 1, threading.Event()).lengths
        # Always to the same side: the pole falls within some ten steps.
        assert max(lengths) <= 11
    evaluator.close()


def test_an_evaluation_stops_when_the_actor_ends() -> None:
    evaluator, stop = cartpoles(40), threading.Event()
    policy = evaluator.load(random_policy(4, 2))
    taken: list[Episode] = []

    def stop_after_the_first(episode: Episode) -> None:
        taken.append(episode)
        stop.set()

    with pytest.raises(UnavailableError, match="stopped"):
        evaluator.run(policy, 0, 1, stop, stop_after_the_first)
    assert 1 <= len(taken) < 40
    evaluator.close()


def test_a_policy_that_does_not_fit_is_refused() -> None:
    evaluator = cartpoles(2)
    for policy in (as_policy(b"garbage"), random_policy(5, 2), random_policy(4, 3)):
        with pytest.raises(InvalidInputError):
            evaluator.load(policy)
    evaluator.close()


def test_an_environment_that_fails_in_every_episode_is_given_up() -> None:
    counts = ActorCounts()
    evaluator = EvaluationEpisodes(make_environments("environment_doubles:Fragile-v0", 1), 1, counts)
    policy = evaluator.load(constant_policy([0.0] * 3, 2))
    with pytest.raises(ActorQError, match=f"Fragile-v0 .*{MOST_FAILED} episodes.*RuntimeError: "):
        evaluator.run(policy, 0, 1, threading.Event())
    assert counts.environment_restarts.value == MOST_FAILED
    evaluator.close()


def test_a_stochastic_policy_is_evaluated_without_its_noise() -> None:
    # Its action is the sum of Pendulum's observation, for any noise.
    environments = make_environments("Pendulum-v1", 1)
    expected, observations = 0.0, environments.reset(5)
    for _ in range(200):
        step = environments.step(observations.sum(axis=1, keepdims=True))
        expected += float(step.rewards[0])
        observations = step.observations
    environments.close()
    evaluator = EvaluationEpisodes(make_environments("Pendulum-v1", 1), 1)
    policy = evaluator.load(noisy_policy(3, 1))
    assert policy.takes_noise
    assert evaluator.run(policy, 5, 1, threading.Event()).mean_return == pytest.approx(expected)
    evaluator.close()


def sampled_returns(policy: Policy, environment: str, seed: int, sampling: Sampling = "clipped") -> tuple[float, ...]:
    evaluator = EvaluationEpisodes(make_environments(environment, 4), 8, sampling=sampling)
    loaded = evaluator.load(policy)
    returns = evaluator.run(loaded, seed, 1, threading.Event()).returns
    evaluator.close()
    return returns


def test_actions_are_drawn_where_that_is_wanted() -> None:
    # Greedy actions go always to the same side, so that the pole falls within some ten steps.
    policy = logits_policy([0.01, 0.0])
    sampled = sampled_returns(policy, "CartPole-v1", 3)
    assert max(sampled_returns(policy, "CartPole-v1", 3, "")) <= 11 < max(sampled)
    assert sampled == sampled_returns(policy, "CartPole-v1", 3) != sampled_returns(policy, "CartPole-v1", 4)


def test_drawn_continuous_actions_are_those_of_the_environment() -> None:
    # Nearly no noise, and a mean far beyond the bounds: for all draws, the torque is the highest one.
    environments = make_environments("Pendulum-v1", 1)
    environments.reset(5)
    expected = sum(float(environments.step(np.full((1, 1), 2.0, np.float32)).rewards[0]) for _ in range(200))
    environments.close()
    for sampling in ("clipped", "squashed"):
        evaluator = EvaluationEpisodes(make_environments("Pendulum-v1", 1), 1, sampling=sampling)
        policy = evaluator.load(gaussian_policy([100.0], [-5.0], 3))
        assert evaluator.run(policy, 5, 1, threading.Event()).mean_return == pytest.approx(expected)
        evaluator.close()


def test_a_policy_that_tells_no_distribution_is_only_evaluated_greedily() -> None:
    evaluator = EvaluationEpisodes(make_environments("CartPole-v1", 1), 1, sampling="clipped")
    with pytest.raises(InvalidInputError, match=r"logits, .*q_values"):
        evaluator.load(random_policy(4, 2))
    evaluator.close()


def test_its_environments_are_closed_with_it() -> None:
    environments = make_environments("environment_doubles:Unclosable-v0", 2)
    singles = [single.unwrapped for single in environments._singles]  # type: ignore[attr-defined]
    EvaluationEpisodes(environments, 2).close()
    assert [single.closed for single in singles] == [True] * 2
