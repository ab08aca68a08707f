"""The operator against an API server and a learner: objects, status, events, the end of a run, and refusals."""

import asyncio
import itertools
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any

import pytest

from actorq import wire
from actorq.domain.status import ActorStatus, RunState, RunStatus
from actorq.errors import ActorQError
from actorq.operator.controller import Controller
from actorq.operator.duequeue import DueQueue
from actorq.operator.reconcile import PERIOD_S, Key, Reconciler
from actorq.transport.server import Server
from actorq.v1 import learner_pb2, learner_pb2_grpc
from tests.actorq.operator.kube_api import NAMESPACE, RUNS, KubeApi, Object, kube_api
from tests.builders.run_status import run_status

KEY = Key(NAMESPACE, "tiny")
NOW = 1_800_000_000.0
ACTING = (ActorStatus("actor-1", "actor", 0, True, None),)


class Learner(learner_pb2_grpc.LearnerServiceServicer):
    """Sends each status that a test puts, from a server in a thread."""

    def __init__(self) -> None:
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._statuses: asyncio.Queue[RunStatus] = asyncio.Queue()

    def put(self, status: RunStatus) -> None:
        self._loop.call_soon_threadsafe(self._statuses.put_nowait, status)

    async def WatchStatus(  # noqa: N802
        self, request: learner_pb2.WatchStatusRequest, context: object
    ) -> AsyncIterator[learner_pb2.WatchStatusResponse]:
        while True:
            status = await self._statuses.get()
            yield learner_pb2.WatchStatusResponse(status=wire.run_status_to_proto(status))
            if status.state.final:
                return

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(grace_s=0.0), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()

    async def _start(self) -> Server:
        server = Server("127.0.0.1:0")
        learner_pb2_grpc.add_LearnerServiceServicer_to_server(self, server.grpc_server)
        self.address = await server.start(["actorq.v1.LearnerService"])
        return server


class World:
    """The cluster, the learner, a clock, and an operator that may be replaced."""

    def __init__(self, api: KubeApi, learner: Learner) -> None:
        self.api = api
        self.learner = learner
        self.at = NOW
        self.steps = 0
        self.woken: queue.Queue[Key] = queue.Queue()
        self.operator = self.another()

    def another(self) -> Reconciler:
        """An operator that knows nothing yet."""
        return Reconciler(
            self.api.cluster,
            self.woken.put,
            address_of=lambda key: self.learner.address,
            clock=lambda: self.at,
            now=lambda: self.at,
        )

    def run(self, **spec: Any) -> Object:
        return self.api.put(training_run(**spec))

    def look(self, key: Key = KEY) -> float | None:
        return self.operator.reconcile(key)

    def settle(self, key: Key = KEY) -> None:
        """Look until nothing is left to do."""
        writes = -1
        while writes != len(self.api.writes):
            writes = len(self.api.writes)
            self.look(key)
            self.at += PERIOD_S

    def send(self, **changes: Any) -> None:
        """Let the learner say something, and look until it is in the status of the run."""
        self.steps = changes.get("environment_steps", self.steps + 100)
        self.learner.put(run_status(**{"actors": ACTING, "environment_steps": self.steps, **changes}))
        while self.api.status("tiny").get("environmentSteps") != self.steps:
            with suppress(queue.Empty):
                self.woken.get(timeout=0.05)
            self.at += PERIOD_S
            self.look()

    def start(self, **spec: Any) -> None:
        """A run whose learner answers."""
        self.run(**spec)
        self.look()
        self.api.kubelet()
        self.look()
        self.send(environment_steps=100)


def training_run(name: str = "tiny", **spec: Any) -> Object:
    given = {"environment": "CartPole-v1", "tls": {"mode": "none"}, **spec}
    return {"apiVersion": RUNS, "kind": "TrainingRun", "metadata": {"name": name}, "spec": given}


@pytest.fixture
def world() -> Iterator[World]:
    learner = Learner()
    with kube_api() as api, learner.serving():
        world = World(api, learner)
        try:
            yield world
        finally:
            world.operator.close()


def test_a_run_becomes_objects_that_it_owns(world: World) -> None:
    uid = world.run()["metadata"]["uid"]
    world.look()
    assert world.api.names("StatefulSet") == {"tiny-learner"}
    assert world.api.names("Deployment") == {"tiny-quantizer", "tiny-actor", "tiny-evaluator"}
    assert world.api.get("Deployment", "tiny-actor")["metadata"]["ownerReferences"][0]["uid"] == uid
    assert world.api.status("tiny")["state"] == "Pending"
    assert world.api.condition("tiny", "Ready")["reason"] == "Starting"


