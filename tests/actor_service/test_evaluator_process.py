"""A whole evaluator in its process: in a run, and on its own."""

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actor_service.environments import make_environments
from actor_service.process import ActorSettings
from actor_service.roles.evaluation import EvaluationEpisodes
from actorq.arithmetic import arithmetic
from actorq.client import ActorClient
from actorq.config.run_config import RunConfig
from actorq.domain.policy import SCHEMES
from actorq.domain.trajectory import Episode, Evaluation
from actorq.errors import ExhaustedError, InvalidInputError, NotFoundError
from actorq.process import EXIT_OK
from actorq.v1 import learner_pb2
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedLearner, ScriptedQuantizer, membership
from tests.actor_service.actor_policies import constant_policy, linear_policy, logits_policy
from tests.actor_service.actor_process import (
    MANY,
    at_step,
    beside,
    first_policy,
    in_scheme,
    running_actor,
    standalone,
    status_when,
    stop,
)


def evaluate_when_free(client: ActorClient, episodes: int) -> list[Episode | Evaluation]:
    """The evaluation, requested again while the actor is busy with another one."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            return list(client.evaluate(episodes))
        except ExhaustedError:
            threading.Event().wait(0.01)
    raise AssertionError("the evaluation whose client hung up goes on")


def test_an_evaluation_gives_each_episode_and_then_all_of_them(quantizer: ScriptedQuantizer) -> None:
    quantizer.publish(constant_policy([0.0, 1.0], version=3))
    with running_actor(standalone(quantizer)) as (client, _):
        *episodes, evaluation = client.evaluate(5)
        assert isinstance(evaluation, Evaluation)
        assert evaluation.policy_version == 3
        assert all(isinstance(episode, Episode) for episode in episodes)
        assert len(episodes) == len(evaluation.returns) == 5


def test_an_evaluation_has_the_environments_own_rewards(quantizer: ScriptedQuantizer) -> None:
    clipped = {"gymnasium.wrappers:ClipReward": {"min_reward": 0.0, "max_reward": 0.5}}
    timed = {"gymnasium.wrappers:TimeLimit": {"max_episode_steps": 3}}
    quantizer.publish(constant_policy([0.0, 1.0]))
    with running_actor(
        standalone(quantizer), RunConfig(environment_wrappers=(clipped, timed), scheme="int8-weights")
    ) as (client, _):
        *_, evaluation = client.evaluate(2)
    assert isinstance(evaluation, Evaluation)
    assert evaluation.returns == (3.0, 3.0)


def test_a_requested_evaluation_calls_the_policy_with_as_many_rows_as_an_actor(
    quantizer: ScriptedQuantizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []

    def made(*arguments: Any) -> EvaluationEpisodes:
        rows.append(arguments[-1])
        return EvaluationEpisodes(*arguments)

    monkeypatch.setattr("actor_service.roles.actor_role.EvaluationEpisodes", made)
    quantizer.publish(constant_policy([0.0, 1.0]))
    with running_actor(standalone(quantizer), RunConfig(environments_per_actor=3, scheme="int8-weights")) as (
        client,
        _,
    ):
        list(client.evaluate(5))
    assert rows == [3]


def test_auto_chooses_among_the_available_schemes(quantizer: ScriptedQuantizer) -> None:
    quantizer.offer(*(in_scheme(scheme, version=3) for scheme in ("fp32", "int8-weights")))
    with running_actor(standalone(quantizer)) as (client, _):
        *_, evaluation = client.evaluate(1, "auto")
        assert isinstance(evaluation, Evaluation)
        assert evaluation.scheme in ("fp32", "int8-weights")
        quantizer.offer()
        with pytest.raises(NotFoundError, match="nothing is published"):
            list(client.evaluate(1, "auto"))


def test_an_evaluation_ends_when_its_client_hangs_up(
    quantizer: ScriptedQuantizer, caplog: pytest.LogCaptureFixture
) -> None:
    # It pushes to the side to which the pole falls, so that episodes are long. Many such episodes need minutes.
    weights = np.array([[0, 0], [0, 0], [0, 1], [0, 1]], np.float32)
    quantizer.publish(linear_policy(weights, np.zeros(2, np.float32)))
    with running_actor(standalone(quantizer)) as (client, _):
        hung_up = client.evaluate(MANY)
        assert isinstance(next(hung_up), Episode)
        with pytest.raises(ExhaustedError, match="already"):
            list(client.evaluate(1))
        hung_up.close()  # type: ignore[attr-defined]
        del hung_up
        assert len(evaluate_when_free(client, 2)) == 3
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_an_evaluation_of_a_missing_policy_is_refused_and_the_actor_is_free_again(
    quantizer: ScriptedQuantizer,
) -> None:
    with running_actor(standalone(quantizer)) as (client, _):
        for _ in range(2):
            with pytest.raises(NotFoundError, match="nothing is published"):
                list(client.evaluate(1))


def test_a_standalone_actor_finds_the_fastest_scheme_of_a_version(quantizer: ScriptedQuantizer) -> None:
    quantizer.offer(*(in_scheme(scheme, version=3) for scheme in SCHEMES))
    with running_actor(standalone(quantizer)) as (client, _):
        *_, evaluation = client.evaluate(1, "auto")
        assert isinstance(evaluation, Evaluation)
        # All candidates are the same model, so any may be the fastest by a little. Among equals fp32 wins.
        assert evaluation.scheme in SCHEMES
        # This processor may compute some of them wrongly.
        usable = [scheme for scheme in SCHEMES if scheme not in arithmetic().inexact_schemes]
        assert [quantizer.asked.get(timeout=DEADLINE_S) for _ in usable] == usable
        *_, evaluation = client.evaluate(1)
        assert isinstance(evaluation, Evaluation)
        assert evaluation.scheme == "int8-weights"


def test_an_auto_evaluator_evaluates_only_its_chosen_scheme(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    learner.membership = membership(scheme="auto", evaluation_episodes=2)
    # Only int4 accepts these observations.
    wrong = constant_policy([0.0, 1.0], observation_size=9)
    found: dict[str, Any] = {"sha256": wrong.descriptor.sha256, "size_bytes": wrong.descriptor.size_bytes}
    others = [in_scheme(scheme).descriptor for scheme in SCHEMES if scheme != "int4"]
    quantizer.offer(*(replace(wrong, descriptor=replace(each, **found)) for each in others), in_scheme("int4"))
    with running_actor(beside(learner, quantizer, "evaluator")) as (_, ended):
        learner.opened()
        assert quantizer.watched().scheme == "fp32"
        quantizer.serve(in_scheme("fp32"))
        assert quantizer.watched().scheme == "int4"
        quantizer.serve(in_scheme("int4"))
        evaluation = learner.evaluation()
        assert (evaluation.scheme, evaluation.policy_version) == ("int4", 1)
        stop(learner, ended, acknowledged=1)


def test_draining_a_standalone_actor_answers_and_ends_it(quantizer: ScriptedQuantizer) -> None:
    with running_actor(standalone(quantizer)) as (client, ended):
        assert client.status().activity == "waiting for requests"
        assert client.drain() == (0, 0)
        assert ended.result(DEADLINE_S) == EXIT_OK


def test_an_evaluator_evaluates_again_after_the_learner_lost_updates(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    learner.membership = membership(evaluation_episodes=2, evaluation_period_updates=250)
    with running_actor(beside(learner, quantizer, "evaluator")) as (_, ended):
        first_policy(learner, quantizer, at_step(1, 1_000))
        assert learner.evaluation().policy_version == 1
        # Too near to the last one, either way.
        for version, step in ((2, 1_100), (3, 900)):
            quantizer.serve(at_step(version, step))
        quantizer.serve(at_step(4, 400))
        evaluation = learner.evaluation()
        assert (evaluation.sequence, evaluation.policy_version, evaluation.learner_step) == (2, 4, 400)
        # A requested version is evaluated at any step.
        learner.answer(acknowledged=2, directive=learner_pb2.DIRECTIVE_EVALUATE, evaluate_version=5)
        quantizer.serve(at_step(5, 401))
        assert learner.evaluation().policy_version == 5
        # Also one that it has, and did not load.
        quantizer.serve(at_step(6, 402))
        quantizer.end()
        assert quantizer.watched().after_version == 6
        learner.answer(acknowledged=3, directive=learner_pb2.DIRECTIVE_EVALUATE, evaluate_version=6)
        assert learner.evaluation().policy_version == 6
        stop(learner, ended, acknowledged=3)


def test_an_evaluator_holds_a_version_first_and_chooses_a_newer_one_if_it_is_removed(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    learner.membership = membership(evaluation_episodes=2, evaluation_period_updates=250)
    quantizer.gone = {2}
    with running_actor(beside(learner, quantizer, "evaluator")) as (_, ended):
        first_policy(learner, quantizer, at_step(1, 1_000))
        assert learner.evaluation().policy_version == 1
        assert quantizer.holds.get(timeout=DEADLINE_S) == 1
        quantizer.serve(at_step(2, 2_000))
        assert quantizer.holds.get(timeout=DEADLINE_S) == 2
        quantizer.serve(at_step(3, 2_010))
        evaluation = learner.evaluation()
        assert (evaluation.sequence, evaluation.policy_version) == (2, 3)
        stop(learner, ended, acknowledged=2)


def test_an_evaluator_evaluates_a_lost_version_when_the_quantizer_has_it_again(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    learner.membership = membership(evaluation_episodes=2)
    quantizer.gone = {1}
    with running_actor(beside(learner, quantizer, "evaluator")) as (_, ended):
        first_policy(learner, quantizer, at_step(1, 1_000))
        assert quantizer.holds.get(timeout=DEADLINE_S) == 1
        quantizer.gone = set()
        assert learner.evaluation().policy_version == 1
        stop(learner, ended, acknowledged=1)


def test_draining_an_evaluator_stops_its_evaluation(learner: ScriptedLearner, quantizer: ScriptedQuantizer) -> None:
    learner.membership = membership(evaluation_episodes=MANY)
    with running_actor(beside(learner, quantizer, "evaluator")) as (client, ended):
        first_policy(learner, quantizer, at_step(1, 1_000))
        status_when(client, "evaluating version 1")
        assert client.drain() == (0, 0)
        assert ended.result(DEADLINE_S) == EXIT_OK
    assert learner.evaluations.empty()


@pytest.mark.parametrize("sampling", ["", "clipped"])
def test_an_evaluator_draws_actions_if_the_run_says_so(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer, sampling: str
) -> None:
    learner.membership = membership(evaluation_episodes=16, evaluation_sampling=sampling)
    with running_actor(beside(learner, quantizer, "evaluator")) as (_, ended):
        first_policy(learner, quantizer, logits_policy([0.01, 0.0]))
        lengths = learner.evaluation().lengths
        # Always to the same side, the pole falls within some ten steps.
        assert (max(lengths) <= 11) == (sampling == "")
        stop(learner, ended, acknowledged=1)


def test_a_standalone_actor_draws_actions_on_demand(quantizer: ScriptedQuantizer) -> None:
    quantizer.publish(logits_policy([0.01, 0.0]))
    with running_actor(standalone(quantizer)) as (client, _):
        *_, greedy = client.evaluate(16)
    with running_actor(ActorSettings(role="standalone", quantizer=quantizer.address, sampled=True)) as (client, _):
        *_, sampled = client.evaluate(16)
        quantizer.publish(constant_policy([0.0, 1.0], version=3))
        with pytest.raises(InvalidInputError, match="version 3: "):
            list(client.evaluate(1))
    assert isinstance(greedy, Evaluation)
    assert isinstance(sampled, Evaluation)
    assert max(greedy.lengths) <= 11 < max(sampled.lengths)


def test_an_evaluator_follows_its_seed(learner: ScriptedLearner, quantizer: ScriptedQuantizer) -> None:
    with running_actor(beside(learner, quantizer, "evaluator")):
        first_policy(learner, quantizer, at_step(1, 1_000))
        evaluation = learner.evaluation()
        learner.answer(directive=learner_pb2.DIRECTIVE_STOP)
    run = learner.membership.run
    greedy = EvaluationEpisodes(make_environments("CartPole-v1", run.evaluation_episodes), run.evaluation_episodes)
    seed = int(np.random.default_rng(learner.membership.seed).integers(2**31))
    expected = greedy.run(greedy.load(at_step(1, 1_000)), seed, 1, threading.Event())
    greedy.close()
    assert evaluation.returns == expected.returns
