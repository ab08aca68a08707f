"""`actorq cluster forward` as a process: it prints addresses, and Ctrl-C ends it cleanly."""

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.actorq_apps.cluster.cluster_api import ClusterApi, cluster_api
from tests.actorq_apps.cluster.cluster_objects import ready_pod
from tests.builders.forked_commands import ForkedCommand

TIMEOUT_S = 30


@contextmanager
def forwarding(api: ClusterApi, folder: Path) -> Iterator[tuple[ForkedCommand, list[list[str]]]]:
    """The command, and the words of its lines when it is ready."""
    for name, role in (("learner-0", "learner"), ("quantizer-1", "quantizer"), ("actor-1", "actor")):
        api.add("v1", "pods", ready_pod(name, role))
    kubeconfig = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "lab"}}],
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{api.server_address[1]}"}}],
        "users": [{"name": "me", "user": {}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    ports = ("--learner-port", "0", "--quantizer-port", "0")
    environment = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig")}
    process = ForkedCommand("actorq_apps.cli.main", "cluster", "forward", *ports, "actor-1", environment=environment)
    try:
        yield process, [process.stdout.readline().split() for _ in range(4)]
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def end(process: ForkedCommand) -> tuple[int, str]:
    """Send Ctrl-C. Returns the exit code and the error output."""
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=TIMEOUT_S)
    return process.wait(), told


def talk(address: str, text: bytes) -> bytes:
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as peer:
        peer.sendall(text)
        return peer.recv(1)


def test_forward_prints_an_address_for_each_service_and_pod_until_ctrl_c(tmp_path: Path) -> None:
    with cluster_api() as api, forwarding(api, tmp_path) as (process, lines):
        api.answer = bytes.upper
        assert [line[0] for line in lines] == ["learner", "quantizer", "actor-1", "Ctrl-C"]
        assert [talk(address, b"x") for _, address in lines[:3]] == [b"X"] * 3
        assert end(process) == (0, "")


def test_reports_why_an_address_does_not_work(tmp_path: Path) -> None:
    with cluster_api() as api, forwarding(api, tmp_path) as (process, lines):
        api.forbidden.add(("get", "pods/portforward"))
        address = lines[0][1]
        assert talk(address, b"") == b""
        code, told = end(process)
    assert code == 0
    (line,) = told.splitlines()
    assert re.match(f"{address}: .*ada .*get pods/portforward .* lab; .*Role ", line)