def test_a_second_look_writes_nothing(world: World) -> None:
    world.run(tls={"mode": "generated"})
    world.look()
    writes = len(world.api.writes)
    world.at += 100
    world.look()
    assert len(world.api.writes) == writes


def test_an_object_that_somebody_deleted_comes_back(world: World) -> None:
    world.run()
    world.look()
    world.api.delete("Deployment", "tiny-actor")
    world.look()
    assert "tiny-actor" in world.api.names("Deployment")


def test_scaling_the_run_scales_its_actors_and_nothing_else(world: World) -> None:
    world.run()
    world.look()
    world.api.writes.clear()
    world.api.scale("tiny", 6)
    world.look()
    assert world.api.get("Deployment", "tiny-actor")["spec"]["replicas"] == 6
    assert [each for each in world.api.writes if each[0] == "apply"] == [("apply", "Deployment", "tiny-actor")]


def test_the_actors_follow_the_run_and_not_whoever_scales_their_deployment(world: World) -> None:
    world.run()
    world.look()
    scaled = deepcopy(world.api.get("Deployment", "tiny-actor"))
    scaled["spec"]["replicas"] = 9
    world.api.put(scaled)
    world.look()
    assert world.api.get("Deployment", "tiny-actor")["spec"]["replicas"] == 2


def test_relays_that_are_no_longer_wanted_go(world: World) -> None:
    world.run(relays={"replicas": 2})
    world.look()
    assert "tiny-relay" in world.api.names("Deployment")
    world.run()
    world.look()
    assert "tiny-relay" not in world.api.names("Deployment")
    assert "tiny-actor" in world.api.names("Deployment")


def test_the_status_of_the_learner_becomes_the_status_of_the_run(world: World) -> None:
    world.start()
    world.send(environment_steps=4000, environment_steps_per_s=812.34, policy_version=3)
    status = world.api.status("tiny")
    assert (status["state"], status["environmentSteps"], status["stepsPerSecond"]) == ("Training", 4000, 812.3)
    assert (status["policyVersion"], status["actors"]) == (3, 2)
    assert status["selector"] == "actorq/run=tiny,app.kubernetes.io/component=actor"
    assert world.api.condition("tiny", "Ready")["status"] == "True"
    assert world.api.condition("tiny", "Training")["status"] == "True"


def test_figures_are_written_at_most_once_in_five_seconds_and_a_new_state_at_once(world: World) -> None:
    world.start()
    before, began = world.api.count("patch status", "TrainingRun"), world.at
    while world.at < began + 60 or world.api.status("tiny")["environmentSteps"] < 1000:
        world.learner.put(run_status(environment_steps=1000 + int(world.at - began), actors=ACTING))
        world.at += 1
        world.look()
    writes = world.api.count("patch status", "TrainingRun")
    assert writes - before <= (world.at - began) / PERIOD_S
    world.learner.put(run_status(state=RunState.PAUSED, environment_steps=5000, actors=ACTING))
    while world.api.status("tiny")["state"] != "Paused":
        world.woken.get(timeout=10)
        world.look()
    assert world.api.count("patch status", "TrainingRun") == writes + 1


def test_milestones_are_events_each_once(world: World) -> None:
    world.start()
    world.send(state=RunState.PAUSED, policy_version=1)
    world.send(state=RunState.TRAINING, policy_version=2)
    world.send(state=RunState.INTERRUPTED)
    world.send(state=RunState.TRAINING)
    world.send(state=RunState.SOLVED)
    assert world.api.reasons() == ["FirstPolicy", "Interrupted", "Resumed", "Solved"]


def test_at_the_end_actors_go_then_the_rest_but_volumes_and_the_status(world: World) -> None:
    world.start(ttlSecondsAfterFinished=100)
    world.send(state=RunState.SOLVED, environment_steps=30_000)
    assert world.api.condition("tiny", "Solved")["status"] == "True"
    world.settle()
    replicas = {name: world.api.get("Deployment", name)["spec"]["replicas"] for name in world.api.names("Deployment")}
    assert replicas == {"tiny-actor": 0, "tiny-evaluator": 0, "tiny-quantizer": 1}
    assert world.api.get("StatefulSet", "tiny-learner")["spec"]["replicas"] == 1
    world.at += 100
    world.settle()
    left = {kind for kind, _ in world.api.objects}
    assert left == {"TrainingRun", "PersistentVolumeClaim", "Event"}
    assert world.api.status("tiny")["state"] == "Solved"
    assert world.api.status("tiny")["environmentSteps"] == 30_000
    assert world.look() is None


