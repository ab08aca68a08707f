"""Evaluations in marked episodes: who claims them, and what they may cost."""

import threading
from concurrent.futures import Future

import pytest

from actor_service.external.acting.evaluation import MarkedEpisodes, StepBudget, StreamEvaluation
from actor_service.external.acting.sizes import SizedLoader
from actorq.domain.trajectory import Episode, Evaluation
from actorq.errors import UnavailableError
from tests.actor_service.actor_policies import constant_policy
from tests.actor_service.external.simulators import DEADLINE_S, SPEC

POLICY = SizedLoader()(constant_policy([0.0, 1.0], version=5), SPEC, 1)


def begun(marked: MarkedEpisodes, episodes: int, stop: threading.Event) -> "Future[Evaluation]":
    """An evaluation that runs on another thread, once episodes can be claimed."""
    found: Future[Evaluation] = Future()

    def run() -> None:
        try:
            found.set_result(StreamEvaluation(marked, SPEC, episodes, 1).run(POLICY, 0, 3, stop))
        except UnavailableError as error:
            found.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    while marked.policy is None:
        thread.join(0.001)
    return found


def test_without_an_evaluation_no_episode_is_marked() -> None:
    assert not MarkedEpisodes().claim()


def test_exactly_the_wanted_episodes_are_claimed_and_their_results_are_sent() -> None:
    marked = MarkedEpisodes()
    found = begun(marked, 2, threading.Event())
    assert [marked.claim() for _ in range(3)] == [True, True, False]
    marked.ended(Episode(7.0, 5, 0, True))
    marked.ended(Episode(9.0, 3, 1, False))
    evaluation = found.result(DEADLINE_S)
    assert (evaluation.sequence, evaluation.policy_version, evaluation.learner_step) == (3, 5, 50)
    assert (evaluation.returns, evaluation.lengths, evaluation.successes) == ((7.0, 9.0), (5, 3), (True, False))
    assert not marked.claim()


def test_a_lost_episode_is_claimed_again() -> None:
    marked = MarkedEpisodes()
    found = begun(marked, 1, threading.Event())
    assert marked.claim()
    assert not marked.claim()
    marked.lost()
    assert marked.claim()
    marked.ended(Episode(1.0, 1, 0))
    assert found.result(DEADLINE_S).returns == (1.0,)


def test_an_evaluation_ends_with_its_actor() -> None:
    marked, stop = MarkedEpisodes(), threading.Event()
    found = begun(marked, 1, stop)
    stop.set()
    marked.wake()
    with pytest.raises(UnavailableError, match="because the actor ends"):
        found.result(DEADLINE_S)


def test_evaluations_begin_while_they_cost_at_most_their_share_of_all_steps() -> None:
    marked = MarkedEpisodes()
    budget = StepBudget(marked, 0.2)
    assert budget.has_some(), "the first one begins at once"
    marked.steps = 100
    assert not budget.has_some()
    marked.explored = 399
    assert not budget.has_some()
    marked.explored = 400
    assert budget.has_some()


def test_excused_steps_are_not_charged() -> None:
    marked = MarkedEpisodes()
    budget = StepBudget(marked, 0.2)
    marked.steps = 100
    budget.excuse()
    assert budget.has_some()
    marked.steps = 150
    assert not budget.has_some()
