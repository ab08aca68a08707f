"""`up` waits for environment steps, and ends with one line if they cannot come."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from actorq.client import LearnerClient
from actorq.domain.status import RunState, RunStatus
from actorq.errors import ActorQError, UserError
from actorq.transport.server import Server
from actorq.v1 import learner_pb2, learner_pb2_grpc
from actorq_apps.cluster.access import forwarded, learner_of, matching
from actorq_apps.cluster.diagnosis import view
from actorq_apps.cluster.progress import await_progress
from tests.actorq_apps.cluster.cluster_api import ClusterApi, cluster_api
from tests.actorq_apps.cluster.cluster_objects import (
    Object,
    container,
    crash_loop,
    crashed_late,
    event,
    evicted_pod,
    owned,
    pod,
    ready_pod,
    waiting,
    workload,
)
from tests.builders.run_status import run_status

NOBODY = "127.0.0.1:9"


@dataclass
class Seen:
    statuses: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def status(self, status: RunStatus) -> None:
        self.statuses.append(status.environment_steps)

    def event(self, text: str) -> None:
        self.events.append(text)


class Counting(learner_pb2_grpc.LearnerServiceServicer):
    """A learner that reports the environment steps in a list, one value per request."""

    def __init__(self, steps: list[int], state: int = learner_pb2.RUN_STATE_TRAINING) -> None:
        self._steps = iter(steps)
        self._state = state

    async def GetStatus(  # noqa: N802
        self, request: learner_pb2.GetStatusRequest, context: object
    ) -> learner_pb2.GetStatusResponse:
        status = learner_pb2.RunStatus(environment_steps=next(self._steps), quantizer_connected=True)
        status.state = self._state  # type: ignore[assignment]
        return learner_pb2.GetStatusResponse(status=status)


@pytest.fixture
def api() -> Iterator[ClusterApi]:
    with cluster_api() as server:
        yield server


def wait(
    api: ClusterApi, learner: str = NOBODY, timeout_s: float = 60.0, until_over: bool = False
) -> tuple[RunStatus | None, Seen, str]:
    """The final status, the events, and the error line."""
    seen = Seen()
    with LearnerClient(learner) as client:
        try:
            end = await_progress(api.cluster(), client.status, timeout_s, seen, until_over=until_over, away_s=0.0)
            assert isinstance(end, RunStatus)
            return end, seen, ""
        except ActorQError as error:
            return None, seen, str(error)


def wait_for(api: ClusterApi, learner: Counting, **options: Any) -> tuple[RunStatus | None, Seen, str]:
    for name, role in (("learner-0", "learner"), ("quantizer-1", "quantizer"), ("actor-1", "actor")):
        api.add("v1", "pods", ready_pod(name, role))

    async def serve() -> tuple[RunStatus | None, Seen, str]:
        server = Server("127.0.0.1:0")
        learner_pb2_grpc.add_LearnerServiceServicer_to_server(learner, server.grpc_server)
        address = await server.start(["actorq.v1.LearnerService"])
        try:
            return await asyncio.to_thread(partial(wait, api, address, **options))
        finally:
            await server.stop(grace_s=0.0)

    return asyncio.run(serve())


def test_the_wait_returns_once_steps_have_grown(api: ClusterApi) -> None:
    status, seen, _ = wait_for(api, Counting([100, 100, 164]))
    assert status
    assert status.environment_steps == 164
    assert seen.statuses == [100, 100, 164]
    assert seen.events == ["learner-0: ready", "quantizer-1: ready", "actor-1: ready"]


def test_ignores_steps_of_pods_with_an_earlier_version(api: ClusterApi) -> None:
    # The learner's broken image is never pulled, while the earlier pod continues training.
    actor = workload("Deployment", "actor")
    actor["metadata"]["generation"] = 2
    actor["status"] = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1}
    api.add("apps/v1", "deployments", actor)

    class Rolling(Counting):
        async def GetStatus(  # noqa: N802
            self, request: learner_pb2.GetStatusRequest, context: object
        ) -> learner_pb2.GetStatusResponse:
            answer = await super().GetStatus(request, context)
            if answer.status.environment_steps == 300:
                actor["status"]["replicas"] = 1
            return answer

    status, _, _ = wait_for(api, Rolling([100, 200, 300, 400, 500]))
    assert status
    assert status.environment_steps == 500


def test_until_the_run_is_over_steps_are_not_enough(api: ClusterApi) -> None:
    class Ending(Counting):
        async def GetStatus(  # noqa: N802
            self, request: learner_pb2.GetStatusRequest, context: object
        ) -> learner_pb2.GetStatusResponse:
            answer = await super().GetStatus(request, context)
            if answer.status.environment_steps == 300:
                answer.status.state = learner_pb2.RUN_STATE_BUDGET_ENDED
            return answer

    status, seen, _ = wait_for(api, Ending([100, 200, 300]), until_over=True)
    assert status
    assert status.state is RunState.BUDGET_ENDED
    assert seen.statuses == [100, 200, 300]


def test_a_crash_after_hours_does_not_end_the_wait(api: ClusterApi) -> None:
    api.add("v1", "pods", pod("actor-2", "actor", crashed_late(137, restarts=2)))
    end = learner_pb2.RUN_STATE_SOLVED
    status, seen, _ = wait_for(api, Counting([500], end), until_over=True)
    assert status
    assert re.search("pod actor-2 .*exit code 137, 2 restarts", seen.events[-1])


def test_tolerates_an_api_server_that_is_away_for_a_while(api: ClusterApi) -> None:
    outages = {200: [(503, "etcdserver: leader changed")] * 3, 400: [(429, "too many requests")]}

    class Flaky(Counting):
        async def GetStatus(  # noqa: N802
            self, request: learner_pb2.GetStatusRequest, context: object
        ) -> learner_pb2.GetStatusResponse:
            answer = await super().GetStatus(request, context)
            refusals = iter(outages.get(answer.status.environment_steps, []))
            cuts = iter([1] if answer.status.environment_steps == 300 else [])

            def refuse(verb: str, kind: str, name: str) -> tuple[int, str] | None:
                api.cut_bytes = next(cuts, 0)
                return next(refusals, None)

            api.refuse = refuse
            if answer.status.environment_steps == 500:
                answer.status.state = learner_pb2.RUN_STATE_SOLVED
            return answer

    status, seen, line = wait_for(api, Flaky([100, 200, 300, 400, 500]), until_over=True)
    assert (status and status.state, line) == (RunState.SOLVED, "")
    told = [each for each in seen.events if each.startswith("no news")]
    facts = ("etcdserver: leader changed", f"http://127.0.0.1:{api.server_address[1]} ", "too many requests")
    assert all(fact in each for fact, each in zip(facts, told, strict=True))


def test_an_api_server_that_stays_away_ends_the_wait_in_time(api: ClusterApi) -> None:
    api.refuse = lambda verb, kind, name: (503, "down")
    assert re.search(" 0 s: .*list StatefulSet: down$", wait(api, timeout_s=0.0, until_over=True)[2])


def test_a_run_that_was_taken_down_ends_the_wait(api: ClusterApi) -> None:
    class Leaving(Counting):
        async def GetStatus(  # noqa: N802
            self, request: learner_pb2.GetStatusRequest, context: object
        ) -> learner_pb2.GetStatusResponse:
            api.objects.clear()
            return await super().GetStatus(request, context)

    _, _, line = wait_for(api, Leaving([100]), until_over=True)
    assert re.search("run is gone.*namespace lab", line)


def training_run(api: ClusterApi, **status: Any) -> Object:
    """TrainingRun wide and its learner's workload."""
    made: Object = {"apiVersion": "actorq.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": "wide"}}
    made |= {"spec": {}, "status": {"state": "Training", **status}}
    api.add("actorq.dev/v1alpha1", "trainingruns", made)
    learner = owned(workload("StatefulSet", "learner"), "TrainingRun", "wide")
    learner["metadata"]["labels"]["actorq/run"] = "wide"
    api.add("apps/v1", "statefulsets", learner)
    return made


