"""Floods of frames without calls are closed while memory grows. Normal connections stay open."""

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from actorq.transport.floods import FloodGuard, Traffic, connections, peer_of, received_bytes
from tests.builders.clocks import ManualClock

MIB = 2**20


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:10.0.0.1:5000", ("10.0.0.1", 5000)),
        ("ipv6:%5B::1%5D:5000", ("::1", 5000)),
        ("ipv6:[::ffff:10.0.0.1]:5000", ("10.0.0.1", 5000)),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", ("fe80::1", 5000)),
        ("unix:/tmp/socket", None),
        ("", None),
    ],
)
def test_parses_the_peer_names_of_grpc(text: str, peer: tuple[str, int] | None) -> None:
    assert peer_of(text) == peer


def test_traffic_is_that_of_all_calls_of_a_connection() -> None:
    traffic, peer = Traffic(), "ipv4:10.0.0.1:5000"
    traffic.add(peer, 1)
    assert traffic.snapshot() == {}
    for _ in range(2):
        traffic.begin(peer)
        traffic.begin(peer)
        traffic.add(peer, 7)
        traffic.end(peer)
        traffic.add(peer, 5)
        traffic.end(peer)
    assert traffic.snapshot() == {("10.0.0.1", 5000): 24}


def test_connections_without_calls_are_forgotten_when_there_are_very_many() -> None:
    traffic = Traffic()
    traffic.begin("ipv4:10.0.0.1:1")
    for number in range(2, 5002):
        traffic.begin(f"ipv4:10.0.0.1:{number}")
        traffic.end(f"ipv4:10.0.0.1:{number}")
    ports = {port for _, port in traffic.snapshot()}
    assert ports == {1, *range(906, 5002)}


def test_a_connection_whose_calls_end_and_begin_is_no_flood() -> None:
    with guarded(1) as (service, guard, memory, clock):
        memory.mib = 200
        guard.check()
        for _ in range(4):
            guard.traffic.begin(service.peer(0))
            service.send(0, 10 * MIB)
            guard.traffic.add(service.peer(0), 10 * MIB)
            guard.traffic.end(service.peer(0))
            clock.now += 1.0
            guard.check()
        assert service.is_open(0)


class Service:
    """A listening socket, and accepted connections that read all data."""

    def __init__(self, count: int) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        self.clients = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(count)]
        self.closed = 0
        self.accepted = [self.listening.accept()[0] for _ in range(count)]

    def record_closed(self) -> None:
        self.closed += 1

    def send(self, number: int, size: int) -> None:
        """Send this many bytes to the service, which reads them."""
        left = size
        while left:
            sent = self.clients[number].send(bytes(min(left, 64 * 1024)))
            left -= sent
            while sent and (read := self.accepted[number].recv(sent)):
                sent -= len(read)

    def peer(self, number: int) -> str:
        return f"ipv4:127.0.0.1:{self.clients[number].getsockname()[1]}"

    def is_open(self, number: int) -> bool:
        self.clients[number].setblocking(False)
        try:
            return self.clients[number].recv(1) != b""
        except BlockingIOError:
            return True
        finally:
            self.clients[number].setblocking(True)

    def close(self) -> None:
        for each in (self.listening, *self.clients, *self.accepted):
            each.close()


class Memory:
    """Resident bytes that a test sets."""

    def __init__(self) -> None:
        self.mib = 100

    def __call__(self) -> int:
        return self.mib * MIB


@contextmanager
def guarded(count: int) -> Iterator[tuple[Service, FloodGuard, Memory, ManualClock]]:
    memory, clock = Memory(), ManualClock(1000.0)
    with closing(Service(count)) as service:
        guard = FloodGuard(service.record_closed, memory, clock)
        guard.port = service.port
        yield service, guard, memory, clock


def test_the_connections_of_a_port_are_found_and_their_bytes_are_the_kernels() -> None:
    with closing(Service(2)) as service:
        service.send(0, 300_000)
        found = {peer: received_bytes(each) for peer, each in connections(service.port)}
        numbers = [client.getsockname()[1] for client in service.clients]
        assert found == {("127.0.0.1", numbers[0]): 300_000, ("127.0.0.1", numbers[1]): 0}
        assert service.is_open(0)


def test_closes_the_flooding_connection_and_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    with guarded(3) as (service, guard, memory, clock):
        assert not guard.check()
        guard.traffic.begin(service.peer(1))
        memory.mib = 200
        assert guard.check()
        service.send(0, 17 * MIB)
        # The same number of bytes, but in messages.
        service.send(1, 17 * MIB)
        guard.traffic.add(service.peer(1), 17 * MIB)
        clock.now += 0.25
        guard.check()
        assert [service.is_open(number) for number in range(3)] == [False, True, True]
        # After a flood, an address has a lower limit.
        service.send(2, 5 * MIB)
        guard.check()
        assert not service.is_open(2)
        assert service.closed == 2
        assert caplog.text.count("127.0.0.1") == 1


def test_closes_no_connection_without_growth_of_memory() -> None:
    with guarded(1) as (service, guard, _, clock):
        for _ in range(3):
            service.send(0, 17 * MIB)
            clock.now += 1.0
            assert not guard.check()
        assert service.is_open(0)


def test_slow_overhead_does_not_count_as_a_flood() -> None:
    with guarded(1) as (service, guard, memory, clock):
        for _ in range(8):
            memory.mib += 100
            guard.check()
            service.send(0, 8 * MIB)
            clock.now += 6.0
        assert service.is_open(0)


def test_growth_for_another_reason_ends_the_search() -> None:
    with guarded(1) as (service, guard, memory, clock):
        memory.mib = 300
        looks = [guard.check() for _ in range(20)]
        assert looks == [True] * 8 + [False] * 12
        # Growth counts again from this amount of memory.
        memory.mib = 400
        assert guard.check()
        clock.now += 1.0
        service.send(0, 17 * MIB)
        guard.check()
        assert not service.is_open(0)


def test_an_offender_is_watched_for_a_minute_also_when_memory_falls() -> None:
    with guarded(3) as (service, guard, memory, clock):
        memory.mib = 200
        guard.check()
        service.send(0, 17 * MIB)
        guard.check()
        memory.mib = 100
        guard.check()
        service.send(1, 5 * MIB)
        guard.check()
        assert not service.is_open(1)
        clock.now += 61.0
        guard.check()
        service.send(2, 5 * MIB)
        guard.check()
        assert service.is_open(2)


def test_the_guard_watches_until_it_is_cancelled() -> None:
    async def scenario() -> None:
        memory = Memory()
        with closing(Service(1)) as service:
            guard = FloodGuard(service.record_closed, memory)
            guard.port = service.port
            task = asyncio.create_task(guard.watch())
            memory.mib = 200
            # The connection may be closed during a write.
            with suppress(OSError):
                while service.closed == 0:
                    await asyncio.to_thread(service.send, 0, MIB)
            # The sender may see the end before the guard has logged it.
            while service.closed == 0:
                await asyncio.sleep(0)
            task.cancel()
            assert service.closed == 1

    asyncio.run(asyncio.wait_for(scenario(), 30.0))


def test_the_guard_watches_on_after_memory_could_not_be_read() -> None:
    async def scenario() -> None:
        loop, answers, looked = asyncio.get_running_loop(), [0], asyncio.Event()

        def memory() -> int:
            if answers:
                return answers.pop()
            loop.call_soon_threadsafe(looked.set)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        task = asyncio.create_task(FloodGuard(lambda: None, memory).watch())
        for _ in range(2):
            await looked.wait()
            looked.clear()
        task.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 30.0))
