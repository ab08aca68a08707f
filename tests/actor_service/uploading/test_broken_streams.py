"""A broken stream, a learner that was away and a power cut cost no segment that can be sent again."""

import logging
import re
from dataclasses import replace

import pytest

from actorq.domain.spaces import ArraySpec
from actorq.domain.trajectory import Evaluation
from actorq.errors import ActorQError, ConflictError, InvalidInputError, NotFoundError, UnavailableError, UserError
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedLearner
from tests.actor_service.uploading.uploader_side import FOREVER, SPEC, Side, put, segments, wait_until

EVALUATION = Evaluation(1, 4, 100, "int8", (9.0,), (9,), 0.1)


@pytest.mark.parametrize("stored", [2, 3, 4], ids=lambda stored: f"{stored} stored, 2 acknowledged")
def test_after_a_broken_stream_it_resumes_after_the_last_stored_item(
    learner: ScriptedLearner, side: Side, stored: int
) -> None:
    uploader = side.start(capacity=6)
    learner.opened()
    put(uploader, 1, 2, 3, 4, 5)
    learner.answer(credit=4)
    assert learner.received(4) == segments(1, 2, 3, 4)
    learner.answer(acknowledged=2, credit=4)
    side.stored = stored
    learner.fail(UnavailableError("as the test wants it"))
    learner.opened()
    assert side.joins == 2
    assert uploader.acknowledged == stored
    learner.answer(acknowledged=stored, credit=6)
    put(uploader, 6)
    expected = list(range(stored + 1, 7))
    assert learner.received(len(expected)) == segments(*expected)
    learner.answer(acknowledged=6, credit=6)
    assert uploader.flush(DEADLINE_S) == 0
    assert learner.items.empty()


def test_the_attempts_are_counted_until_the_learner_accepts_a_refused_item(
    learner: ScriptedLearner, side: Side, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "actorq.transport.reconnect")
    uploader = side.start()
    for _ in range(2):
        learner.opened()
        if not uploader.queued:
            uploader.put(EVALUATION, FOREVER)
        learner.answer()
        assert learner.received(1) == [("evaluation", 1)]
        # As on a full disk. If the opened stream ended the backoff, the next attempt would follow at once, for ever.
        learner.fail(UnavailableError("as the test wants it"))
    learner.opened()
    learner.answer()
    assert learner.received(1) == [("evaluation", 1)]
    learner.answer(acknowledged=1)
    assert uploader.flush(DEADLINE_S) == 0
    wait_until(lambda: "connected again" in caplog.text)
    (line,) = [line for line in caplog.messages if "connected again" in line]
    assert "2 attempts" in line


def test_an_environment_with_an_unsupported_dtype_is_a_fault(learner: ScriptedLearner, side: Side) -> None:
    side.uploader.start(replace(SPEC, observations=ArraySpec((3,), "uint16")), capacity=2, period_s=1.0)
    fault = side.fault()
    assert isinstance(fault, InvalidInputError)
    assert "dtype" in str(fault)