def wait_for_training_run(api: ClusterApi) -> tuple[RunState | None, list[str], str]:
    """The state at the end, the events, and the error line. The learner is never reached."""
    seen = Seen()
    with LearnerClient(NOBODY) as client:
        try:
            end = await_progress(api.cluster(run="wide"), client.status, 60.0, seen, until_over=True)
            return end.state, seen.events, ""
        except ActorQError as error:
            return None, seen.events, str(error)


def test_reads_the_end_of_a_training_run_from_its_object(api: ClusterApi) -> None:
    made = training_run(api)

    def end(verb: str, kind: str, name: str) -> None:
        if verb == "watch":
            # Its workloads are also gone, as after the time that a finished run is kept.
            made["status"] |= {"state": "Solved", "environmentSteps": 300}
            del api.objects[next(path for path in api.objects if "statefulsets" in path)]

    api.refuse = end
    assert wait_for_training_run(api) == (RunState.SOLVED, [], "")
    assert wait_for_training_run(api) == (RunState.SOLVED, [], "")


def test_ignores_the_learner_of_an_earlier_training_run(api: ClusterApi) -> None:
    made = training_run(api)
    (learner,) = (each for path, each in api.objects.items() if "statefulsets" in path)
    learner["status"] = {"updateRevision": "a", "currentRevision": "a"}
    earlier = ready_pod("learner-0", "learner")
    earlier["metadata"]["labels"]["actorq/run"] = "wide"
    api.add("v1", "pods", earlier)

    def end(verb: str, kind: str, name: str) -> None:
        if verb == "watch":
            made["status"] |= {"state": "BudgetEnded", "environmentSteps": 300}

    api.refuse = end
    found = await_progress(
        api.cluster(run="wide"), lambda: run_status(state=RunState.SOLVED), 60.0, Seen(), until_over=True
    )
    assert (found.state, found.environment_steps) == (RunState.BUDGET_ENDED, 300)


