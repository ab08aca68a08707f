"""Measures how long a cluster's run stops after its learner's pod is deleted, and which containers restart.

Needs a run with at least 2 actors that trains, such as `actorq cluster up tests/cluster/endless -n NAMESPACE`.
"""

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actorq.client import LearnerClient
from actorq.domain.status import RunStatus
from actorq.errors import UnavailableError
from actorq.transport.options import Certificates
from actorq.transport.reconnect import Backoff, keep_connected
from actorq_apps.cluster import access, diagnosis
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.context import connect
from actorq_apps.cluster.objects import Object
from benchmarks.harness import Target, run_benchmark

MOVES, PERIOD_S = 4, 40.0
AT_MOST_S = 15.0
FEW, MANY = 2, 8
_POLL = Backoff(initial_s=0.1, maximum_s=0.2)
_WATCH_S = 0.1


class Learner:
    """The run's learner. Calls go directly to its pod, even if the pod is not ready."""

    def __init__(self, cluster: Cluster, certificates: Certificates | None) -> None:
        self.cluster = cluster
        self._certificates = certificates

    def pod(self) -> Object:
        """The learner's pod. Raises UnavailableError if there is none."""
        found = access.pods_of(self.cluster, "learner")
        if not found:
            raise UnavailableError(f"namespace {self.cluster.namespace} has no pod of a learner")
        return found[0]

    def until(self, condition: Callable[[RunStatus], bool], other_than: str = "") -> None:
        """Return when the condition holds for a learner whose pod has another uid than `other_than`."""

        def watch(connected: Callable[[], None]) -> None:
            pod = self.pod()
            if pod["metadata"]["uid"] == other_than:
                raise UnavailableError("the pod is still there")
            with (
                access.forwarded_pod(self.cluster, diagnosis.view(pod)) as forward,
                LearnerClient(forward.address, self._certificates) as learner,
            ):
                try:
                    for status in learner.watch(_WATCH_S):
                        connected()
                        if condition(status):
                            return
                except UnavailableError:
                    # The message of each attempt has another port. One line is enough.
                    raise UnavailableError("the learner does not answer yet") from None
                raise UnavailableError("the learner ended the stream of its status")

        keep_connected(watch, threading.Event(), "learner", random.Random(), _POLL)


class Growth:
    """Whether environment steps have increased since the first answer."""

    def __init__(self) -> None:
        self._first: int | None = None

    def __call__(self, status: RunStatus) -> bool:
        """For `Learner.until`."""
        if self._first is None:
            self._first = status.environment_steps
        return status.environment_steps > self._first


def move(learner: Learner) -> float:
    """Delete the learner's pod. Returns the seconds until its successor has new environment steps."""
    pod = learner.pod()["metadata"]
    begin = time.monotonic()
    learner.cluster.delete("v1", "Pod", pod["name"])
    learner.until(Growth(), other_than=pod["uid"])
    return time.monotonic() - begin


def moves(learner: Learner, count: int, period_s: float, say: Callable[[str], None]) -> list[float]:
    """The seconds of several moves. The moves begin `period_s` apart."""
    learner.until(Growth())
    seconds = []
    for _ in range(count):
        begin = time.monotonic()
        seconds.append(move(learner))
        say(f"learner's pod deleted: new environment steps after {seconds[-1]:.1f} s")
        time.sleep(max(0.0, begin + period_s - time.monotonic()))
    return seconds


def restarts(cluster: Cluster) -> dict[str, int]:
    """Restarts of each pod's containers, without learners and without pods that are ending."""
    views = [diagnosis.view(pod) for pod in access.pods_of(cluster)]
    return {view.name: view.restarts for view in views if view.role != "learner" and view.phase != "Terminating"}


def restarted(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Number of restarts of each pod between the two. A replaced pod counts as 1."""
    return {
        name: times for name, count in before.items() if (times := after[name] - count if name in after else 1) != 0
    }


def scale(learner: Learner, actors: int) -> float:
    """Set the number of actors. Returns the seconds until exactly this number is connected and acts."""

    def is_reached(status: RunStatus) -> bool:
        connected = [actor for actor in status.actors if actor.role == "actor" and actor.connected]
        acting = [actor for actor in connected if actor.report and actor.report.environment_steps]
        return len(acting) == len(connected) == actors

    begin = time.monotonic()
    learner.cluster.scale("apps/v1", "Deployment", "actor", actors)
    learner.until(is_reached)
    return time.monotonic() - begin


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    cluster = connect(arguments.namespace)
    learner = Learner(cluster, Certificates.of(arguments.certificates, "operator"))
    access.some_pods(cluster)
    scale(learner, FEW)
    before = restarts(cluster)
    seconds = moves(learner, arguments.moves, arguments.period_s, print)
    by_moves = restarted(before, restarts(cluster))
    before = restarts(cluster)
    up, down = scale(learner, MANY), scale(learner, FEW)
    # New pods that the second scaling deletes again do not count.
    by_scaling = {name: times for name, times in restarted(before, restarts(cluster)).items() if times > 1}
    print(f"{FEW} to {MANY} actors: {up:.1f} s, and back: {down:.1f} s")
    figures = {
        "seconds_until_steps_grow": [round(each, 2) for each in seconds],
        "period_s": arguments.period_s,
        "restarts_of_others": by_moves,
        "actors_up_s": round(up, 2),
        "actors_down_s": round(down, 2),
        "restarts_by_scaling": by_scaling,
    }
    return figures, [
        Target("longest stand-still after the learner's pod was deleted, s", max(seconds), AT_MOST_S),
        Target("restarts of other pods", sum(by_moves.values()), 0),
        Target("restarts by scaling the actors", sum(by_scaling.values()), 0),
    ]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", help="namespace of the run (default: that of the context)")
    parser.add_argument("--certificates", type=Path, metavar="DIR", help="folder of certificates with mutual TLS")
    parser.add_argument("--moves", type=int, default=MOVES, help="number of deletions (default: 4)")
    parser.add_argument(
        "--period-s", type=float, default=PERIOD_S, help="seconds from one deletion to the next (default: 40)"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _add_flags, _measure))
