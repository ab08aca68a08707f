"""A whole actor in its process: what its service answers, and how it ends."""

import asyncio
import logging
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from actor_service.__main__ import ActorService, ActorSettings
from actor_service.environments import make_environments
from actor_service.roles.evaluation import EvaluationEpisodes
from actorq.client import ActorClient
from actorq.config.run_config import RunConfig
from actorq.domain.policy import SCHEMES, Policy
from actorq.domain.status import ActorSelfStatus, Exploration, Membership
from actorq.domain.trajectory import Episode, Evaluation
from actorq.errors import (
    ConflictError,
    ExhaustedError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
    UserError,
)
from actorq.process import EXIT_OK
from actorq.transport.server import Server
from actorq.v1 import learner_pb2
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedLearner, ScriptedQuantizer, membership, serving
from tests.actor_service.actor_policies import constant_policy, linear_policy, logits_policy

MANY = 10_000


@contextmanager
def running_actor(
    settings: ActorSettings, config: RunConfig | None = None
) -> Iterator[tuple[ActorClient, Future[int]]]:
    """An actor that serves, a client of it, and its exit code once it has ended."""
    started: Future[tuple[asyncio.AbstractEventLoop, ActorService, str]] = Future()
    ended: Future[int] = Future()

    async def serve() -> int:
        server = Server("127.0.0.1:0")
        service = ActorService(config or RunConfig(), settings, "actor-0")
        address = await server.start(service.register(server.grpc_server))
        started.set_result((asyncio.get_running_loop(), service, address))
        try:
            return await service.run(address)
        finally:
            await server.stop(grace_s=2.0)

    def run() -> None:
        try:
            ended.set_result(asyncio.run(serve()))
        except BaseException as error:
            ended.set_exception(error)

    thread = threading.Thread(target=run, name="actor service")
    thread.start()
    loop, service, address = started.result(DEADLINE_S)
    try:
        with ActorClient(address, deadline_s=DEADLINE_S) as client:
            yield client, ended
    finally:
        if not ended.done():
            loop.call_soon_threadsafe(service.begin_drain)
        thread.join(DEADLINE_S)
    left = {"actor", "evaluator", "policy loader", "scheme", "subscription", "uploader", "watchdog"}
    for other in threading.enumerate():
        # Its last act may have been to tell of its end.
        if other.name in left:
            other.join(DEADLINE_S)
    assert not left & {thread.name for thread in threading.enumerate()}


@pytest.fixture
def quantizer() -> Iterator[tuple[ScriptedQuantizer, str]]:
    peer = ScriptedQuantizer()
    with serving(peer) as address:
        yield peer, address


@pytest.fixture
def learner() -> Iterator[tuple[ScriptedLearner, str]]:
    peer = ScriptedLearner()
    with serving(peer) as address:
        yield peer, address


def standalone(address: str) -> ActorSettings:
    return ActorSettings(role="standalone", quantizer=address)


def evaluate_when_free(client: ActorClient, episodes: int) -> list[Episode | Evaluation]:
    """The evaluation, asked for again as long as the actor is busy with another one."""
    for _ in range(10_000):
        try:
            return list(client.evaluate(episodes))
        except ExhaustedError:
            continue
    raise AssertionError("the evaluation whose client hung up goes on")


def status_when(client: ActorClient, activity: str) -> ActorSelfStatus:
    """The actor's status, asked for until it does that."""
    for _ in range(10_000):
        if (status := client.status()).activity == activity:
            return status
    raise AssertionError(f"the actor does not come to {activity}")


def test_an_evaluation_gives_each_episode_and_then_all_of_them(quantizer: tuple[ScriptedQuantizer, str]) -> None:
    peer, address = quantizer
    peer.keep(constant_policy([0.0, 1.0], version=3))
    with running_actor(standalone(address)) as (client, _):
        *episodes, evaluation = client.evaluate(5)
        assert isinstance(evaluation, Evaluation)
        assert evaluation.policy_version == 3
        assert all(isinstance(episode, Episode) for episode in episodes)
        assert len(episodes) == len(evaluation.returns) == 5


