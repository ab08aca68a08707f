"""An uploader with a learner that a test scripts."""

from collections.abc import Iterator

import pytest

from actorq.client import LearnerClient
from tests.actor_service.actor_peers import ScriptedLearner
from tests.actor_service.uploading.uploader_side import Side


@pytest.fixture
def side(learner: ScriptedLearner) -> Iterator[Side]:
    with LearnerClient(learner.address) as client:
        side = Side(client)
        yield side
        side.uploader.close()
