"""Deletes the volumes and pods of a TrainingRun, which continues from object storage. Also times starts.

The learner copies checkpoints to S3. In the middle of training, the volumes of learner and quantizer and all pods are
deleted without a grace period. The learner may still send its last checkpoint. The benchmark counts the steps and
updates that the next learner lacks. Then TrainingRuns and plain manifests start in turn, from `kubectl apply` to the
first environment step.

Needs a cluster with the operator (k8s/operator), an empty namespace that may have runs (k8s/operator-access), and an
S3 server that pods can reach. Its credentials are AWS_* variables:
`python -m benchmarks.faults.lost_volume -n NAMESPACE --url s3://BUCKET/PREFIX`.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from kubernetes import client

from actorq.domain.status import RunStatus
from actorq.errors import UserError
from actorq_apps.cluster import access
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.context import connect
from actorq_apps.cluster.objects import ACTORQ, TRAINING_RUN, VOLUME, Object, name_of
from benchmarks.faults.cluster_moves import Learner
from benchmarks.harness import Target, run_benchmark

API_VERSION, KIND = TRAINING_RUN
_ROOT = Path(__file__).parents[2]
_TEMPLATE = _ROOT / "examples" / "trainingrun" / "cartpole.yaml"
_PLAIN = _ROOT / "k8s" / "overlays" / "development"
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
_SECRET = "object-storage"
# An unreachable target.
_ENDLESS = {"target_return": 100_000, "max_environment_steps": 100_000_000}
_CHANGE_S = 1
_GONE_S, _KUBECTL_S = 180.0, 120.0
# Maximum start time of a TrainingRun, relative to plain manifests.
_MOST_TIMES = 1.2


@dataclass(frozen=True)
class Moment:
    """The progress of a run at one time. at: seconds of a monotonic clock."""

    at: float
    steps: int
    updates: int


def _volumes(cluster: Cluster) -> list[Object]:
    return cluster.list("v1", VOLUME, ACTORQ)


def lost_seconds(seen: Sequence[Moment], steps: int) -> float:
    """Seconds from the last moment with at most `steps` to the end of `seen`; all of them if there is none."""
    return seen[-1].at - max((each.at for each in seen if each.steps <= steps), default=seen[0].at)


def training_run(name: str, **config: Any) -> Object:
    """A TrainingRun of the example, without TLS like the overlay of plain manifests. None of its objects stay."""
    manifest: Object = yaml.safe_load(_TEMPLATE.read_text(encoding="utf-8"))
    manifest["metadata"]["name"] = name
    manifest["spec"] |= {"tls": {"mode": "none"}, "checkpoint": {"retain": False}}
    manifest["spec"]["config"] |= config
    return manifest


def lose(cluster: Cluster) -> None:
    """Delete all volumes and pods of the run at once."""
    for each in _volumes(cluster):
        cluster.delete("v1", VOLUME, name_of(each))
    options = client.V1DeleteOptions(grace_period_seconds=0)
    for pod in access.pods_of(cluster):
        # Some may have been deleted already.
        with suppress(client.ApiException):
            cluster.core().delete_namespaced_pod(name_of(pod), cluster.namespace, body=options)


def loss(cluster: Cluster, arguments: argparse.Namespace, rng: random.Random) -> dict[str, Any]:
    """Make a run, lose its volumes and pods while it trains, and watch the next learner."""
    learner = Learner(cluster, None)
    period_s: float = arguments.period_s
    storage = {"object_storage": arguments.url, "object_storage_endpoint": arguments.endpoint, "period_s": period_s}
    cluster.apply(training_run("lost", checkpoint=storage, **_ENDLESS))
    seen: list[Moment] = []
    ids: list[str] = []
    wait_s = rng.uniform(3, 4) * period_s

    def is_time(status: RunStatus) -> bool:
        if not status.updates:
            return False
        seen.append(Moment(time.monotonic(), status.environment_steps, status.updates))
        ids.append(status.run_id)
        return seen[-1].at >= seen[0].at + wait_s

    learner.until(is_time)
    uids = {each["metadata"]["uid"] for each in _volumes(cluster)}
    pod = learner.pod()["metadata"]["uid"]
    lose(cluster)
    print(f"volumes and pods deleted at {seen[-1].steps:,} steps, {seen[-1].updates:,} updates", flush=True)
    after: list[RunStatus] = []

    def goes_on(status: RunStatus) -> bool:
        if not after and status.environment_steps:
            after.append(status)
        return (
            bool(after) and status.updates > after[0].updates and status.environment_steps > after[0].environment_steps
        )

    learner.until(goes_on, other_than=pod)
    seconds = time.monotonic() - seen[-1].at
    first = after[0]
    return {
        "steps_before": seen[-1].steps,
        "steps_after": first.environment_steps,
        "updates_before": seen[-1].updates,
        "updates_after": first.updates,
        "lost_steps": seen[-1].steps - first.environment_steps,
        "lost_s": round(lost_seconds(seen, first.environment_steps), 2),
        "seconds_until_it_trains_on": round(seconds, 1),
        "same_run": first.run_id == ids[-1],
        "new_volumes": not uids & {each["metadata"]["uid"] for each in _volumes(cluster)},
    }


def kubectl(cluster: Cluster, *arguments: str) -> None:
    """Run kubectl in the namespace. Raises UserError with its last line when it fails."""
    command = ["kubectl", "-n", cluster.namespace, *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=_KUBECTL_S, check=False)
    if completed.returncode:
        raise UserError(f"kubectl {arguments[0]}: {(completed.stderr.strip().splitlines() or ['no reason'])[-1]}")


def start(cluster: Cluster, *manifests: str) -> float:
    """Apply manifests. Returns the seconds until the first environment step, and removes the run."""
    begin = time.monotonic()
    kubectl(cluster, "apply", *manifests)
    Learner(cluster, None).until(lambda status: status.environment_steps > 0)
    seconds = time.monotonic() - begin
    kubectl(cluster, "delete", "--wait=false", *manifests)
    remove(cluster)
    return seconds


def remove(cluster: Cluster) -> None:
    """Delete all TrainingRuns, pods and volumes, and wait until they are gone. Raises UserError if they stay."""
    for each in cluster.list(API_VERSION, KIND):
        cluster.delete(API_VERSION, KIND, name_of(each))
    deadline = time.monotonic() + _GONE_S
    while access.pods_of(cluster) or _volumes(cluster):
        lose(cluster)
        if time.monotonic() > deadline:
            raise UserError(f"namespace {cluster.namespace} still has pods or volumes after {_GONE_S:g} s")
        cluster.await_pod_change("", _CHANGE_S)


@contextmanager
def file_of(manifest: Object) -> Iterator[str]:
    """A file with an object, for kubectl."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(yaml.safe_dump(manifest), encoding="utf-8")
        yield str(path)