def test_an_operator_that_comes_after_the_end_keeps_the_status(world: World) -> None:
    world.start(ttlSecondsAfterFinished=0)
    world.send(state=RunState.BUDGET_ENDED)
    world.settle()
    before = world.api.status("tiny")
    world.operator = world.another()
    world.settle()
    assert world.api.status("tiny") == before
    assert world.api.condition("tiny", "Solved")["reason"] == "BudgetEnded"


def test_a_suspended_run_has_no_pods_and_goes_on_afterwards(world: World) -> None:
    world.start()
    world.run(suspend=True)
    world.look()
    world.api.kubelet()
    world.settle()
    assert not world.api.names("Pod")
    assert world.api.status("tiny")["state"] == "Suspended"
    assert world.api.condition("tiny", "Suspended")["status"] == "True"
    world.run()
    world.look()
    world.api.kubelet()
    world.look()
    assert "tiny-learner-0" in world.api.names("Pod")
    assert world.api.condition("tiny", "Suspended")["status"] == "False"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"environment": ""}, "environment"),
        ({"config": {"no_such_setting": 1}}, "no_such_setting"),
        ({"config": {"environment": "Pendulum-v1"}}, "spec.config.environment"),
    ],
)
def test_an_impossible_setting_is_refused_before_any_object(world: World, spec: Object, text: str) -> None:
    world.run(**spec)
    world.look()
    failed = world.api.condition("tiny", "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "InvalidConfiguration")
    assert text in failed["message"]
    assert "\n" not in failed["message"]
    assert {kind for kind, _ in world.api.objects} == {"TrainingRun", "Event"}
    assert world.api.reasons() == ["InvalidConfiguration"]


def test_a_name_in_use_is_told_and_what_has_it_stays(world: World) -> None:
    taken = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "tiny-learner"}, "spec": {"mine": True}}
    world.api.put(taken)
    world.run()
    world.look()
    assert world.api.condition("tiny", "Failed")["reason"] == "NameInUse"
    assert "Service tiny-learner" in world.api.condition("tiny", "Failed")["message"]
    assert world.api.get("Service", "tiny-learner")["spec"] == {"mine": True}
    assert not world.api.names("Deployment")
    world.api.delete("Service", "tiny-learner")
    world.look()
    assert world.api.condition("tiny", "Failed")["status"] == "False"
    assert world.api.names("Deployment")


def test_a_retained_volume_of_an_earlier_run_of_that_name_is_used_again(world: World) -> None:
    world.run()
    world.look()
    world.api.delete("TrainingRun", "tiny")
    assert {kind for kind, _ in world.api.objects} <= {"PersistentVolumeClaim", "Event"}
    world.run()
    world.look()
    assert world.api.condition("tiny", "Failed")["status"] == "False"
    assert "tiny-learner" in world.api.names("StatefulSet")


def test_a_run_with_progress_keeps_its_settings(world: World) -> None:
    world.start()
    world.run(config={"replay": {"capacity": 12_345}})
    world.at += 5
    world.look()
    ready = world.api.condition("tiny", "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Immutable")
    assert "replay.capacity" in ready["message"]
    assert "12345" not in world.api.get("ConfigMap", "tiny-run-config")["data"]["config.yaml"]
    assert world.api.condition("tiny", "Failed")["status"] == "False"
    assert world.api.status("tiny")["state"] == "Training"


def test_deletion_while_pods_start_makes_nothing_again(world: World) -> None:
    world.run(checkpoint={"retain": False})
    world.look()
    world.api.get("TrainingRun", "tiny")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.api.delete("Deployment", "tiny-actor")
    assert world.look() is None
    assert "tiny-actor" not in world.api.names("Deployment")
    world.api.delete("TrainingRun", "tiny")
    assert world.look() is None
    assert {kind for kind, _ in world.api.objects} <= {"Event"}


def test_a_quota_is_named(world: World) -> None:
    def refuse(verb: str, kind: str, name: str) -> tuple[int, str] | None:
        return (
            (403, f'persistentvolumeclaims "{name}" is forbidden: exceeded quota: small')
            if (verb == "apply" and kind == "PersistentVolumeClaim")
            else None
        )

    world.api.refuse = refuse
    world.run()
    world.look()
    assert world.api.condition("tiny", "Ready")["reason"] == "Quota"
    assert "exceeded quota: small" in world.api.condition("tiny", "Ready")["message"]
    assert world.api.reasons() == ["Quota"]