def test_an_evaluation_ends_when_its_client_hangs_up(
    quantizer: tuple[ScriptedQuantizer, str], caplog: pytest.LogCaptureFixture
) -> None:
    peer, address = quantizer
    # It pushes to the side to which the pole falls, so that episodes are long and so many of them take minutes.
    weights = np.array([[0, 0], [0, 0], [0, 1], [0, 1]], np.float32)
    peer.keep(linear_policy(weights, np.zeros(2, np.float32)))
    with running_actor(standalone(address)) as (client, _):
        hung_up = client.evaluate(MANY)
        assert isinstance(next(hung_up), Episode)
        with pytest.raises(ExhaustedError, match="runs an evaluation already"):
            list(client.evaluate(1))
        hung_up.close()  # type: ignore[attr-defined]
        del hung_up
        assert len(evaluate_when_free(client, 2)) == 3
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_an_evaluation_of_what_is_not_there_is_refused_and_the_actor_is_free_again(
    quantizer: tuple[ScriptedQuantizer, str],
) -> None:
    with running_actor(standalone(quantizer[1])) as (client, _):
        for _ in range(2):
            with pytest.raises(NotFoundError, match="nothing is kept"):
                list(client.evaluate(1))


def in_scheme(scheme: str, version: int = 1) -> Policy:
    policy = constant_policy([0.0, 1.0], version=version)
    return replace(policy, descriptor=replace(policy.descriptor, scheme=scheme, learner_step=version))


def test_a_standalone_actor_finds_the_fastest_scheme_of_a_version(quantizer: tuple[ScriptedQuantizer, str]) -> None:
    peer, address = quantizer
    peer.offer(*(in_scheme(scheme, version=3) for scheme in SCHEMES))
    with running_actor(standalone(address)) as (client, _):
        *_, evaluation = client.evaluate(1, "auto")
        assert isinstance(evaluation, Evaluation)
        # All are the same model, so that any may be the fastest by a little; fp32 is taken among equals.
        assert evaluation.scheme in SCHEMES
        assert [peer.asked.get(timeout=DEADLINE_S) for _ in SCHEMES] == list(SCHEMES)
        *_, evaluation = client.evaluate(1)
        assert isinstance(evaluation, Evaluation)
        assert evaluation.scheme == RunConfig().scheme


