"""The watch of a learner ends by itself, and wakes the operator only for news."""

import threading

from actorq_apps.operator.status.answers import RunWatch

# Nothing listens there.
CLOSED = "127.0.0.1:1"
DEADLINE_S = 30.0


def test_an_unreachable_learner_does_not_wake_the_operator() -> None:
    woken = threading.Event()
    watch = RunWatch(CLOSED, None, woken.set)
    for thread in threading.enumerate():
        if thread.name == f"watch {CLOSED}":
            thread.join(DEADLINE_S)
    assert watch.ended
    assert watch.newest is None
    # The next reconciliation would start another watch, and so on without a pause.
    assert not woken.is_set()
