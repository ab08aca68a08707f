"""`actorq cluster forward` as a process: it prints addresses, and Ctrl-C ends it well."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import yaml
from cluster_api import cluster_api
from cluster_objects import ready_pod

TIMEOUT_S = 30


def test_it_prints_an_address_for_each_service_and_pod_until_ctrl_c(tmp_path: Path) -> None:
    with cluster_api() as api:
        for name, role in (("learner-0", "learner"), ("quantizer-1", "quantizer"), ("actor-1", "actor")):
            api.add("v1", "pods", ready_pod(name, role))
        kubeconfig = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "lab"}}],
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{api.server_address[1]}"}}],
            "users": [{"name": "me", "user": {}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
        ports = ("--learner-port", "0", "--quantizer-port", "0")
        process = subprocess.Popen(
            [sys.executable, "-m", "actorq.cli.main", "cluster", "forward", *ports, "actor-1"],
            env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = [process.stdout.readline().split() for _ in range(4)]
        assert [line[0] for line in lines] == ["learner", "quantizer", "actor-1", "Ctrl-C"]
        for _, address in lines[:3]:
            host, _, port = address.partition(":")
            socket.create_connection((host, int(port)), timeout=TIMEOUT_S).close()
        process.send_signal(signal.SIGINT)
        try:
            _, told = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
        assert (process.returncode, told) == (0, "")
