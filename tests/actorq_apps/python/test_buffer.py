"""Events of a run wait for their reader, within limits."""

from actorq_apps.python.buffer import EventBuffer
from actorq_apps.python.events import NoticeEvent, StatusEvent
from tests.builders.run_status import run_status


def test_a_slow_reader_gets_the_newest_of_successive_statuses() -> None:
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


def test_keeps_at_most_a_thousand_unread_events() -> None:
    buffer = EventBuffer()
    for number in range(1500):
        buffer.put(NoticeEvent(str(number)))
    assert buffer.get() == NoticeEvent("500")
