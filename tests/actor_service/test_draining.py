"""A drained actor sends its queue, and does not wait for a learner that stores nothing more."""

import threading
from concurrent.futures import Future

import pytest

from actorq.config.run_config import RunConfig
from actorq.errors import InvalidInputError, UnavailableError, UserError
from actorq.process import EXIT_OK
from actorq.v1 import learner_pb2
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedLearner, ScriptedQuantizer, membership
from tests.actor_service.actor_policies import constant_policy
from tests.actor_service.actor_process import beside, first_policy, running_actor, status_when


def test_draining_an_actor_sends_the_queued_segments(learner: ScriptedLearner, quantizer: ScriptedQuantizer) -> None:
    learner.membership = membership(segment_length=2, queue_segments=1)
    with running_actor(beside(learner, quantizer)) as (client, ended):
        first_policy(learner, quantizer, constant_policy([0.0, 1.0]))
        learner.answer(credit=1)
        assert learner.received(1) == [("segment", 1)]
        drained: Future[tuple[int, int]] = Future()
        draining = threading.Thread(target=lambda: drained.set_result(client.drain()))
        draining.start()
        # It sends all that it has now: its queue, and the segment of the acting loop.
        queued = status_when(client, "leaving").report.queued_segments
        learner.answer(acknowledged=1, credit=queued)
        assert learner.received(queued - 1) == [("segment", sequence) for sequence in range(2, queued + 1)]
        learner.answer(acknowledged=queued, credit=queued)
        assert drained.result(DEADLINE_S) == (queued, 0)
        draining.join()
        assert ended.result(DEADLINE_S) == EXIT_OK


def test_a_drain_reports_segments_that_the_learner_refuses(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    learner.membership = membership(segment_length=2)
    hasty = RunConfig.model_validate({"transport": {"drain_s": 2.0}})
    with running_actor(beside(learner, quantizer), hasty) as (client, ended):
        first_policy(learner, quantizer, constant_policy([0.0, 1.0]))
        learner.answer(credit=1)
        assert learner.received(1) == [("segment", 1)]
        sent, unsent = client.drain()
        assert sent == 0
        assert unsent > 0
        assert ended.result(DEADLINE_S) == EXIT_OK


def test_an_actor_that_is_drained_waits_no_more_when_the_run_is_over(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    learner.membership = membership(segment_length=2)
    patient = RunConfig.model_validate({"transport": {"drain_s": 1_000.0}})
    with running_actor(beside(learner, quantizer), patient) as (client, ended):
        first_policy(learner, quantizer, constant_policy([0.0, 1.0]))
        learner.answer(credit=1)
        assert learner.received(1) == [("segment", 1)]
        draining = threading.Thread(target=client.drain)
        draining.start()
        status_when(client, "leaving")
        learner.answer(directive=learner_pb2.DIRECTIVE_STOP)
        # The drain would use nearly all of the call's time.
        assert ended.result(DEADLINE_S / 2) == EXIT_OK
        draining.join(DEADLINE_S)


def test_an_actor_that_is_drained_waits_no_more_when_the_learner_refuses_its_segments(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    learner.membership = membership(segment_length=2)
    patient = RunConfig.model_validate({"transport": {"drain_s": 1_000.0}})
    with running_actor(beside(learner, quantizer), patient) as (client, ended):
        first_policy(learner, quantizer, constant_policy([0.0, 1.0]))
        learner.answer(credit=1)
        assert learner.received(1) == [("segment", 1)]
        draining = threading.Thread(target=client.drain)
        draining.start()
        status_when(client, "leaving")
        learner.fail(InvalidInputError("a wrong shape"))
        with pytest.raises(InvalidInputError, match="a wrong shape"):
            ended.result(DEADLINE_S / 2)
        draining.join(DEADLINE_S)


def test_a_drain_whose_learner_loses_stored_segments_has_sent_none(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    learner.membership = membership(segment_length=2)
    with running_actor(beside(learner, quantizer)) as (client, ended):
        first_policy(learner, quantizer, constant_policy([0.0, 1.0]))
        learner.answer(credit=1)
        assert learner.received(1) == [("segment", 1)]
        learner.answer(acknowledged=1, credit=2)
        assert learner.received(1) == [("segment", 2)]
        drained: Future[tuple[int, int]] = Future()
        draining = threading.Thread(target=lambda: drained.set_result(client.drain()))
        draining.start()
        queued = status_when(client, "leaving").report.queued_segments
        # A power cut destroys the stored segment, which is not durable. The next learner then refuses the actor.
        learner.fail(UnavailableError("moves"))
        assert learner.opened().lost_through_sequence == 0
        learner.fail(InvalidInputError("a wrong shape"))
        assert drained.result(DEADLINE_S) == (0, queued + 1)
        draining.join()
        with pytest.raises(UserError, match="a wrong shape"):
            ended.result(DEADLINE_S)


def test_a_lingering_actor_serves_after_the_end_of_the_run_until_sigterm(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    learner.membership = membership(segment_length=2)
    lingering = beside(learner, quantizer).model_copy(update={"linger_s": 10 * DEADLINE_S})
    with running_actor(lingering) as (client, ended):
        first_policy(learner, quantizer, constant_policy([0.0, 1.0]))
        learner.answer(directive=learner_pb2.DIRECTIVE_STOP)
        status_when(client, "leaving")
        client.drain()
        # A service that has ended refuses calls.
        for _ in range(200):
            client.status()
        assert not ended.done()
    assert ended.result(DEADLINE_S) == EXIT_OK


def test_an_actor_lingers_only_for_the_configured_time(learner: ScriptedLearner, quantizer: ScriptedQuantizer) -> None:
    learner.membership = membership(segment_length=2)
    lingering = beside(learner, quantizer).model_copy(update={"linger_s": 0.01})
    with running_actor(lingering) as (_, ended):
        first_policy(learner, quantizer, constant_policy([0.0, 1.0]))
        learner.answer(directive=learner_pb2.DIRECTIVE_STOP)
        assert ended.result(DEADLINE_S) == EXIT_OK
