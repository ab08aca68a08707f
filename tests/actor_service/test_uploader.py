"""Exactly once and in order, whatever the learner at the other end does."""

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from actor_service.environments import describe_environment
from actor_service.uploader import Uploader
from actorq import wire
from actorq.client import LearnerClient
from actorq.domain.status import ActorReport, Exploration, Membership, RunSpec
from actorq.domain.trajectory import Evaluation
from actorq.errors import ActorQError, ConflictError, InvalidInputError, NotFoundError, UnavailableError, UserError
from actorq.telemetry.process_stats import measure_process
from actorq.v1 import learner_pb2
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedLearner, serving, small_segment

SPEC = describe_environment("CartPole-v1")
RUN = RunSpec("run", "CartPole-v1", 1, 8, 2**20, 2, "int8", 20, 250, 1.0, 0)
FOREVER = threading.Event()


class Side:
    """The actor around an uploader: what it joins with, and what it is told."""

    def __init__(self, client: LearnerClient) -> None:
        self.stored = 0
        self.joins = 0
        self.away = 0
        self.steps = 0
        self.stops: queue.Queue[bool] = queue.Queue()
        self.evaluations: queue.Queue[int] = queue.Queue()
        self.faults: queue.Queue[BaseException] = queue.Queue()
        self.uploader = Uploader(
            client,
            "actor-0",
            self._join,
            self._report,
            on_stop=lambda: self.stops.put(True),
            on_evaluate=self.evaluations.put,
            on_fault=self.faults.put,
        )

    def start(self, capacity: int = 2, period_s: float = 1_000.0) -> Uploader:
        self.uploader.start(SPEC, capacity, period_s)
        return self.uploader

    def fault(self) -> BaseException:
        return self.faults.get(timeout=DEADLINE_S)

    def _join(self) -> Membership:
        self.joins += 1
        if self.away:
            self.away -= 1
            raise UnavailableError("the learner cannot be reached")
        return Membership(RUN, 0, Exploration((0.1,), (0.2,)), self.stored, 7, incarnation=7)

    def _report(self) -> ActorReport:
        self.steps += 1
        return ActorReport(3, "int8", self.steps, 1.0, self.uploader.queued, (), measure_process("actor-0", "actor"))


@pytest.fixture
def learner() -> ScriptedLearner:
    return ScriptedLearner()


@pytest.fixture
def side(learner: ScriptedLearner) -> Iterator[Side]:
    with serving(learner) as address, LearnerClient(address) as client:
        side = Side(client)
        yield side
        side.uploader.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for the uploader's thread to have seen an answer."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        FOREVER.wait(0.005)


def segments(*sequences: int) -> list[tuple[str, int]]:
    return [("segment", sequence) for sequence in sequences]


def put(uploader: Uploader, *sequences: int) -> None:
    for sequence in sequences:
        uploader.put(small_segment(sequence), FOREVER)


def test_it_opens_the_stream_with_its_name_life_and_environment(learner: ScriptedLearner, side: Side) -> None:
    side.start()
    opened = learner.opened()
    assert (opened.actor_name, opened.incarnation) == ("actor-0", 7)
    assert wire.environment_from_proto(opened.environment) == SPEC


