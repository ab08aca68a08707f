"""Mutual TLS on a real cluster: a run trains with certificates, and callers without a certificate are refused."""

import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actorq.client import LearnerClient
from actorq.domain.status import RunState
from actorq.errors import DeniedError, UnavailableError
from actorq.transport.options import Certificates
from actorq_apps.cluster import access
from actorq_apps.cluster.diagnosis import PodView
from tests.cluster.cluster_run import ClusterRun, Timings, actorq, on_cluster
from tests.cluster.older_kubernetes import Overlays

pytestmark = on_cluster(400)


def make_secrets(run: ClusterRun, directory: Path) -> None:
    for member in ("learner", "quantizer", "actor", "evaluator"):
        files = {name: b64encode((directory / member / name).read_bytes()) for name in ("ca.crt", "tls.crt", "tls.key")}
        run.cluster.create(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": f"{member}-tls"},
                "type": "kubernetes.io/tls",
                "data": {name: text.decode() for name, text in files.items()},
            }
        )


def is_back(pod: PodView) -> bool:
    """Whether a pod has restarted after it ended once."""
    return pod.ready and pod.restarts > 0


def intruder(actor: dict[str, Any], argument: str) -> dict[str, Any]:
    """The pod of an actor, but without a certificate."""
    template = actor["spec"]["template"]
    pod = json.loads(json.dumps(template["spec"]))
    container = pod["containers"][0]
    container["env"] = [each for each in container["env"] if "CERTIFICATES" not in each["name"]]
    container["args"] = [*container["args"], argument]
    # It has nothing to hand over at its end.
    pod["terminationGracePeriodSeconds"] = 1
    labels = {**template["metadata"]["labels"], "app.kubernetes.io/component": "actor-of-nobody"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "intruder", "labels": labels}, "spec": pod}


def test_a_run_trains_behind_mutual_tls(
    new_namespace: Callable[[], str], overlays: Overlays, tmp_path: Path, timings: Timings
) -> None:
    namespace = new_namespace()
    directory, others = tmp_path / "certificates", tmp_path / "others"
    for made in (directory, others):
        actorq("certificates", "init", str(made), "--namespace", namespace)
    run = ClusterRun.in_namespace(namespace, overlays.path("mtls"), directory)
    make_secrets(run, directory)
    with timings.measure("CartPole solved with mutual TLS, from actorq cluster up on"):
        run.up()
        assert run.until(lambda status: status.state.final).state is RunState.SOLVED

    # Through a forwarded port the address of an actor is 127.0.0.1, and its certificate covers this address. After the
    # end of the run, the actor ended once and restarted.
    run.await_pods(lambda pods: any(map(is_back, pods)), "actor")
    pod = next(filter(is_back, run.pods("actor"))).name
    with run.actor(pod) as actor_client, run.quantizer() as quantizer:
        assert actor_client.status().name == pod
        assert quantizer.list()

    for stranger in (None, Certificates.of(others, "operator")):
        with (
            access.forwarded(run.cluster, "learner") as forward,
            LearnerClient(forward.address, stranger) as learner,
            pytest.raises(UnavailableError),
        ):
            learner.status()

    with (
        access.forwarded(run.cluster, "learner") as forward,
        LearnerClient(forward.address, Certificates.of(directory, "monitor")) as monitor,
    ):
        assert monitor.status().state is RunState.SOLVED
        with pytest.raises(DeniedError, match=r"monitor .*StopRun"):
            monitor.stop()

    actor = run.cluster.get("apps/v1", "Deployment", "actor")
    assert actor
    run.cluster.create(intruder(actor, "--insecure"))
    run.await_pods(lambda pods: any(pod.name == "intruder" and pod.phase == "Running" for pod in pods))
    assert any("learner at" in line and "trying again" in line for line in run.log_lines("intruder"))
    run.cluster.delete("v1", "Pod", "intruder")
    run.down("--delete-volume")
