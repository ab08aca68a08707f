"""Health of the reconciling thread, as probes see it."""

import threading
from collections.abc import Iterator

import pytest

from actorq_apps.operator.controller import DONE, LOOK_LIMIT_S, Controller, DueQueue
from actorq_apps.operator.reconcile import Key
from tests.actorq_apps.cluster.hanging import hanging
from tests.actorq_apps.operator.kube_api import NAMESPACE
from tests.actorq_apps.operator.operator_world import World, operator_world


@pytest.fixture
def world() -> Iterator[World]:
    with operator_world() as found:
        yield found


class Running:
    """A controller that runs in a thread, with a clock that the test advances."""

    def __init__(self, world: World) -> None:
        self.at = 0.0
        self.queue: DueQueue[Key] = DueQueue()
        self.controller = Controller(world.api.cluster(), (NAMESPACE,), self.queue, world.operator, lambda: self.at)
        self._thread = threading.Thread(target=self.controller.run)

    def __enter__(self) -> "Running":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.queue.close()
        self._thread.join(20)


@pytest.mark.parametrize(("verb", "doing"), [("get", "a look at a run"), ("list", "the list of runs")])
def test_a_hanging_reconciliation_is_unhealthy_until_it_ends(world: World, verb: str, doing: str) -> None:
    world.run()
    running = Running(world)
    with hanging(world.api, lambda each, kind: (each, kind) == (verb, "TrainingRun")) as requests, running:
        assert requests.begun.wait(20)
        assert running.controller.works()
        running.at = LOOK_LIMIT_S + 1
        assert not running.controller.works()
        requests.released.set()
        while not running.controller.works():
            running.queue.put(Key(NAMESPACE, "tiny"))
    assert running.controller.works()


def test_a_controller_that_waits_for_news_is_healthy(world: World) -> None:
    running = Running(world)
    assert running.controller.works()
    running.at = 10 * LOOK_LIMIT_S
    assert running.controller.works()


def test_an_ended_controller_is_unhealthy_unless_its_queue_is_closed(world: World) -> None:
    def broken() -> float:
        raise OSError("no clock")

    queue: DueQueue[Key] = DueQueue()
    controller = Controller(world.api.cluster(), (NAMESPACE,), queue, world.operator, broken)
    with pytest.raises(OSError, match="no clock"):
        controller.run()
    assert not controller.works()
    with Running(world) as running:
        pass
    assert running.controller.works()


def test_a_list_that_cannot_be_read_does_not_end_the_controller(world: World) -> None:
    # A real server always sets an object's namespace.
    path = "/apis/actorq.dev/v1alpha1/namespaces/lab/trainingruns/odd"
    world.api.objects[path] = {"kind": "TrainingRun", "metadata": {"name": "odd"}}
    world.run()
    running = Running(world)
    with running:
        while not running.controller.reconciles[DONE]:
            running.queue.put(Key(NAMESPACE, "tiny"))
        assert running.controller.works()