def test_a_training_run_that_is_deleted_ends_the_wait(api: ClusterApi) -> None:
    training_run(api)

    def delete(verb: str, kind: str, name: str) -> None:
        if verb == "watch":
            api.objects.clear()

    api.refuse = delete
    state, events, line = wait_for_training_run(api)
    assert (state, events) == (None, [])
    assert re.search("TrainingRun wide .* lab .*deleted", line)


def test_a_training_run_that_cannot_begin_ends_the_wait(api: ClusterApi) -> None:
    training_run(api, conditions=[{"type": "Failed", "status": "True"}], reason="spec config: unknown setting 'x'")
    state, events, line = wait_for_training_run(api)
    assert (state, events) == (None, [])
    assert re.search("TrainingRun wide .* lab .*: spec config: unknown setting 'x'$", line)


def test_a_run_that_is_not_over_in_time_ends_the_wait(api: ClusterApi) -> None:
    status, _, line = wait_for(api, Counting([100]), until_over=True, timeout_s=0.0)
    assert status is None
    assert re.search(" 0 s: .*training", line)


def test_a_run_that_is_over_is_not_waited_for(api: ClusterApi) -> None:
    status, _, _ = wait_for(api, Counting([500], learner_pb2.RUN_STATE_SOLVED))
    assert status
    assert status.state.final


def test_ignores_an_evicted_pod_that_was_replaced(api: ClusterApi) -> None:
    api.add("v1", "pods", evicted_pod("actor-0", "actor"))
    status, seen, _ = wait_for(api, Counting([500], learner_pb2.RUN_STATE_SOLVED), until_over=True)
    assert status
    assert seen.events == ["learner-0: ready", "quantizer-1: ready", "actor-1: ready"]
    api.add("v1", "pods", pod("learner-0", "learner"))
    assert re.search(" 0 s: pod learner-0 .*Pending", wait(api, timeout_s=0)[2])


def test_a_missing_image_ends_the_wait_in_one_line(api: ClusterApi) -> None:
    api.add("v1", "pods", pod("learner-0", "learner", container(waiting("ErrImagePull", "not found"))))
    _, _, line = wait(api)
    assert re.search("pod learner-0 .*image actorq-actor:9 .*not found", line)


