"""A forwarded port carries bytes in both directions, and handles lost ends."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from actorq.errors import ActorQError, UnavailableError, UserError
from actorq_apps.cluster.portforward import PortForward, open_pod_port
from tests.actorq_apps.cluster.cluster_api import cluster_api

TIMEOUT_S = 20.0
LARGE = bytes(range(256)) * 8_192


@contextmanager
def echo() -> Iterator[tuple[str, int]]:
    """A server that echoes all data until its peer ends."""

    def serve(peer: socket.socket) -> None:
        with peer:
            while data := peer.recv(65_536):
                peer.sendall(data)

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)


def connect(forward: PortForward) -> socket.socket:
    host, _, port = forward.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def receive(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := peer.recv(65_536)):
        data += part
    return data


def test_bytes_go_both_ways() -> None:
    with echo() as address, PortForward(lambda: socket.create_connection(address)) as forward, connect(forward) as peer:
        sender = threading.Thread(target=peer.sendall, args=(LARGE,))
        sender.start()
        assert receive(peer, len(LARGE)) == LARGE
        sender.join()


def test_connections_do_not_mix() -> None:
    with echo() as address, PortForward(lambda: socket.create_connection(address)) as forward:
        peers = [connect(forward) for _ in range(3)]
        for number, peer in enumerate(peers):
            peer.sendall(bytes([number]) * 100)
        for number, peer in enumerate(peers):
            assert receive(peer, 100) == bytes([number]) * 100
            peer.close()


def test_a_lost_far_end_closes_the_connection_and_the_next_one_works() -> None:
    gone = True

    def opener() -> socket.socket:
        if gone:
            raise UnavailableError("no learner pod is ready")
        return socket.create_connection(address)

    with echo() as address, PortForward(opener) as forward:
        with connect(forward) as peer:
            assert receive(peer, 1) == b""
        gone = False
        with connect(forward) as peer:
            peer.sendall(b"again")
            assert receive(peer, 5) == b"again"


def test_passes_on_the_end_of_the_far_end_at_once() -> None:
    here, there = socket.socketpair()
    with PortForward(lambda: here) as forward, connect(forward) as peer:
        there.close()
        assert receive(peer, 1) == b""


def test_passes_on_the_end_of_this_end() -> None:
    here, there = socket.socketpair()
    there.settimeout(TIMEOUT_S)
    with PortForward(lambda: here) as forward:
        connect(forward).close()
        assert there.recv(1) == b""
    there.close()


def test_closing_ends_open_connections_and_frees_the_port() -> None:
    with echo() as address:
        forward = PortForward(lambda: socket.create_connection(address))
        with connect(forward) as peer:
            peer.sendall(b"open")
            assert receive(peer, 4) == b"open"
            forward.close()
            assert receive(peer, 1) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(forward)


def test_a_port_in_use_is_the_users_mistake() -> None:
    with PortForward(lambda: None) as forward:
        port = int(forward.address.rpartition(":")[2])
        with pytest.raises(UserError, match=f"port {port} .*in use"):
            PortForward(lambda: None, port)


def test_reports_each_reason_of_a_failing_port_once() -> None:
    reasons = iter(["no pod", "no pod", "no permission"])
    told: list[str] = []

    def opener() -> socket.socket:
        raise UnavailableError(next(reasons))

    with PortForward(opener, tell=told.append) as forward:
        for _ in range(3):
            with connect(forward) as peer:
                assert receive(peer, 1) == b""
        assert told == [f"{forward.address}: no pod", f"{forward.address}: no permission"]


def test_a_pods_port_is_reached_through_the_api_server() -> None:
    with cluster_api() as api:
        api.answer = lambda data: data
        forward = PortForward(lambda: open_pod_port(api.cluster(), "learner-0", 50051))
        with forward, connect(forward) as peer:
            sender = threading.Thread(target=peer.sendall, args=(LARGE[:300_000],))
            sender.start()
            assert receive(peer, 300_000) == LARGE[:300_000]
            sender.join()


def test_a_connection_closed_on_both_sides_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    # An error in any thread fails a test. The answer arrives after this end is closed.
    answered, gone = threading.Event(), threading.Event()

    def answer(data: bytes) -> bytes:
        answered.set()
        assert gone.wait(TIMEOUT_S)
        return LARGE

    with cluster_api() as api:
        api.answer = answer
        before = set(threading.enumerate())
        far = open_pod_port(api.cluster(), "learner-0", 50051)
        far.sendall(b"x")
        assert answered.wait(TIMEOUT_S)
        begun = set(threading.enumerate()) - before
        (thread,) = (each for each in begun if each.name.startswith("Kubernetes port forward"))
        far.shutdown(socket.SHUT_RD)
        gone.set()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert not caplog.records


def test_reports_a_missing_pod_in_the_servers_words() -> None:
    with cluster_api() as api, pytest.raises(ActorQError, match=r'port 1 of pod x: "portforward" not'):
        open_pod_port(api.cluster(), "x", 1)
