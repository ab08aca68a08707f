"""Bytes go both ways through a forwarded port, whatever becomes of its ends."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from actorq.cluster.portforward import PortForward
from actorq.errors import UnavailableError, UserError

TIMEOUT_S = 20.0
LARGE = bytes(range(256)) * 8_192


@contextmanager
def echo() -> Iterator[tuple[str, int]]:
    """A server that gives back what it gets, until its peer has no more."""

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


def test_a_far_end_that_is_gone_ends_the_connection_and_the_next_one_works_again() -> None:
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


def test_the_end_of_the_far_end_is_seen_at_once() -> None:
    here, there = socket.socketpair()
    with PortForward(lambda: here) as forward, connect(forward) as peer:
        there.close()
        assert receive(peer, 1) == b""


def test_the_end_of_this_end_reaches_the_far_end() -> None:
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


def test_a_port_in_use_is_a_mistake() -> None:
    with PortForward(lambda: None) as forward:
        port = int(forward.address.rpartition(":")[2])
        with pytest.raises(UserError, match=rf"^port {port} of this machine cannot be used \(Address already in use\)"):
            PortForward(lambda: None, port)
