"""Queues many TrainingRuns, with few at a time, and kills their operator at random times.

Each run must end solved, once, and its steps must never fall. After the TrainingRuns are deleted, none of their objects
may be left. All are made suspended and resumed one by one, like in a queue such as Kueue. Needs a cluster with the
operator (k8s/operator) and an empty namespace that may have runs (k8s/operator-access): `python -m
benchmarks.faults.training_runs -n NAMESPACE`.
"""

import argparse
import random
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client

from actorq.errors import ActorQError, UserError
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.context import connect
from actorq_apps.cluster.objects import RUN_LABEL, TRAINING_RUN, name_of, part
from actorq_apps.operator.leader import LEASE
from benchmarks.harness import Target, run_benchmark

API_VERSION, KIND = TRAINING_RUN
_TEMPLATE = Path(__file__).parents[2] / "examples" / "trainingrun" / "cartpole.yaml"
_KINDS = {
    "v1": ("ConfigMap", "PersistentVolumeClaim", "Pod", "Secret", "Service", "ServiceAccount"),
    "apps/v1": ("Deployment", "ReplicaSet", "StatefulSet"),
}
_CHANGE_S, _CLEAN_S = 1, 120.0
# Seconds between two kills.
_LEAST_S, _MOST_S = 5.0, 30.0


class Queue:
    """The TrainingRuns, and their observed states."""

    def __init__(self, cluster: Cluster, runs: int, at_most: int) -> None:
        self._cluster = cluster
        self._at_most = at_most
        self.names = [f"queued-{number}" for number in range(1, runs + 1)]
        self.most = 0
        self.falls = 0
        self._steps: dict[str, int] = defaultdict(int)
        self._learners: dict[str, set[str]] = defaultdict(set)

    def make(self) -> None:
        """Make all TrainingRuns, suspended."""
        template = yaml.safe_load(_TEMPLATE.read_text(encoding="utf-8"))
        for seed, name in enumerate(self.names, 1):
            changes = {"suspend": True, "ttlSecondsAfterFinished": 5, "checkpoint": {"retain": False}}
            config = {**part(template, "spec", "config"), "seed": seed}
            spec = {**template["spec"], **changes, "config": config}
            self._cluster.apply({**template, "metadata": {"name": name}, "spec": spec})

    def step(self) -> int:
        """Check the runs once, and resume runs while few are active. Returns the number of runs that are over."""
        found = {name_of(each): each for each in self._cluster.list(API_VERSION, KIND)}
        over = {name for name in self.names if "finishedAt" in part(found[name], "status")}
        waiting = [name for name in self.names if found[name]["spec"].get("suspend")]
        active = len(self.names) - len(over) - len(waiting)
        self.most = max(self.most, active)
        for name in waiting[: self._at_most - active]:
            self._cluster.patch(API_VERSION, KIND, name, {"spec": {"suspend": False}})
        for name, each in found.items():
            steps = int(part(each, "status").get("environmentSteps") or 0)
            self.falls += steps < self._steps[name]
            self._steps[name] = max(steps, self._steps[name])
        for pod in self._cluster.list("v1", "Pod", "app.kubernetes.io/component=learner"):
            self._learners[part(pod, "metadata", "labels")[RUN_LABEL]].add(pod["metadata"]["uid"])
        self._cluster.await_pod_change("", _CHANGE_S)
        return len(over)

    def states(self) -> list[str]:
        """The state of each run."""
        return [str(part(each, "status").get("state")) for each in self._cluster.list(API_VERSION, KIND)]

    def learners_too_many(self) -> int:
        """Learner pods beyond one for each run."""
        return sum(len(uids) - 1 for uids in self._learners.values())

    def clean(self) -> list[str]:
        """Delete the TrainingRuns. Returns their remaining objects after a while."""
        for name in self.names:
            self._cluster.delete(API_VERSION, KIND, name)
        deadline = time.monotonic() + _CLEAN_S
        while (left := self._left()) and time.monotonic() < deadline:
            self._cluster.await_pod_change("", _CHANGE_S)
        return left

    def _left(self) -> list[str]:
        kinds = [(api_version, kind) for api_version, kinds in _KINDS.items() for kind in kinds]
        return [
            f"{kind} {name_of(each)}"
            for api_version, kind in kinds
            for each in self._cluster.list(api_version, kind, RUN_LABEL)
        ]


class Killer(threading.Thread):
    """Deletes the pod of the leading operator from time to time, with a grace period of 0 seconds."""

    def __init__(self, system: Cluster, kills: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._system = system
        self._left = kills
        self._random = random.Random(seed)
        self.over = threading.Event()
        self.kills = 0

    def run(self) -> None:
        """Kill until there were enough kills, or all runs are over."""
        while self._left and not self.over.wait(self._random.uniform(_LEAST_S, _MOST_S)):
            lease = self._system.get("coordination.k8s.io/v1", "Lease", LEASE)
            pod = str(part(lease, "spec").get("holderIdentity") or "").rpartition("-")[0]
            # The new leader may not have been chosen yet.
            with suppress(ActorQError, client.ApiException):
                options = client.V1DeleteOptions(grace_period_seconds=0)
                self._system.core().delete_namespaced_pod(pod, self._system.namespace, body=options)
                self.kills, self._left = self.kills + 1, self._left - 1
                print(f"operator killed: {self.kills}", flush=True)


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    cluster = connect(arguments.namespace)
    if cluster.list(API_VERSION, KIND):
        raise UserError(f"namespace {cluster.namespace} has TrainingRuns: name an empty one with -n")
    queue = Queue(cluster, arguments.runs, arguments.at_most)
    killer = Killer(cluster.at(arguments.operator_namespace), arguments.kills, arguments.seed)
    queue.make()
    begin = time.monotonic()
    killer.start()
    over = -1
    while over < arguments.runs:
        if (now_over := queue.step()) != over:
            over = now_over
            print(f"{time.monotonic() - begin:7.1f} s  {over} of {arguments.runs} runs are over", flush=True)
    seconds = time.monotonic() - begin
    killer.over.set()
    killer.join()
    states = queue.states()
    left = queue.clean()
    figures = {
        "runs": arguments.runs,
        "at_most": arguments.at_most,
        "seconds": round(seconds, 1),
        "kills": killer.kills,
        "states": {state: states.count(state) for state in sorted(set(states))},
        "most_active": queue.most,
        "left": left,
    }
    print(figures)
    return figures, [
        Target("runs that are not solved", arguments.runs - states.count("Solved"), 0),
        Target("runs active at the same time", queue.most, arguments.at_most),
        Target("learner pods beyond one for each run", queue.learners_too_many(), 0),
        Target("times that a run's steps fell", queue.falls, 0),
        Target("objects left after deletion", len(left), 0),
        Target("kills of the operator", killer.kills, arguments.kills, at_most=False),
    ]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", help="empty namespace for the runs (default: that of the context)")
    parser.add_argument(
        "--operator-namespace", default="actorq-system", help="namespace of the operator (default: actorq-system)"
    )
    parser.add_argument("--runs", type=int, default=20, help="number of runs (default: 20)")
    parser.add_argument("--at-most", type=int, default=2, help="runs at a time (default: 2)")
    parser.add_argument("--kills", type=int, default=10, help="kills of the leading operator (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the times of the kills (default: 1)")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _add_flags, _measure))