def test_ignores_the_fault_of_a_pod_that_is_being_replaced(api: ClusterApi) -> None:
    # For an image that this `up` has corrected.
    learner = workload("StatefulSet", "learner")
    learner["metadata"]["generation"] = 2
    learner["status"] = {"observedGeneration": 1, "updateRevision": "a", "currentRevision": "a"}
    api.add("apps/v1", "statefulsets", learner)
    broken = owned(pod("learner-0", "learner", container(waiting("ErrImagePull", "no"))), "StatefulSet", "learner")
    broken["metadata"]["labels"]["controller-revision-hash"] = "a"
    api.add("v1", "pods", broken)
    assert re.search(" 0 s: pod learner-0 .*ErrImagePull", wait(api, timeout_s=0)[2])
    learner["status"]["observedGeneration"] = 2
    assert re.search("^pod learner-0 .*image", wait(api)[2])


def test_a_crash_ends_the_wait_with_the_error_of_the_log(api: ClusterApi) -> None:
    api.add("v1", "pods", pod("learner-0", "learner", crash_loop(2, restarts=1)))
    api.logs["learner-0"] = "INFO began\nerror: unknown setting 'dqn.bach_size'\n\n"
    assert re.search("pod learner-0 .*exit code 2\\b.*: unknown setting 'dqn.bach_size'$", wait(api)[2])


def test_reads_the_error_of_a_restarted_container_from_the_previous_log(api: ClusterApi) -> None:
    api.add("v1", "pods", pod("learner-0", "learner", crash_loop(2, restarts=1)))
    api.logs["learner-0"] = ""
    api.previous_logs["learner-0"] = "error: unknown setting 'dqn.bach_size'\n"
    assert re.search("exit code 2\\b.*: unknown setting 'dqn.bach_size'$", wait(api)[2])


def test_a_workload_that_cannot_create_pods_ends_the_wait(api: ClusterApi) -> None:
    learner = workload("StatefulSet", "learner")
    learner["metadata"]["uid"] = "uid-learner"
    api.add("apps/v1", "statefulsets", learner)
    api.add("v1", "events", event("learner", "FailedCreate", "exceeded quota", "2026-01-02T03:04:05Z"))
    assert re.search("StatefulSet learner .*: exceeded quota$", wait(api)[2])


@pytest.mark.parametrize(
    ("ready", "reason"),
    [
        (False, "pod learner-0 .*no volume yet"),
        (True, "learner's pod is ready .*mutual TLS"),
    ],
    ids=["pod", "learner"],
)
def test_a_timeout_names_the_missing_pod_or_answer(api: ClusterApi, ready: bool, reason: str) -> None:
    found = ready_pod("learner-0", "learner") if ready else pod("learner-0", "learner")
    api.add("v1", "pods", found)
    api.add("v1", "events", event("learner-0", "FailedMount", "no volume yet", "2026-01-02T03:04:05Z"))
    assert re.search(f" 0 s: .*{reason}", wait(api, timeout_s=0)[2])


def test_a_forwarded_port_without_a_ready_pod_is_no_connection(api: ClusterApi) -> None:
    api.add("v1", "pods", pod("learner-0", "learner"))
    with (
        forwarded(api.cluster(), "learner") as forward,
        LearnerClient(forward.address) as learner,
        pytest.raises(ActorQError, match=forward.address),
    ):
        learner.status()


def test_a_connection_without_the_permission_to_list_pods_names_it(api: ClusterApi) -> None:
    # The fake refuses to list the pods that a port would lead to.
    api.forbidden.add(("list", "pods"))
    with learner_of(api.cluster(), None) as learner, pytest.raises(UserError, match=r"ada .*list pods"):
        learner.status()


def test_pods_are_chosen_by_role_or_name() -> None:
    views = [
        view(ready_pod(name, role)) for name, role in (("learner-0", "learner"), ("a-1", "actor"), ("a-2", "actor"))
    ]
    assert [each.name for each in matching(views, None)] == ["learner-0", "a-1", "a-2"]
    assert [each.name for each in matching(views, "actors")] == ["a-1", "a-2"]
    assert [each.name for each in matching(views, "a-2")] == ["a-2"]
    with pytest.raises(UserError, match=r"'meter'.*learner-0, a-1, a-2$"):
        matching(views, "meter")