def starts(
    pairs: int, as_training_run: Callable[[int], float], as_plain: Callable[[int], float]
) -> tuple[list[float], list[float]]:
    """The seconds of TrainingRuns and of plain manifests. Each pair begins with the other side.

    Both are called with the number of the pair.
    """
    sides: tuple[list[float], list[float]] = ([], [])
    for pair in range(1, pairs + 1):
        order = [(sides[0], as_training_run), (sides[1], as_plain)]
        for seconds, begin in order if pair % 2 else order[::-1]:
            seconds.append(round(begin(pair), 2))
        print(f"pair {pair}: TrainingRun {sides[0][-1]} s, plain {sides[1][-1]} s", flush=True)
    return sides


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    if missing := [name for name in _CREDENTIALS if name not in os.environ]:
        raise UserError(f"environment: {', '.join(missing)} must be set, for the S3 server")
    cluster = connect(arguments.namespace)
    if cluster.list(API_VERSION, KIND) or access.pods_of(cluster):
        raise UserError(f"namespace {cluster.namespace} has runs: name an empty one with -n")
    data = {name: os.environ[name] for name in _CREDENTIALS}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": _SECRET}, "stringData": data})
    found = loss(cluster, arguments, random.Random(arguments.seed))
    print(found, flush=True)
    remove(cluster)
    plain = arguments.plain
    manifests = ("-k" if plain.is_dir() else "-f", str(plain))

    def as_training_run(pair: int) -> float:
        # A new name each time, because objects of the last run may still exist.
        with file_of(training_run(f"started-{pair}")) as file:
            return start(cluster, "-f", file)

    ours, others = starts(arguments.pairs, as_training_run, lambda _: start(cluster, *manifests))
    ratio = median(ours) / median(others)
    figures = {
        "checkpoint_period_s": arguments.period_s,
        "loss": found,
        "training_run_start_s": ours,
        "plain_start_s": others,
        "median_training_run_start_s": median(ours),
        "median_plain_start_s": median(others),
    }
    return figures, [
        Target("seconds of training lost with the volume", found["lost_s"], arguments.period_s),
        Target(
            "the run went on as the same run, on new volumes", int(found["same_run"] and found["new_volumes"]), 1, False
        ),
        Target("start of a TrainingRun, divided by that of plain manifests", ratio, _MOST_TIMES),
    ]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", help="empty namespace for the runs (default: that of the context)")
    parser.add_argument("--url", required=True, help="s3://BUCKET/PREFIX for the checkpoints, without a run")
    parser.add_argument("--endpoint", default="", help="URL of the S3 server as pods reach it (default: AWS)")
    parser.add_argument("--plain", type=Path, default=_PLAIN, help=f"plain manifests (default: {_PLAIN.name})")
    parser.add_argument("--period-s", type=float, default=10.0, help="seconds between two checkpoints (default: 10)")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of starts (default: 3)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the time of the loss (default: 1)")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _add_flags, _measure))
