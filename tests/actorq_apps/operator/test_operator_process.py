"""The operator's process: its errors at the start, its metrics and probes, and its end."""

import os
import re
import signal
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from actorq_apps.operator.controller import Controller, DueQueue
from actorq_apps.operator.leader import LEASE, Leader, Times
from actorq_apps.operator.process import _lead
from actorq_apps.operator.reconcile import Key, Reconciler
from tests.actorq_apps.cluster.hanging import hanging
from tests.actorq_apps.operator.kube_api import NAMESPACE, RUNS, KubeApi, kube_api
from tests.builders.forked_commands import ForkedCommand


@pytest.fixture
def api() -> Iterator[KubeApi]:
    with kube_api() as server:
        yield server


def operator(api: KubeApi, folder: Path, *flags: str) -> ForkedCommand:
    """An operator that has just started."""
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{api.server_address[1]}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "c", "namespace": NAMESPACE}}
    users = [{"name": "c", "user": {}}]
    path = folder / "kubeconfig"
    tree = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"}
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **tree}))
    return ForkedCommand("actorq_apps.operator", *flags, environment={**os.environ, "KUBECONFIG": str(path)})


def failure(api: KubeApi, folder: Path, *flags: str) -> tuple[int, list[str]]:
    """Exit code and lines of an operator that cannot start."""
    with operator(api, folder, *flags) as process:
        _, lines = process.communicate(timeout=60)
        return process.wait(), lines.splitlines()


def test_reports_a_wrong_flag_in_one_line(api: KubeApi, tmp_path: Path) -> None:
    code, lines = failure(api, tmp_path, "--namespaces=lab")
    assert (code, len(lines)) == (2, 1)
    assert "--namespace" in lines[0]


def test_reports_a_cluster_without_the_kind_in_one_line(api: KubeApi, tmp_path: Path) -> None:
    del api.kinds[RUNS]
    code, (line,) = failure(api, tmp_path)
    assert code == 2
    assert re.match("error: .*TrainingRun.*k8s/operator/crd.yaml$", line)


def test_a_missing_permission_names_the_rule_to_add(api: KubeApi, tmp_path: Path) -> None:
    said = 'User "operator" cannot list resource "trainingruns" in API group "actorq.dev" at the cluster scope'
    api.refuse = lambda verb, kind, name: (403, said)
    code, (line,) = failure(api, tmp_path)
    assert code == 2
    assert re.match("error: .*operator .*list trainingruns.actorq.dev .*ClusterRole .*list ", line)


def test_reports_a_port_that_cannot_be_bound_in_one_line(api: KubeApi, tmp_path: Path) -> None:
    code, lines = failure(api, tmp_path, "--metrics=192.0.2.1:1")
    assert code == 2
    assert re.match("error: --metrics.* 192.0.2.1:1 ", lines[-1])


def test_a_replica_serves_metrics_and_probes_until_a_signal_ends_it(api: KubeApi, tmp_path: Path) -> None:
    address = ""
    with operator(api, tmp_path, "--namespace=lab", "--metrics=127.0.0.1:0") as process:
        try:
            for line in process.stderr:
                if found := re.search(r"metrics on (http://\S+)/metrics", line):
                    address = found[1]
                if "this replica leads" in line:
                    break
            assert got(f"{address}/healthz") == "yes\n"
            assert "actorq_operator_leading 1.0" in got(f"{address}/metrics").splitlines()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert process.returncode == 0
        finally:
            process.kill()


def got(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as response:
        return str(response.read().decode())


def test_an_ending_replica_keeps_the_lease_until_its_last_reconciliation_ends(api: KubeApi) -> None:
    cluster, queue = api.cluster(), DueQueue[Key]()
    controller = Controller(cluster, (NAMESPACE,), queue, Reconciler(cluster, queue.put))
    leader = Leader(cluster, "a", "0.2.0", Times(retry_s=0.01))
    leading = threading.Thread(target=_lead, args=(controller, leader))
    with hanging(api, lambda verb, kind: (verb, kind) == ("list", "TrainingRun")) as look:
        leading.start()
        assert look.begun.wait(20)
        queue.close()
        leader.stop()
        with hanging(api, lambda verb, kind: (verb, kind) == ("patch", "Lease")) as renewal:
            assert renewal.begun.wait(20)
            renewal.released.set()
        assert api.get("Lease", LEASE)["spec"]["holderIdentity"] == "a"
        look.released.set()
        leading.join(20)
    assert api.get("Lease", LEASE)["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize("registry", ["https://registry.example", "a b"])
def test_reports_an_invalid_registry_in_one_line(api: KubeApi, tmp_path: Path, registry: str) -> None:
    code, (line,) = failure(api, tmp_path, f"--image-registry={registry}")
    assert code == 2
    assert re.match(f"error: --image-registry.*{registry!r}$", line)


@pytest.mark.parametrize("digest", ["learner=latest", "relay=sha256:1", "sha256:1"])
def test_reports_an_invalid_digest_in_one_line(api: KubeApi, tmp_path: Path, digest: str) -> None:
    code, (line,) = failure(api, tmp_path, f"--image-digest={digest}")
    assert code == 2
    assert re.match(f"error: --image-digest.*=sha256: .* 64 .*{digest!r}$", line)
