"""A thread follows the learner's status for a command."""

import pytest

from actorq.domain.status import RunStatus
from actorq_apps.local.watching import StatusWatch
from tests.actorq.transport.staged_servicer import StagedLearner, serving


def test_a_failing_receiver_ends_the_watch_with_its_error() -> None:
    def receive(status: RunStatus) -> None:
        raise BrokenPipeError

    with serving(StagedLearner()) as stage:
        watch = StatusWatch(stage.address, None, receive)
        try:
            with pytest.raises(BrokenPipeError):
                watch.wait()
        finally:
            watch.close()