def test_credit_of_a_broken_stream_is_forgotten(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start(capacity=5, period_s=0.05)
    learner.opened()
    learner.answer(credit=5)
    put(uploader, 1)
    assert learner.received(1) == segments(1)
    side.stored = 1
    learner.end()
    learner.opened()
    put(uploader, 2, 3)
    learner.answer(acknowledged=1, credit=2)
    assert learner.received(1) == segments(2)
    # A report follows when nothing may be sent.
    while learner.sent.get(timeout=DEADLINE_S) < 2:
        pass
    assert learner.sent.get(timeout=DEADLINE_S) == 2
    assert uploader.queued == 2
    assert learner.items.empty()


def test_an_actor_joins_again_if_the_learner_was_unreachable_or_forgot_it(learner: ScriptedLearner, side: Side) -> None:
    side.away = 1
    uploader = side.start()
    learner.opened()
    assert side.joins == 2
    learner.fail(NotFoundError("actor-0 has not joined"))
    learner.opened()
    assert side.joins == 3
    put(uploader, 1)
    learner.answer(credit=1)
    assert learner.received(1) == segments(1)
    assert side.faults.empty()


@pytest.mark.parametrize("error", [InvalidInputError("a wrong shape"), ConflictError("another environment")])
def test_a_refusal_that_a_retry_cannot_fix_is_a_fault(learner: ScriptedLearner, side: Side, error: ActorQError) -> None:
    uploader = side.start()
    learner.opened()
    put(uploader, 1)
    learner.answer(credit=1)
    assert learner.received(1) == segments(1)
    learner.fail(error)
    fault = side.fault()
    assert isinstance(fault, type(error))
    assert str(error) in str(fault)
    # After a conflict it joins once more, to check whether the name is its own.
    assert side.joins == 1 + isinstance(error, ConflictError)


def test_after_an_invalid_answer_the_actor_joins_again(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start()
    learner.opened()
    learner.answer(credit=2**64 - 1)
    learner.opened()
    assert side.joins == 2
    put(uploader, 1)
    learner.answer(credit=1)
    assert learner.received(1) == segments(1)
    assert side.faults.empty()


def test_an_environment_that_the_run_cannot_use_is_a_users_mistake(learner: ScriptedLearner, side: Side) -> None:
    side.start()
    learner.opened()
    learner.fail(InvalidInputError("algorithm dqn needs discrete actions"))
    fault = side.fault()
    assert isinstance(fault, UserError)
    assert str(fault) == "algorithm dqn needs discrete actions"
    assert side.joins == 1


def test_acknowledged_segments_that_the_learner_lost_in_a_power_cut_are_sent_again(
    learner: ScriptedLearner, side: Side, caplog: pytest.LogCaptureFixture
) -> None:
    uploader = side.start(capacity=4)
    learner.opened()
    put(uploader, 1, 2, 3, 4)
    learner.answer(credit=3)
    assert learner.received(3) == segments(1, 2, 3)
    learner.answer(acknowledged=3, credit=3, durable_sequence=1)
    wait_until(lambda: uploader.queued == 1)
    side.stored = 1
    learner.end()
    assert learner.opened().lost_through_sequence == 0
    # A metric counts it, and a counter never falls.
    assert uploader.acknowledged == 3
    learner.answer(acknowledged=1, credit=4, durable_sequence=1)
    assert learner.received(3) == segments(2, 3, 4)
    assert side.faults.empty()
    (line,) = [line for line in caplog.messages if "lost" in line]
    assert re.search(r"lost 2 .* 1: 2 .*again, 0 ", line)


def test_an_unrecoverable_loss_is_logged_and_the_actor_continues(
    learner: ScriptedLearner, side: Side, caplog: pytest.LogCaptureFixture
) -> None:
    uploader = side.start(capacity=4)
    learner.opened()
    put(uploader, 1, 2, 3)
    learner.answer(credit=3)
    assert learner.received(3) == segments(1, 2, 3)
    # The learner reports that 2 is on its disk, and returns from an older copy of it.
    learner.answer(acknowledged=3, credit=3, durable_sequence=2)
    assert uploader.flush(DEADLINE_S) == 0
    side.stored = 0
    learner.end()
    assert learner.opened().lost_through_sequence == 2
    learner.answer(acknowledged=2, credit=3, durable_sequence=0)
    assert learner.received(1) == segments(3)
    (line,) = [line for line in caplog.messages if "lost" in line]
    assert re.search(r"lost 3 .* 0: 1 .*again, 2 ", line)


def test_an_actor_without_kept_items_continues_with_the_next_number(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start()
    learner.opened()
    put(uploader, 1, 2)
    learner.answer(credit=2)
    assert learner.received(2) == segments(1, 2)
    learner.answer(acknowledged=2, credit=2, durable_sequence=2)
    assert uploader.flush(DEADLINE_S) == 0
    side.stored = 1
    learner.end()
    assert learner.opened().lost_through_sequence == 2
    put(uploader, 3)
    learner.answer(acknowledged=2, credit=3)
    assert learner.received(1) == segments(3)


def test_stored_but_volatile_segments_are_kept_if_their_acknowledgment_was_lost(
    learner: ScriptedLearner, side: Side
) -> None:
    uploader = side.start()
    learner.opened()
    put(uploader, 1)
    learner.answer(credit=1)
    assert learner.received(1) == segments(1)
    side.stored = 1
    learner.end()
    learner.opened()
    side.stored = 0
    learner.end()
    assert learner.opened().lost_through_sequence == 0
    learner.answer(credit=1)
    assert learner.received(1) == segments(1)