def test_a_missing_permission_names_the_rule_to_add(world: World) -> None:
    said = 'User "operator" cannot patch resource "deployments" in API group "apps" in the namespace "lab"'
    world.api.refuse = lambda verb, kind, name: (403, said) if (verb, kind) == ("apply", "Deployment") else None
    world.run()
    world.look()
    ready = world.api.condition("tiny", "Ready")
    assert ready["reason"] == "NoPermission"
    assert "ask for a Role with the verb patch on deployments.apps" in ready["message"]


def test_pods_without_an_image_are_a_condition(world: World) -> None:
    world.run()
    world.look()
    world.api.kubelet()
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    pod = world.api.get("Pod", "tiny-learner-0")
    pod["status"] = {
        "phase": "Pending",
        "containerStatuses": [{"name": "c", "image": "x:1", "state": {"waiting": waiting}}],
    }
    world.look()
    assert world.api.condition("tiny", "Ready")["reason"] == "ImagePull"
    assert "x:1" in world.api.status("tiny")["reason"]
    assert world.api.reasons() == ["ImagePull"]


def test_an_operator_killed_after_any_request_leaves_the_same_end(world: World) -> None:
    """Each life of the operator makes some requests and dies: the next goes on, and nothing is told twice."""

    def live(requests: int) -> None:
        left = itertools.count(requests, -1)
        world.api.refuse = lambda verb, kind, name: (500, "killed") if next(left) <= 0 else None
        world.operator.close()
        world.operator = world.another()
        try:
            world.look()
        except ActorQError:
            pass
        finally:
            world.api.refuse = lambda verb, kind, name: None

    world.run(tls={"mode": "none"})
    whole = _requests_of(world, lambda: world.operator.reconcile(Key(NAMESPACE, "other")), "other")
    for requests in range(1, whole + 2):
        live(requests)
    assert world.api.names("Deployment") >= {"tiny-actor", "tiny-quantizer", "tiny-evaluator"}
    assert {name.replace("other", "tiny") for _, name in world.api.objects if name.startswith("other-")} <= {
        name for _, name in world.api.objects
    }
    assert len(world.api.reasons()) == len(set(world.api.reasons()))
    applied = [each for each in world.api.writes if each[0] == "apply" and each[2].startswith("tiny")]
    assert len(applied) == len(set(applied))


def _requests_of(world: World, do: Callable[[], object], name: str) -> int:
    """The number of requests that a complete look at another run makes."""
    count = itertools.count(1)
    last = 0

    def counted(verb: str, kind: str, called: str) -> None:
        nonlocal last
        last = next(count)

    world.api.put(training_run(name))
    world.api.refuse = counted
    do()
    world.api.refuse = lambda verb, kind, called: None
    return last


def test_a_conflict_with_another_client_is_looked_at_again(world: World) -> None:
    world.run()
    queue_of_runs: DueQueue[Key] = DueQueue()
    controller = Controller(world.api.cluster, (), queue_of_runs, world.operator)

    def scaled_meanwhile(verb: str, kind: str, name: str) -> None:
        if verb == "patch status" and world.api.get("TrainingRun", "tiny")["metadata"]["generation"] == 1:
            world.api.scale("tiny", 5)

    world.api.refuse = scaled_meanwhile
    controller.look(KEY)
    assert "status" not in world.api.get("TrainingRun", "tiny")
    assert queue_of_runs.take(10) == KEY
    controller.look(KEY)
    assert world.api.get("Deployment", "tiny-actor")["spec"]["replicas"] == 5


def test_twenty_runs_two_at_a_time_by_suspending_the_others(world: World) -> None:
    names = [f"run-{index}" for index in range(20)]
    for name in names:
        world.api.put(training_run(name, suspend=True))
        world.look(Key(NAMESPACE, name))
    world.api.kubelet()
    assert not world.api.names("Pod")
    for name in names[:2]:
        world.api.put(training_run(name))
        world.look(Key(NAMESPACE, name))
    world.api.kubelet()
    learners = {name for name in world.api.names("Pod") if name.endswith("-learner-0")}
    assert learners == {"run-0-learner-0", "run-1-learner-0"}
    for name in names:
        world.api.delete("TrainingRun", name)
    assert {kind for kind, _ in world.api.objects} <= {"PersistentVolumeClaim", "Event"}