def test_segments_go_up_in_order_as_far_as_the_credit_reaches(learner: ScriptedLearner, side: Side) -> None:
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
    """Puts a segment on a thread of its own, for it may have to wait."""

    def __init__(self, uploader: Uploader, sequence: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._uploader, self._sequence, self._stop_event = uploader, sequence, stop
        self.start()

    def run(self) -> None:
        self._uploader.put(small_segment(self._sequence), self._stop_event)


def test_a_full_queue_lets_nothing_in_until_there_is_credit(learner: ScriptedLearner, side: Side) -> None:
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


def test_flushing_what_nobody_will_store_ends_at_once(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start(capacity=2)
    learner.opened()
    put(uploader, 1, 2)
    unsent: queue.Queue[int] = queue.Queue()
    flushing = threading.Thread(target=lambda: unsent.put(uploader.flush(threading.TIMEOUT_MAX)), daemon=True)
    flushing.start()
    uploader.abandon()
    assert unsent.get(timeout=DEADLINE_S) == 2
    assert uploader.flush(threading.TIMEOUT_MAX) == 2


def test_flushing_ends_when_the_next_stream_begins_after_what_was_sent(learner: ScriptedLearner, side: Side) -> None:
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


@pytest.mark.parametrize("stored", [2, 3, 4], ids=lambda stored: f"{stored} stored, 2 acknowledged")
def test_after_a_broken_stream_it_goes_on_after_what_is_stored(
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


def test_flush_counts_what_is_not_acknowledged(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start(capacity=3)
    learner.opened()
    put(uploader, 1, 2, 3)
    learner.answer(credit=2)
    assert learner.received(2) == segments(1, 2)
    assert uploader.flush(0.0) == 3
    learner.answer(acknowledged=2, credit=3)
    assert learner.received(1) == segments(3)  # sent after the answer was taken
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
    learner.answer(directive=learner_pb2.DIRECTIVE_STOP)
    assert side.stops.get(timeout=DEADLINE_S)
    assert side.faults.empty()


def test_a_report_tells_how_much_was_sent(learner: ScriptedLearner, side: Side) -> None:
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


def test_the_last_word_is_a_report(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start()
    assert learner.reports.get(timeout=DEADLINE_S).environment_steps == 1
    uploader.close()
    assert learner.reports.get(timeout=DEADLINE_S).environment_steps == 2


def test_a_report_follows_the_first_segment_however_short_the_run(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start(period_s=1_000.0)
    learner.reports.get(timeout=DEADLINE_S)
    learner.answer(credit=1)
    uploader.put(small_segment(1), FOREVER)
    assert learner.reports.get(timeout=DEADLINE_S).environment_steps == 2


def test_a_learner_that_is_away_or_has_forgotten_the_actor_is_joined_again(
    learner: ScriptedLearner, side: Side
) -> None:
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
def test_what_trying_again_would_not_mend_is_a_fault(learner: ScriptedLearner, side: Side, error: ActorQError) -> None:
    uploader = side.start()
    learner.opened()
    put(uploader, 1)
    learner.answer(credit=1)
    assert learner.received(1) == segments(1)
    learner.fail(error)
    fault = side.fault()
    assert isinstance(fault, type(error))
    assert str(error) in str(fault)
    # After a conflict it asks once more whether its name is its own.
    assert side.joins == 1 + isinstance(error, ConflictError)


def test_an_answer_that_cannot_be_is_one_of_a_learner_that_may_be_mended(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start()
    learner.opened()
    learner.answer(credit=2**64 - 1)
    learner.opened()
    assert side.joins == 2
    put(uploader, 1)
    learner.answer(credit=1)
    assert learner.received(1) == segments(1)
    assert side.faults.empty()


def test_an_environment_that_the_run_cannot_use_is_the_users_mistake(learner: ScriptedLearner, side: Side) -> None:
    side.start()
    learner.opened()
    learner.fail(InvalidInputError("algorithm dqn needs discrete actions"))
    fault = side.fault()
    assert isinstance(fault, UserError)
    assert str(fault) == "algorithm dqn needs discrete actions"
    assert side.joins == 1


def test_what_a_power_cut_took_of_the_acknowledged_segments_is_sent_again(
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
    learner.answer(acknowledged=1, credit=4, durable_sequence=1)
    assert learner.received(3) == segments(2, 3, 4)
    assert side.faults.empty()
    [line] = [record.message for record in caplog.records if "has lost" in record.message]
    assert "has lost 2 acknowledged items after number 1: 2 are sent again, 0 cannot be recovered" in line


def test_a_loss_that_cannot_be_made_good_is_told_and_the_actor_goes_on(
    learner: ScriptedLearner, side: Side, caplog: pytest.LogCaptureFixture
) -> None:
    uploader = side.start(capacity=4)
    learner.opened()
    put(uploader, 1, 2, 3)
    learner.answer(credit=3)
    assert learner.received(3) == segments(1, 2, 3)
    # The learner says that 2 is on its disk, and comes back from an older copy of it.
    learner.answer(acknowledged=3, credit=3, durable_sequence=2)
    assert uploader.flush(DEADLINE_S) == 0
    side.stored = 0
    learner.end()
    assert learner.opened().lost_through_sequence == 2
    learner.answer(acknowledged=2, credit=3, durable_sequence=0)
    assert learner.received(1) == segments(3)
    [line] = [record.message for record in caplog.records if "has lost" in record.message]
    assert "has lost 3 acknowledged items after number 0: 1 are sent again, 2 cannot be recovered" in line


def test_an_actor_that_kept_nothing_goes_on_with_the_next_number(learner: ScriptedLearner, side: Side) -> None:
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


def test_what_is_stored_and_not_durable_is_kept_when_its_acknowledgement_was_lost(
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


def test_closing_ends_the_stream_without_a_fault(learner: ScriptedLearner, side: Side) -> None:
    uploader = side.start()
    learner.opened()
    put(uploader, 1)
    uploader.close()
    assert "uploader" not in {thread.name for thread in threading.enumerate()}
    assert uploader.flush(DEADLINE_S) == 1
    assert side.faults.empty()


def test_who_waits_for_credit_goes_on_when_the_next_segment_may_be_sent(learner: ScriptedLearner, side: Side) -> None:
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
