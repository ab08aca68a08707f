"""Keeps the events of a run for one reader, within bounds."""

from collections import deque
from threading import Condition

from actorq_apps.python.events import Event, StatusEvent

# A reader that is slower than the run loses the oldest events.
_MOST_EVENTS = 1000


class EventBuffer:
    """The events that a reader has not read yet: at most 1,000. Of successive statuses, only the newest is kept."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._changed = Condition()

    def put(self, event: Event) -> None:
        """Add an event. Never blocks."""
        with self._changed:
            if isinstance(event, StatusEvent) and self._events and isinstance(self._events[-1], StatusEvent):
                self._events.pop()
            self._events.append(event)
            self._changed.notify()

    def get(self) -> Event:
        """Wait for the next event."""
        with self._changed:
            self._changed.wait_for(lambda: self._events)
            return self._events.popleft()