def test_an_auto_actor_acts_and_tells_in_which_scheme(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    learner[0].membership = membership(scheme="auto", segment_length=2)
    # int4 cannot be loaded, and the others are not there.
    quantizer[0].offer(in_scheme("fp32"), replace(in_scheme("int4"), model=b"garbage"))
    with running_actor(ActorSettings(learner=learner[1], quantizer=quantizer[1])) as (client, ended):
        learner[0].opened()
        assert quantizer[0].watched().scheme == "fp32"
        quantizer[0].serve(in_scheme("fp32"))
        learner[0].answer(credit=1)
        assert learner[0].received(1) == [("segment", 1)]
        report = client.status().report
        assert (report.policy_version, report.scheme) == (1, "fp32")
        # On request it evaluates in the scheme that it acts in.
        *_, evaluation = client.evaluate(1)
        assert isinstance(evaluation, Evaluation)
        assert evaluation.scheme == "fp32"
        learner[0].answer(directive=learner_pb2.DIRECTIVE_STOP)
        assert ended.result(DEADLINE_S) == EXIT_OK
    first = [message for message in caplog.messages if message.startswith("first action")]
    assert first == ["first action, with policy version 1 fp32"]


def test_an_auto_evaluator_evaluates_what_it_has_chosen_only(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    learner[0].membership = membership(scheme="auto", evaluation_episodes=2)
    # Of the candidates only int8 takes these observations.
    wrong = constant_policy([0.0, 1.0], observation_size=9)
    others = [scheme for scheme in SCHEMES if scheme != "int8"]
    quantizer[0].offer(
        *(replace(wrong, descriptor=replace(wrong.descriptor, scheme=scheme)) for scheme in others), in_scheme("int8")
    )
    settings = ActorSettings(learner=learner[1], quantizer=quantizer[1], role="evaluator")
    with running_actor(settings) as (_, ended):
        learner[0].opened()
        assert quantizer[0].watched().scheme == "fp32"
        quantizer[0].serve(in_scheme("fp32"))
        assert quantizer[0].watched().scheme == "int8"
        quantizer[0].serve(in_scheme("int8"))
        evaluation = learner[0].evaluation()
        assert (evaluation.scheme, evaluation.policy_version) == ("int8", 1)
        learner[0].answer(acknowledged=1, directive=learner_pb2.DIRECTIVE_STOP)
        assert ended.result(DEADLINE_S) == EXIT_OK


def test_draining_a_standalone_actor_answers_and_ends_it(quantizer: tuple[ScriptedQuantizer, str]) -> None:
    with running_actor(standalone(quantizer[1])) as (client, ended):
        assert client.status().activity == "waiting for requests"
        assert client.drain() == (0, 0)
        assert ended.result(DEADLINE_S) == EXIT_OK


def test_draining_an_actor_sends_what_is_queued(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    learner[0].membership = membership(segment_length=2, queue_segments=1)
    with running_actor(ActorSettings(learner=learner[1], quantizer=quantizer[1])) as (client, ended):
        learner[0].opened()
        quantizer[0].watched()
        quantizer[0].serve(constant_policy([0.0, 1.0]))
        learner[0].answer(credit=1)
        assert learner[0].received(1) == [("segment", 1)]
        drained: Future[tuple[int, int]] = Future()
        draining = threading.Thread(target=lambda: drained.set_result(client.drain()))
        draining.start()
        # What it has now is all: its queue, and what the loop that acts had in its hands.
        queued = status_when(client, "leaving").report.queued_segments
        learner[0].answer(acknowledged=1, credit=queued)
        assert learner[0].received(queued - 1) == [("segment", sequence) for sequence in range(2, queued + 1)]
        learner[0].answer(acknowledged=queued, credit=queued)
        assert drained.result(DEADLINE_S) == (queued, 0)
        draining.join()
        assert ended.result(DEADLINE_S) == EXIT_OK


def test_an_actor_that_is_drained_waits_no_more_when_the_run_is_over(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    learner[0].membership = membership(segment_length=2)
    patient = RunConfig.model_validate({"transport": {"drain_s": 1_000.0}})
    with running_actor(ActorSettings(learner=learner[1], quantizer=quantizer[1]), patient) as (client, ended):
        learner[0].opened()
        quantizer[0].watched()
        quantizer[0].serve(constant_policy([0.0, 1.0]))
        learner[0].answer(credit=1)
        assert learner[0].received(1) == [("segment", 1)]
        draining = threading.Thread(target=client.drain)
        draining.start()
        status_when(client, "leaving")
        learner[0].answer(directive=learner_pb2.DIRECTIVE_STOP)
        # The drain would take nearly all of the call's time.
        assert ended.result(DEADLINE_S / 2) == EXIT_OK
        draining.join(DEADLINE_S)


def at_step(version: int, learner_step: int) -> Policy:
    policy = constant_policy([0.0, 1.0], version=version)
    return replace(policy, descriptor=replace(policy.descriptor, learner_step=learner_step))


def test_an_evaluator_evaluates_again_when_the_learner_went_back(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    learner[0].membership = membership(evaluation_episodes=2, evaluation_period_updates=250)
    settings = ActorSettings(learner=learner[1], quantizer=quantizer[1], role="evaluator")
    with running_actor(settings) as (_, ended):
        learner[0].opened()
        quantizer[0].watched()
        quantizer[0].serve(at_step(1, 1_000))
        assert learner[0].evaluation().policy_version == 1
        # Too near to the last one, either way.
        for version, step in ((2, 1_100), (3, 900)):
            quantizer[0].serve(at_step(version, step))
        quantizer[0].serve(at_step(4, 400))
        evaluation = learner[0].evaluation()
        assert (evaluation.sequence, evaluation.policy_version, evaluation.learner_step) == (2, 4, 400)
        # One that was asked for is evaluated whatever its step.
        learner[0].answer(acknowledged=2, directive=learner_pb2.DIRECTIVE_EVALUATE, evaluate_version=5)
        quantizer[0].serve(at_step(5, 401))
        assert learner[0].evaluation().policy_version == 5
        # Also one that it has, and did not load.
        quantizer[0].serve(at_step(6, 402))
        quantizer[0].end()
        assert quantizer[0].watched().after_version == 6
        learner[0].answer(acknowledged=3, directive=learner_pb2.DIRECTIVE_EVALUATE, evaluate_version=6)
        assert learner[0].evaluation().policy_version == 6
        learner[0].answer(acknowledged=3, directive=learner_pb2.DIRECTIVE_STOP)
        assert ended.result(DEADLINE_S) == EXIT_OK


def test_an_evaluator_has_a_version_held_before_it_evaluates_it_and_takes_a_newer_one_when_it_is_gone(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    learner[0].membership = membership(evaluation_episodes=2, evaluation_period_updates=250)
    quantizer[0].gone = {2}
    settings = ActorSettings(learner=learner[1], quantizer=quantizer[1], role="evaluator")
    with running_actor(settings) as (_, ended):
        learner[0].opened()
        quantizer[0].watched()
        quantizer[0].serve(at_step(1, 1_000))
        assert learner[0].evaluation().policy_version == 1
        assert quantizer[0].holds.get(timeout=DEADLINE_S) == 1
        quantizer[0].serve(at_step(2, 2_000))
        assert quantizer[0].holds.get(timeout=DEADLINE_S) == 2
        quantizer[0].serve(at_step(3, 2_010))
        evaluation = learner[0].evaluation()
        assert (evaluation.sequence, evaluation.policy_version) == (2, 3)
        learner[0].answer(acknowledged=2, directive=learner_pb2.DIRECTIVE_STOP)
        assert ended.result(DEADLINE_S) == EXIT_OK


def test_an_evaluator_evaluates_a_lost_version_when_the_quantizer_has_it_again(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    learner[0].membership = membership(evaluation_episodes=2)
    quantizer[0].gone = {1}
    settings = ActorSettings(learner=learner[1], quantizer=quantizer[1], role="evaluator")
    with running_actor(settings) as (_, ended):
        learner[0].opened()
        quantizer[0].watched()
        quantizer[0].serve(at_step(1, 1_000))
        assert quantizer[0].holds.get(timeout=DEADLINE_S) == 1
        quantizer[0].gone = set()
        assert learner[0].evaluation().policy_version == 1
        learner[0].answer(acknowledged=1, directive=learner_pb2.DIRECTIVE_STOP)
        assert ended.result(DEADLINE_S) == EXIT_OK


def test_when_the_run_is_over_an_actor_does_not_wait_for_credit(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    learner[0].membership = membership(segment_length=2)
    with running_actor(ActorSettings(learner=learner[1], quantizer=quantizer[1])) as (_, ended):
        learner[0].opened()
        quantizer[0].watched()
        quantizer[0].serve(constant_policy([0.0, 1.0]))
        learner[0].answer(credit=1)
        assert learner[0].received(1) == [("segment", 1)]
        learner[0].answer(directive=learner_pb2.DIRECTIVE_STOP)
        assert ended.result(DEADLINE_S) == EXIT_OK


class LearnerOfARunThatIsOver(ScriptedLearner):
    """Refuses to let anybody join so many times; then the run goes on."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    async def Join(self, request: learner_pb2.JoinRequest, context: Any) -> learner_pb2.JoinResponse:  # noqa: N802
        if self.refusals:
            self.refusals -= 1
            raise UnavailableError("the run is over")
        return await super().Join(request, context)


def test_an_actor_waits_quietly_while_the_run_is_over_and_joins_when_it_goes_on(
    quantizer: tuple[ScriptedQuantizer, str], caplog: pytest.LogCaptureFixture
) -> None:
    peer = LearnerOfARunThatIsOver(refusals=3)
    with (
        serving(peer) as learner,
        caplog.at_level(logging.INFO),
        running_actor(ActorSettings(learner=learner, quantizer=quantizer[1])) as (client, _),
    ):
        assert peer.opened().actor_name == "actor-0"
        status_when(client, "acting")
    told = [record for record in caplog.records if "the run is over" in record.getMessage()]
    assert len(told) == 1
    assert any("connected again after 3 attempts" in message for message in caplog.messages)


class LearnerWithTwoOfAName(ScriptedLearner):
    """Once `taken_over` is set, another process has joined under the actor's name."""

    def __init__(self) -> None:
        super().__init__()
        self.taken_over = False
        self.joins: list[tuple[int, int]] = []

    async def Join(self, request: learner_pb2.JoinRequest, context: Any) -> learner_pb2.JoinResponse:  # noqa: N802
        self.joins.append((request.incarnation, request.nonce))
        if self.taken_over:
            raise ConflictError("actor 'actor-0': another process has taken over this name")
        return await super().Join(request, context)


def test_an_actor_whose_name_is_taken_over_ends_with_one_line(quantizer: tuple[ScriptedQuantizer, str]) -> None:
    peer = LearnerWithTwoOfAName()
    with (
        serving(peer) as learner,
        running_actor(ActorSettings(learner=learner, quantizer=quantizer[1])) as (_, ended),
    ):
        assert peer.opened().incarnation == peer.membership.incarnation
        # It joins without an incarnation, and from then on with the one that it was given.
        (first, nonce), (second, again) = peer.joins
        assert (first, second) == (0, peer.membership.incarnation)
        assert nonce == again != 0
        peer.taken_over = True
        peer.fail(ConflictError("actor 'actor-0': another process has taken over this name"))
        with pytest.raises(UserError, match="another process has taken over this name"):
            ended.result(DEADLINE_S)


def test_an_actor_that_waits_for_a_run_ends_when_it_is_told_to(quantizer: tuple[ScriptedQuantizer, str]) -> None:
    peer = LearnerOfARunThatIsOver(refusals=MANY)
    with (
        serving(peer) as learner,
        running_actor(ActorSettings(learner=learner, quantizer=quantizer[1])) as (client, ended),
    ):
        assert client.drain() == (0, 0)
        assert ended.result(DEADLINE_S) == EXIT_OK


def test_an_actor_ends_when_its_learner_has_another_run(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    with running_actor(ActorSettings(learner=learner[1], quantizer=quantizer[1])) as (_, ended):
        learner[0].opened()
        learner[0].membership = membership(run_id="another")
        learner[0].fail(NotFoundError("actor-0 has not joined"))
        with pytest.raises(ConflictError, match="the learner now has run another; this actor joined run"):
            ended.result(DEADLINE_S)


def test_an_actor_that_cannot_make_its_environment_ends_with_the_reason(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    learner[0].membership = membership(environment_id="Nowhere-v0")
    with (
        running_actor(ActorSettings(learner=learner[1], quantizer=quantizer[1])) as (_, ended),
        pytest.raises(UserError, match="Nowhere"),
    ):
        ended.result(DEADLINE_S)


def test_an_evaluator_that_is_drained_breaks_its_evaluation_off(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    learner[0].membership = membership(evaluation_episodes=MANY)
    settings = ActorSettings(learner=learner[1], quantizer=quantizer[1], role="evaluator")
    with running_actor(settings) as (client, ended):
        learner[0].opened()
        quantizer[0].watched()
        quantizer[0].serve(at_step(1, 1_000))
        status_when(client, "evaluating version 1")
        assert client.drain() == (0, 0)
        assert ended.result(DEADLINE_S) == EXIT_OK
    assert learner[0].evaluations.empty()


def test_an_actor_that_waits_for_its_first_policy_ends_when_it_is_told_to(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    with running_actor(ActorSettings(learner=learner[1], quantizer=quantizer[1])) as (client, ended):
        quantizer[0].watched()
        assert learner[0].reports.get(timeout=DEADLINE_S).steps_per_second == 0.0
        status_when(client, "acting")
        assert client.drain() == (0, 0)
        assert ended.result(DEADLINE_S) == EXIT_OK


def drawing(**changes: Any) -> Membership:
    """A place in a run that draws actions."""
    place = membership(**changes)
    return replace(place, exploration=Exploration((), (), sampling="clipped"))


def test_an_actor_of_a_run_that_draws_actions_tells_their_probabilities(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str], caplog: pytest.LogCaptureFixture
) -> None:
    learner[0].membership = drawing(environments_per_actor=2, segment_length=16)
    with running_actor(ActorSettings(learner=learner[1], quantizer=quantizer[1])) as (_, ended):
        learner[0].opened()
        quantizer[0].watched()
        # A policy that tells no distribution does not act. The next one may.
        quantizer[0].serve(constant_policy([0.0, 1.0], version=1))
        quantizer[0].serve(logits_policy([0.0, np.log(3.0)], version=2))
        learner[0].answer(credit=1)
        segment = learner[0].segments.get(timeout=DEADLINE_S)
        assert segment.spans[0].version == 2
        assert segment.log_probabilities is not None
        np.testing.assert_allclose(segment.log_probabilities, np.log([0.25, 0.75])[segment.actions], atol=1e-6)
        learner[0].answer(directive=learner_pb2.DIRECTIVE_STOP)
        assert ended.result(DEADLINE_S) == EXIT_OK


def test_an_actor_waits_as_long_as_the_run_says_for_a_newer_policy(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    learner[0].membership = drawing(segment_length=8, max_steps_per_policy=12, policy_patience_s=600.0)
    with running_actor(ActorSettings(learner=learner[1], quantizer=quantizer[1])) as (_, ended):
        learner[0].opened()
        quantizer[0].watched()
        learner[0].answer(credit=100)
        for version in (1, 2):
            quantizer[0].serve(logits_policy([0.0, 0.0], version=version))
            segments = [learner[0].segments.get(timeout=DEADLINE_S) for _ in range(2)]
            # All steps of a policy arrive while the actor waits for the next one.
            assert [segment.steps for segment in segments] == [8, 4]
            assert [span.version for segment in segments for span in segment.spans] == [version] * 2
        # The default patience is one second.
        with pytest.raises(queue.Empty):
            learner[0].segments.get(timeout=1.5)
        learner[0].answer(directive=learner_pb2.DIRECTIVE_STOP)
        assert ended.result(DEADLINE_S) == EXIT_OK


@pytest.mark.parametrize("sampling", ["", "clipped"])
def test_an_evaluator_draws_actions_if_the_run_says_so(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str], sampling: str
) -> None:
    learner[0].membership = membership(evaluation_episodes=16, evaluation_sampling=sampling)
    settings = ActorSettings(learner=learner[1], quantizer=quantizer[1], role="evaluator")
    with running_actor(settings) as (_, ended):
        learner[0].opened()
        quantizer[0].watched()
        quantizer[0].serve(logits_policy([0.01, 0.0]))
        lengths = learner[0].evaluation().lengths
        # Always to the same side, the pole falls within some ten steps.
        assert (max(lengths) <= 11) == (sampling == "")
        learner[0].answer(acknowledged=1, directive=learner_pb2.DIRECTIVE_STOP)
        assert ended.result(DEADLINE_S) == EXIT_OK


def test_a_standalone_actor_draws_actions_on_demand(quantizer: tuple[ScriptedQuantizer, str]) -> None:
    peer, address = quantizer
    peer.keep(logits_policy([0.01, 0.0]))
    with running_actor(standalone(address)) as (client, _):
        *_, greedy = client.evaluate(16)
    with running_actor(ActorSettings(role="standalone", quantizer=address, sampled=True)) as (client, _):
        *_, sampled = client.evaluate(16)
        peer.keep(constant_policy([0.0, 1.0], version=3))
        with pytest.raises(InvalidInputError, match="policy version 3: no actions can be drawn from it"):
            list(client.evaluate(1))
    assert isinstance(greedy, Evaluation)
    assert isinstance(sampled, Evaluation)
    assert max(greedy.lengths) <= 11 < max(sampled.lengths)


# The environments take seeds below 2**31, and this one gives a larger number.
LARGE_SEED = 2


def test_an_actor_begins_as_its_seed_says(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    learner[0].membership = replace(membership(segment_length=2), seed=LARGE_SEED)
    environment_seed = int(np.random.SeedSequence(LARGE_SEED).generate_state(2)[0])
    assert environment_seed >= 2**31
    with running_actor(ActorSettings(learner=learner[1], quantizer=quantizer[1])):
        learner[0].opened()
        quantizer[0].watched()
        quantizer[0].serve(constant_policy([0.0, 1.0]))
        learner[0].answer(credit=1)
        first = learner[0].segments.get(timeout=DEADLINE_S).observations[0]
        learner[0].answer(directive=learner_pb2.DIRECTIVE_STOP)
    environments = make_environments("CartPole-v1", 1)
    np.testing.assert_array_equal(first, environments.reset(environment_seed % 2**31))
    environments.close()


def test_an_evaluator_evaluates_as_its_seed_says(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    settings = ActorSettings(learner=learner[1], quantizer=quantizer[1], role="evaluator")
    with running_actor(settings):
        learner[0].opened()
        quantizer[0].watched()
        quantizer[0].serve(at_step(1, 1_000))
        evaluation = learner[0].evaluation()
        learner[0].answer(directive=learner_pb2.DIRECTIVE_STOP)
    run = learner[0].membership.run
    greedy = EvaluationEpisodes(make_environments("CartPole-v1", run.evaluation_episodes), run.evaluation_episodes)
    seed = int(np.random.default_rng(learner[0].membership.seed).integers(2**31))
    expected = greedy.run(greedy.load(at_step(1, 1_000)), seed, 1, threading.Event())
    greedy.close()
    assert evaluation.returns == expected.returns


def test_an_actor_without_credit_reports_what_it_did_and_that_it_waits(
    learner: tuple[ScriptedLearner, str], quantizer: tuple[ScriptedQuantizer, str]
) -> None:
    learner[0].membership = membership(segment_length=2, queue_segments=1, report_period_s=0.01)
    with running_actor(ActorSettings(learner=learner[1], quantizer=quantizer[1])):
        learner[0].opened()
        quantizer[0].watched()
        quantizer[0].serve(constant_policy([0.0, 1.0]))
        # Two segments: one in the queue, and one that waits for a place in it.
        reports = (learner[0].reports.get(timeout=DEADLINE_S) for _ in range(MANY))
        done = list(islice((each for each in reports if each.environment_steps == 4), 2))
        assert (done[0].steps_per_second > 0, done[1].steps_per_second) == (True, 0.0)
        assert done[1].queued_segments == 1
        assert done[1].waited_seconds > done[0].waited_seconds
        learner[0].answer(directive=learner_pb2.DIRECTIVE_STOP)
