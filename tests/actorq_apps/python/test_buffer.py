"""Events of a run wait for their reader, within bounds."""

from actorq_apps.python.buffer import EventBuffer
from actorq_apps.python.events import NoticeEvent, StatusEvent
from tests.builders.run_status import run_status


def test_of_statuses_in_a_row_a_slow_reader_gets_the_newest() -> None:
    buffer = EventBuffer()
    for steps in (1, 2, 3):
        buffer.put(StatusEvent(run_status(environment_steps=steps)))
    buffer.put(NoticeEvent("restarted"))
    buffer.put(StatusEvent(run_status(environment_steps=4)))
    first, second, third = (buffer.get() for _ in range(3))
    assert isinstance(first, StatusEvent)
    assert first.status.environment_steps == 3
    assert second == NoticeEvent("restarted")
    assert isinstance(third, StatusEvent)
    assert third.status.environment_steps == 4


def test_a_reader_that_never_reads_costs_no_more_than_a_thousand_events() -> None:
    buffer = EventBuffer()
    for number in range(1500):
        buffer.put(NoticeEvent(str(number)))
    assert buffer.get() == NoticeEvent("500")
