"""Controls a run on a real cluster like a user: by the `actorq` command, forwarded ports and the Kubernetes API."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.stream import stream

from actorq.client import ActorClient, QuantizerClient
from actorq.domain.status import ActorStatus, RunStatus
from actorq.errors import ActorQError, UnavailableError
from actorq.transport.options import Certificates
from actorq_apps.cluster import access, diagnosis
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.context import connect
from actorq_apps.cluster.logs import stream_logs
from actorq_apps.cluster.objects import ACTORQ, VOLUME
from actorq_apps.cluster.portforward import PortForward, open_pod_port

HERE = Path(__file__).parent
ACTOR_PORT = 50053
_COMMAND_TIMEOUT_S = 300
# Deadline of a call of an actor, which may have much to send before it is drained.
_DEADLINE_S = 60.0
# Lines of the log of each pod, and events of a namespace, after a failed test.
_LOG_LINES = 20
_EVENTS = 30


def on_cluster(timeout_s: int) -> list[pytest.MarkDecorator]:
    """The marks of tests that need a cluster."""
    return [pytest.mark.cluster, pytest.mark.timeout(timeout_s)]


def actorq(*arguments: str) -> str:
    """Run a command, which must succeed; returns its output."""
    completed = _completed(arguments)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def failing_actorq(*arguments: str) -> str:
    """Run a command that must fail; returns its one line of error."""
    completed = _completed(arguments)
    assert completed.returncode in (1, 2), completed.stdout + completed.stderr
    (line,) = completed.stderr.splitlines()
    return line


def _completed(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "actorq_apps.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
    )


@dataclass
class ClusterRun:
    """A run in a namespace of the cluster that KUBECONFIG names. overlay: the argument of `actorq cluster up`.
    environment_steps: the highest number that the learner has reported.
    """

    cluster: Cluster
    overlay: str
    certificates_directory: Path | None = None
    environment_steps: int = 0

    @classmethod
    def in_namespace(cls, namespace: str, overlay: str, certificates_directory: Path | None = None) -> "ClusterRun":
        """A run that is not deployed yet."""
        return cls(connect(namespace), overlay, certificates_directory)

    def volumes(self) -> list[dict[str, Any]]:
        """The volumes of runs in the namespace."""
        return self.cluster.list("v1", VOLUME, ACTORQ)

    @property
    def certificates(self) -> Certificates | None:
        """The operator's certificates, if the run has any."""
        return Certificates.of(self.certificates_directory, "operator")

    def up(self) -> str:
        """Deploy the run, and wait until it makes progress."""
        return self.command("up", self.overlay, *self._flags())

    def down(self, *flags: str) -> str:
        """Remove the run."""
        return self.command("down", *flags)

    def status_command(self) -> str:
        """The output of `actorq cluster status`."""
        return self.command("status", *self._flags())

    def scale(self, actors: int) -> None:
        """Scale to this number of actors."""
        self.command("scale", "actors", str(actors))

    def command(self, name: str, *arguments: str) -> str:
        """Run a subcommand of `actorq cluster`."""
        return actorq("cluster", name, *arguments, "-n", self.cluster.namespace)

    def failing(self, name: str, *arguments: str) -> str:
        """The error line of a subcommand of `actorq cluster` that fails."""
        return failing_actorq("cluster", name, *arguments, "-n", self.cluster.namespace)

    def until(self, condition: Callable[[RunStatus], bool], period_s: float = 0.1) -> RunStatus:
        """Watch the run, also across restarts of its learner, until `condition` holds. Steps must never decrease."""
        while True:
            try:
                with access.learner_of(self.cluster, self.certificates) as learner:
                    for status in learner.watch(period_s):
                        assert status.environment_steps >= self.environment_steps, "acknowledged transitions are lost"
                        self.environment_steps = status.environment_steps
                        if condition(status):
                            return status
                        assert not status.state.final, f"the run has ended: {status.state.value}"
            except UnavailableError:
                self.cluster.await_pod_change(ACTORQ, 1)

    def pods(self, role: str = "") -> list[diagnosis.PodView]:
        """The pods, including ending ones."""
        return [diagnosis.view(pod) for pod in access.pods_of(self.cluster, role)]

    def await_pods(self, condition: Callable[[list[diagnosis.PodView]], bool], role: str = "") -> None:
        """Return when the pods fulfill a condition."""
        while not condition(self.pods(role)):
            self.cluster.await_pod_change(ACTORQ, 1)

    def restarts(self) -> int:
        """The number of restarts of containers in all existing pods."""
        return sum(pod.restarts for pod in self.pods())

    def delete_pod(self, name: str, kill: bool = False) -> None:
        """Delete a pod; `kill` gives it no time to save."""
        options = client.V1DeleteOptions(grace_period_seconds=0) if kill else client.V1DeleteOptions()
        self.cluster.core().delete_namespaced_pod(name, self.cluster.namespace, body=options)

    def read_file(self, pod: str, path: str) -> str:
        """A file in a pod."""
        execute = self.cluster.core().connect_get_namespaced_pod_exec
        return str(
            stream(execute, pod, self.cluster.namespace, command=["cat", path], stdout=True, stderr=False, tty=False)
        )

    def log_lines(self, pod: str) -> Iterator[str]:
        """The lines that a pod has logged, and new lines."""
        read: Any = self.cluster.core().read_namespaced_pod_log
        response = read(pod, self.cluster.namespace, follow=True, _preload_content=False)
        for line in response:
            yield line.decode()

    @contextmanager
    def port(self, pod: str, port: int) -> Iterator[str]:
        """An address of this machine that forwards to a port of a pod."""
        with PortForward(lambda: open_pod_port(self.cluster, pod, port)) as forward:
            yield forward.address

    @contextmanager
    def quantizer(self) -> Iterator[QuantizerClient]:
        """A client of the quantizer, once its pod is ready. A short run may end before the first probe."""
        self.await_pods(lambda pods: any(pod.ready for pod in pods), "quantizer")
        with (
            access.forwarded(self.cluster, "quantizer", tell=print) as forward,
            QuantizerClient(forward.address, self.certificates) as quantizer,
        ):
            yield quantizer

    @contextmanager
    def actor(self, pod: str) -> Iterator[ActorClient]:
        """A client of one actor."""
        with self.port(pod, ACTOR_PORT) as address, ActorClient(address, self.certificates, _DEADLINE_S) as actor:
            yield actor

    def _flags(self) -> tuple[str, ...]:
        folder = self.certificates_directory
        return ("--certificates", str(folder)) if folder else ()


