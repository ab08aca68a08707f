"""A learner and a quantizer that a test scripts."""

from collections.abc import Iterator

import pytest

from tests.actor_service.actor_peers import ScriptedLearner, ScriptedQuantizer, serving


@pytest.fixture
def quantizer() -> Iterator[ScriptedQuantizer]:
    peer = ScriptedQuantizer()
    with serving(peer):
        yield peer


@pytest.fixture
def learner() -> Iterator[ScriptedLearner]:
    peer = ScriptedLearner()
    with serving(peer):
        yield peer
