"""Segments arrive exactly once and in order, for any behavior of the learner."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator
from typing import Any

from actor_service.uploader import UnflushedItems, Uploader
from actorq import wire
from actorq.client import LearnerClient
from actorq.domain.trajectory import Evaluation
from actorq.v1 import learner_pb2
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedLearner, serving, small_segment
from tests.actor_service.uploading.uploader_side import FOREVER, SPEC, Side, put, segments, wait_until


def test_it_opens_the_stream_with_its_name_life_and_environment(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start()
    opened = learner.opened()
    assert uploader.acknowledged == 0
    assert (opened.actor_name, opened.incarnation, opened.lost_through_sequence) == ("actor-0", 7, 0)
    assert wire.environment_from_proto(opened.environment) == SPEC


def test_segments_are_sent_in_order_within_the_credit(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start(capacity=5)
    learner.opened()
    put(uploader, 1, 2, 3, 4, 5)
    learner.answer(credit=2)
    assert learner.received(2) == segments(1, 2)
    assert learner.items.empty()
    assert uploader.queued == 5
    learner.answer(acknowledged=1, credit=4)
    assert learner.received(2) == segments(3, 4)
    learner.answer(acknowledged=5, credit=5)
    assert learner.received(1) == segments(5)


class Putting(threading.Thread):
    """Puts a segment on its own thread, because it may have to wait."""

    def __init__(self, uploader: Uploader, sequence: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._uploader, self._sequence, self._stop_event = uploader, sequence, stop
        self.start()

    def run(self) -> None:
        self._uploader.put(small_segment(self._sequence), self._stop_event)


def test_a_full_queue_blocks_until_there_is_credit(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start(capacity=2)
    learner.opened()
    put(uploader, 1, 2)
    putting = Putting(uploader, 3, FOREVER)
    assert uploader.queued == 2
    learner.answer(credit=1)
    assert learner.received(1) == segments(1)
    putting.join(DEADLINE_S)
    assert uploader.queued == 3
    learner.answer(acknowledged=1, credit=3)
    assert learner.received(2) == segments(2, 3)


def test_the_last_item_goes_into_a_full_queue_when_the_actor_stops(side: Side) -> None:
    uploader, stop = side.start(capacity=1), threading.Event()
    put(uploader, 1)
    putting = Putting(uploader, 2, stop)
    assert uploader.queued == 1
    stop.set()
    uploader.wake()
    putting.join(DEADLINE_S)
    assert not putting.is_alive()
    assert uploader.queued == 2
    # Without waiting: the loop that acts may come with its last segment when it already knows of the end.
    uploader.put(small_segment(3), stop)
    assert uploader.queued == 3


def test_the_last_item_is_flushed_like_all_others(learner: ScriptedLearner, side: Side) -> None:
    uploader, stop = side.start(capacity=1), threading.Event()
    learner.opened()
    put(uploader, 1)
    stop.set()
    uploader.put(small_segment(2), stop)
    learner.answer(credit=2)
    assert learner.received(2) == segments(1, 2)
    learner.answer(acknowledged=2, credit=2)
    assert uploader.flush(DEADLINE_S) == 0


def test_a_flush_of_abandoned_items_ends_at_once(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start(capacity=2)
    learner.opened()
    put(uploader, 1, 2)
    unsent: queue.Queue[int] = queue.Queue()
    flushing = threading.Thread(target=lambda: unsent.put(uploader.flush(threading.TIMEOUT_MAX)), daemon=True)
    flushing.start()
    uploader.abandon()
    assert unsent.get(timeout=DEADLINE_S) == 2
    assert uploader.flush(threading.TIMEOUT_MAX) == 2


def test_a_flush_ends_when_the_next_stream_begins_after_the_sent_items(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start()
    learner.opened()
    put(uploader, 1)
    learner.answer(credit=1)
    assert learner.received(1) == segments(1)
    unsent: queue.Queue[int] = queue.Queue()
    threading.Thread(target=lambda: unsent.put(uploader.flush(threading.TIMEOUT_MAX)), daemon=True).start()
    side.stored = 1
    learner.end()
    assert unsent.get(timeout=DEADLINE_S) == 0


def test_flush_counts_what_is_not_acknowledged(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start(capacity=3)
    learner.opened()
    put(uploader, 1, 2, 3)
    learner.answer(credit=2)
    assert learner.received(2) == segments(1, 2)
    assert uploader.flush(0.0) == 3
    learner.answer(acknowledged=2, credit=3)
    assert learner.received(1) == segments(3)  # sent after the answer was received
    assert uploader.flush(0.0) == 1
    learner.answer(acknowledged=3, credit=3)
    assert uploader.flush(DEADLINE_S) == 0
    assert uploader.acknowledged == 3


def test_an_evaluation_needs_no_credit(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start()
    learner.opened()
    uploader.put(Evaluation(1, 4, 100, "int8", (9.0,), (9,), 0.1), FOREVER)
    assert learner.received(1) == [("evaluation", 1)]
    learner.answer(acknowledged=1)
    assert uploader.flush(DEADLINE_S) == 0


def test_directives_reach_the_actor(learner: ScriptedLearner, side: Side) -> None:
    side.start()
    learner.opened()
    learner.answer(directive=learner_pb2.DIRECTIVE_EVALUATE, evaluate_version=12)
    assert side.evaluations.get(timeout=DEADLINE_S) == 12
    for steps in (96, 96, 0):
        learner.answer(max_steps_per_policy=steps)
    assert [side.shares.get(timeout=DEADLINE_S) for _ in range(2)] == [96, 0]
    learner.answer(directive=learner_pb2.DIRECTIVE_STOP)
    assert side.stops.get(timeout=DEADLINE_S)
    assert side.faults.empty()
    assert side.shares.empty()


def test_a_report_has_the_number_of_sent_items(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start(period_s=0.08)
    learner.opened()
    assert learner.sent.get(timeout=DEADLINE_S) == 0
    put(uploader, 1, 2)
    learner.answer(credit=2)
    learner.received(2)
    while (sent := learner.sent.get(timeout=DEADLINE_S)) < 2:
        assert sent in (0, 1)


def test_it_reports_at_once_and_then_every_period(learner: ScriptedLearner, side: Side) -> None:
    side.start(period_s=0.01)
    reports = [learner.reports.get(timeout=DEADLINE_S) for _ in range(3)]
    assert [report.environment_steps for report in reports] == [1, 2, 3]
    assert reports[0].policy_version == 3
    assert reports[0].process.name == "actor-0"


def test_the_last_message_is_a_report(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start()
    assert learner.reports.get(timeout=DEADLINE_S).environment_steps == 1
    uploader.close()
    assert learner.reports.get(timeout=DEADLINE_S).environment_steps == 2


def test_a_report_follows_the_first_segment_even_in_a_short_run(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start(period_s=1_000.0)
    learner.reports.get(timeout=DEADLINE_S)
    learner.answer(credit=1)
    uploader.put(small_segment(1), FOREVER)
    assert learner.reports.get(timeout=DEADLINE_S).environment_steps == 2
    # No report follows the next ones, and the last message is the third report.
    learner.answer(acknowledged=1, credit=3)
    put(uploader, 2, 3)
    learner.received(3)
    assert learner.reports.empty()
    uploader.close()
    assert learner.reports.get(timeout=DEADLINE_S).environment_steps == 3


def test_closing_ends_the_stream_without_a_fault(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start()
    learner.opened()
    put(uploader, 1)
    uploader.close()
    assert "uploader" not in {thread.name for thread in threading.enumerate()}
    assert uploader.flush(DEADLINE_S) == 1
    assert side.faults.empty()


class SilentLearner(ScriptedLearner):
    """Keeps a stream open after the actor has ended its side."""

    async def _read(
        self, requests: AsyncIterator[learner_pb2.StreamTrajectoriesRequest], commands: asyncio.Queue[Any]
    ) -> None:
        await super()._read(requests, asyncio.Queue())


def test_closing_does_not_wait_for_a_learner_that_stays_silent() -> None:
    silent = SilentLearner()
    with serving(silent) as address, LearnerClient(address) as client:
        side = Side(client)
        uploader = side.start()
        silent.opened()
        uploader.close()
        assert "uploader" not in {thread.name for thread in threading.enumerate()}
        assert side.faults.empty()


def test_a_wait_for_credit_ends_when_the_next_segment_may_be_sent(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start()
    learner.opened()
    learner.answer(credit=1)
    uploader.await_credit(FOREVER)
    put(uploader, 1)
    waiting = threading.Thread(target=lambda: uploader.await_credit(FOREVER), daemon=True)
    waiting.start()
    learner.answer(acknowledged=1, credit=1)
    wait_until(lambda: uploader.acknowledged == 1)
    assert waiting.is_alive()
    learner.answer(acknowledged=1, credit=2)
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()


def test_a_wait_for_credit_ends_with_the_actor(side: Side) -> None:
    uploader, stop = side.start(), threading.Event()
    waiting = threading.Thread(target=lambda: uploader.await_credit(stop), daemon=True)
    waiting.start()
    stop.set()
    uploader.wake()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()


def test_items_are_kept_in_order_until_they_are_durable() -> None:
    unflushed = UnflushedItems()
    for sequence in range(1, 6):
        unflushed.add(small_segment(sequence))
    unflushed.forget_through(3)
    assert [item.sequence for item in unflushed.pop_all()] == [4, 5]
    assert len(unflushed) == 0


def test_the_oldest_items_are_dropped_above_the_limits_of_number_and_bytes() -> None:
    few = UnflushedItems(most_items=2)
    for sequence in range(1, 5):
        few.add(small_segment(sequence))
    assert [item.sequence for item in few.pop_all()] == [3, 4]
    size = small_segment(1).observations.nbytes
    small = UnflushedItems(most_bytes=3 * size)
    for sequence in range(1, 50):
        small.add(small_segment(sequence))
    assert 1 <= len(small) <= 2
    assert small.pop_all()[-1].sequence == 49
    small.add(small_segment(50))
    assert len(small) == 1


def test_an_item_that_is_larger_than_the_bound_is_not_kept() -> None:
    unflushed = UnflushedItems(most_bytes=8)
    unflushed.add(small_segment(1))
    assert len(unflushed) == 0
    unflushed.add(Evaluation(2, 1, 0, "int8", (1.0,), (10,), 0.5))
    assert [item.sequence for item in unflushed.pop_all()] == [2]