def describe(namespace: str) -> str:
    """Describe a namespace after a failed test: its pods, their logs, its newest events."""
    cluster = connect(namespace)
    lines = [f"namespace {namespace}"]

    def add_log_line(_: str, line: str) -> None:
        lines.append(f"    {line}")

    for pod in access.pods_of(cluster):
        view = diagnosis.view(pod)
        fault = diagnosis.pod_fault(pod, time.time())
        lines.append(f"{view.name}: {view.phase}, {'ready' if view.ready else 'not ready'}, {view.restarts} restarts")
        lines += [fault.line()] if fault else []
        try:
            stream_logs(cluster, {view.name: view.container}, False, _LOG_LINES, add_log_line)
        except ActorQError as error:
            lines.append(f"    {error}")
    for event in diagnosis.newest_first(cluster.list("v1", "Event"))[:_EVENTS]:
        about = event["involvedObject"]
        lines.append(f"{event.get('lastTimestamp')} {about['kind']} {about['name']}: {event.get('message')}")
    return "\n".join(lines)


def acting(status: RunStatus) -> list[ActorStatus]:
    """The connected actors that have made steps."""
    return [
        actor
        for actor in status.actors
        if actor.role == "actor" and actor.connected and actor.report and actor.report.environment_steps
    ]


class Timings:
    """Measured seconds, for the summary at the end of the tests."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, float]] = []

    @property
    def lines(self) -> list[str]:
        """Readable lines with all times."""
        return [f"{seconds:7.1f} s  {what}" for what, seconds in self.noted]

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        """Time a block."""
        begin = time.monotonic()
        yield
        self.record(what, time.monotonic() - begin)

    def record(self, what: str, seconds: float) -> None:
        """Record a time."""
        self.noted.append((what, seconds))


def kubeconfig_is_set() -> bool:
    """Whether KUBECONFIG names a cluster for these tests."""
    return bool(os.environ.get("KUBECONFIG"))
