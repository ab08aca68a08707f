"""The operator's Prometheus metrics: the leader, runs by state, reconciliations by result, and waiting runs."""

from collections.abc import Iterator

import pytest

from actorq_apps.operator.controller import Controller, DueQueue
from actorq_apps.operator.leader import Leader
from actorq_apps.operator.metrics import operator_metrics
from actorq_apps.operator.reconcile import Key
from sitegen import metrics
from tests.actorq_apps.operator.kube_api import NAMESPACE
from tests.actorq_apps.operator.operator_world import KEY, World, operator_world, training_run


@pytest.fixture
def world() -> Iterator[World]:
    with operator_world() as found:
        yield found


class Replica:
    """A replica of the operator without its threads."""

    def __init__(self, world: World) -> None:
        cluster = world.api.cluster()
        self.queue: DueQueue[Key] = DueQueue()
        self.leader = Leader(cluster, "a", "1.0")
        self.controller = Controller(cluster, (NAMESPACE,), self.queue, world.operator)

    def samples(self) -> dict[tuple[str, ...], float]:
        """The samples by name and label values."""
        found = operator_metrics(self.leader, self.controller, self.queue)
        return {(each.name, *each.labels.values()): each.value for family in found for each in family.samples}


def test_the_operator_has_the_documented_metrics(world: World) -> None:
    replica = Replica(world)
    told = {(each.name, each.type) for each in operator_metrics(replica.leader, replica.controller, replica.queue)}
    documented = metrics.of_service(metrics.OPERATOR)
    assert told == {(each.name.removesuffix("_total"), each.kind) for each in documented}


def test_the_leading_replica_is_a_metric(world: World) -> None:
    replica = Replica(world)
    assert replica.samples()["actorq_operator_leading",] == 0
    assert replica.leader.acquire()
    assert replica.samples()["actorq_operator_leading",] == 1
    replica.leader.release()
    assert replica.samples()["actorq_operator_leading",] == 0


def test_runs_are_counted_by_state(world: World) -> None:
    replica = Replica(world)
    world.start()
    world.settle()
    world.api.put(training_run("other", suspend=True))
    world.settle(Key(NAMESPACE, "other"))
    samples = replica.samples()
    assert samples["actorq_operator_runs", "Training"] == 1
    assert samples["actorq_operator_runs", "Suspended"] == 1
    assert samples["actorq_operator_runs", "Pending"] == 0
    world.api.delete("TrainingRun", "other")
    replica.controller.reconcile(Key(NAMESPACE, "other"))
    assert replica.samples()["actorq_operator_runs", "Suspended"] == 0


def test_counts_reconciliations_by_result(world: World) -> None:
    replica = Replica(world)
    world.run()
    replica.controller.reconcile(KEY)
    world.api.refuse = lambda verb, kind, name: (500, "down")
    replica.controller.reconcile(KEY)
    replica.controller.reconcile(KEY)
    samples = replica.samples()
    results = {result: samples["actorq_operator_reconciles_total", result] for result in ("done", "conflict", "failed")}
    assert results == {"done": 1, "conflict": 0, "failed": 2}
    assert samples["actorq_operator_reconcile_seconds_count",] == 3
    assert samples["actorq_operator_reconcile_seconds_sum",] > 0


def test_counts_runs_that_wait_for_a_reconciliation(world: World) -> None:
    replica = Replica(world)
    for name in ("a", "b"):
        world.api.put(training_run(name))
    replica.controller.list_runs()
    replica.queue.put(KEY, 1000.0)
    assert replica.samples()["actorq_operator_due_runs",] == 2
