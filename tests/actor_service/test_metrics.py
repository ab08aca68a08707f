"""The metrics of an actor before its first stream."""

import pytest

from actor_service.metrics import actor_metrics
from actor_service.roles.actor_role import Host
from actor_service.roles.evaluator import Evaluator
from actor_service.roles.explorer import Explorer
from actorq.client import LearnerClient, QuantizerClient

# Nothing listens there.
NOBODY = "127.0.0.1:9"


@pytest.mark.parametrize("role", [Explorer, Evaluator])
def test_before_it_has_joined_an_actor_has_done_nothing(role: type[Explorer] | type[Evaluator]) -> None:
    host = Host("a", lambda: QuantizerClient(NOBODY), on_end=print)
    with LearnerClient(NOBODY) as learner:
        found = {sample.name: sample.value for each in actor_metrics(role(host, learner)) for sample in each.samples}
    assert found.pop("actorq_actor_info") == 1
    assert found.pop("actorq_actor_acknowledged_segments_total") == 0
    assert not any(found.values())
