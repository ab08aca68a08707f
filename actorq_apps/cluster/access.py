"""Reaches the pods and services of a run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from actorq.client import LearnerClient
from actorq.errors import UnavailableError, UserError
from actorq.transport.options import Certificates
from actorq_apps.cluster import diagnosis
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.diagnosis import PodView
from actorq_apps.cluster.objects import Object, run_of
from actorq_apps.cluster.portforward import PortForward, open_pod_port

# Roles of pods in display order, and the ports that they listen on.
PORTS = {"learner": 50051, "quantizer": 50052, "relay": 50052, "actor": 50053, "evaluator": 50053}


def pods_of(cluster: Cluster, role: str = "") -> list[Object]:
    """The live pods of the run, by role and name. Raises UserError when the namespace has several runs."""
    return [pod for pod in diagnosis.live_pods(_all_pods(cluster)) if not role or diagnosis.view(pod).role == role]


def some_pods(cluster: Cluster) -> list[Object]:
    """The pods of the run, including ended ones. Raises UserError when there are none."""
    pods = _all_pods(cluster)
    if not pods:
        run = f"run {cluster.run}" if cluster.run else "a run"
        raise UserError(
            f"namespace {cluster.namespace} has no pods of {run}: name another with -n, or start one with "
            "`actorq cluster up OVERLAY_DIR`"
        )
    return pods


def forwarded(cluster: Cluster, role: str, port: int = 0, tell: Callable[[str], None] = lambda _: None) -> PortForward:
    """A local port that leads to a service's only pod, even after the pod is replaced."""

    def connect() -> Any:
        ready = [view.name for view in map(diagnosis.view, pods_of(cluster, role)) if view.ready]
        if not ready:
            raise UnavailableError(f"no {role} pod in namespace {cluster.namespace} is ready")
        return open_pod_port(cluster, ready[0], PORTS[role])

    return PortForward(connect, port, tell)


def forwarded_pod(cluster: Cluster, pod: PodView, tell: Callable[[str], None] = lambda _: None) -> PortForward:
    """A free local port that leads to one pod."""
    return PortForward(lambda: open_pod_port(cluster, pod.name, PORTS.get(pod.role, PORTS["actor"])), tell=tell)


class ForwardedLearner(LearnerClient):
    """A client of the learner behind a forwarded port. It reports failures of the port that the user must fix."""

    def __init__(self, forward: PortForward, certificates: Certificates | None) -> None:
        super().__init__(forward.address, certificates)
        self._forward = forward

    def _unary(self, method: Any, request: Any, deadline_s: float | None = None) -> Any:
        try:
            return super()._unary(method, request, deadline_s)
        except UnavailableError:
            # gRPC only sees a closed connection. The port knows the cause, such as a missing permission.
            if isinstance(self._forward.failure, UserError):
                raise self._forward.failure from None
            raise


@contextmanager
def learner_of(cluster: Cluster, certificates: Certificates | None) -> Iterator[LearnerClient]:
    """A client of the run's learner."""
    with forwarded(cluster, "learner") as forward, ForwardedLearner(forward, certificates) as learner:
        yield learner


def matching(views: Sequence[PodView], wanted: str | None) -> list[PodView]:
    """The pods of a role, or the pod with this name; all pods for None. Raises UserError when none matches."""
    if wanted is None:
        return list(views)
    role = wanted.removesuffix("s") if wanted.removesuffix("s") in PORTS else wanted
    found = [view for view in views if wanted == view.name or role == view.role]
    if not found:
        raise UserError(
            f"no pod is called {wanted!r} or has that role: there are {', '.join(view.name for view in views)}"
        )
    return found


def _all_pods(cluster: Cluster) -> list[Object]:
    pods = cluster.list("v1", "Pod", cluster.selector)
    if len(runs := sorted({label for pod in pods if (label := run_of(pod))})) > 1:
        raise UserError(f"namespace {cluster.namespace} has runs {', '.join(runs)}: choose one with --run")
    return sorted(pods, key=_order)


def _order(pod: Object) -> tuple[int, str]:
    role = diagnosis.view(pod).role
    return (list(PORTS).index(role) if role in PORTS else len(PORTS), pod["metadata"]["name"])
