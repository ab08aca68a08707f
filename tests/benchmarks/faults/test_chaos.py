"""The parts of the chaos benchmark: codes, ledgers, the verdict, links, and the order of faults."""

import random
import socket
import threading
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from actorq.domain.trajectory import PolicySpan, Segment
from benchmarks.faults.chaos.environment import CodedEnvironment, codes_of
from benchmarks.faults.chaos.faults import drawn
from benchmarks.faults.chaos.ledger import Ledger, judge
from benchmarks.faults.chaos.observer import Look, Observer
from benchmarks.faults.chaos.proxy import Link, Proxy

LINKS = ("a", "b", "c")
TIMEOUT_S = 60.0


def observations(count: int) -> NDArray[np.float32]:
    environment = CodedEnvironment()
    first, _ = environment.reset(seed=0)
    return np.stack([first, *(environment.step(np.int64(0))[0] for _ in range(count - 1))])


def segment(sequence: int, seen: NDArray[np.float32]) -> Segment:
    shape = (len(seen) - 1, 1)
    return Segment(
        sequence=sequence,
        spans=(PolicySpan(0, 1, "int8"),),
        episodes=(),
        columns={
            "observations": seen[:, None],
            "actions": np.zeros(shape, np.int64),
            "rewards": np.zeros(shape, np.float32),
            "terminated": np.zeros(shape, np.bool_),
            "truncated": np.zeros(shape, np.bool_),
            "valid": np.ones(shape, np.bool_),
            "ages": np.zeros(1, np.uint8),
        },
    )


def test_each_observation_has_a_code_of_its_own_that_counts_up() -> None:
    codes = codes_of(observations(3_000))
    assert (np.diff(codes.astype(np.int64)) == 1).all()
    assert codes_of(observations(1))[0] != codes[0]


@pytest.fixture
def ledgers(tmp_path: Path) -> tuple[Path, NDArray[np.uint64]]:
    """An actor that made three segments of five transitions, of which two were acknowledged; and their codes."""
    seen, ledger = observations(16), Ledger(tmp_path / "1.ledger")
    for sequence in (1, 2, 3):
        ledger.made(segment(sequence, seen[5 * sequence - 5 : 5 * sequence + 1]))
    ledger.acknowledged(2)
    return tmp_path, codes_of(seen[:15])


def test_a_replay_with_all_that_was_acknowledged_is_whole(ledgers: tuple[Path, NDArray[np.uint64]]) -> None:
    verdict = judge(ledgers[0], ledgers[1][:10])
    assert (verdict.made, verdict.acknowledged, verdict.stored) == (15, 10, 10)
    assert (verdict.lost, verdict.twice, verdict.unknown) == (0, 0, 0)


def test_what_was_not_acknowledged_may_be_stored(ledgers: tuple[Path, NDArray[np.uint64]]) -> None:
    assert judge(ledgers[0], ledgers[1]).lost == 0


def test_a_missing_a_doubled_and_an_unknown_transition_are_counted(ledgers: tuple[Path, NDArray[np.uint64]]) -> None:
    stored = np.concatenate([ledgers[1][1:10], ledgers[1][1:2], codes_of(observations(1))])
    verdict = judge(ledgers[0], stored)
    assert (verdict.lost, verdict.twice, verdict.unknown) == (1, 1, 1)


def test_a_record_that_a_kill_cut_short_is_left_out(ledgers: tuple[Path, NDArray[np.uint64]]) -> None:
    path = ledgers[0] / "1.ledger"
    path.write_bytes(path.read_bytes()[:-20])
    assert judge(ledgers[0], ledgers[1]).made == 10


def test_faults_follow_from_the_seed_and_have_every_kind() -> None:
    first, second = (list(islice(drawn(random.Random(3), LINKS, True), 40)) for _ in range(2))
    assert first == second
    assert {fault.kind for fault in first} >= {"SIGKILL", "SIGTERM", "SIGSTOP", "cut", "half-open", "corrupt", "full"}
    assert all(fault.kind != "full" for fault in islice(drawn(random.Random(3), LINKS, False), 40))


def test_a_standstill_counts_only_while_somebody_could_have_acted() -> None:
    observer = object.__new__(Observer)
    observer.looks = [Look(0.0, 5), Look(4.0, 5), Look(9.0, 5), Look(10.0, 6), Look(13.0, 6)]
    assert observer.longest_standstill(lambda moment: True) == 9.0
    assert observer.longest_standstill(lambda moment: moment > 5.0) == 5.0


@pytest.fixture
def echo() -> str:
    """A server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        # A reset is one of the ends that are tried.
        with connection, suppress(ConnectionResetError):
            while data := connection.recv(1024):
                connection.sendall(data)

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def connect(link: Link) -> socket.socket:
    host, _, port = link.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def says(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return connection.recv(1024)


def test_a_link_carries_both_ways_and_can_change_a_byte(echo: str) -> None:
    link = Proxy().link(echo)
    with connect(link) as connection:
        assert says(connection, b"hello") == b"hello"
        link.corrupt(random.Random(1))
        assert says(connection, b"hello") != b"hello"
        link.heal()
        assert says(connection, b"hello") == b"hello"


def test_a_link_that_is_cut_refuses_until_it_is_healed(echo: str) -> None:
    link = Proxy().link(echo)
    with connect(link) as before:
        assert says(before, b"a") == b"a"
        link.cut()
        assert before.recv(1) == b""
    with connect(link) as refused:
        assert refused.recv(1) == b""
    link.heal()
    with connect(link) as after:
        assert says(after, b"b") == b"b"


def test_a_reset_link_ends_with_an_error_and_not_with_an_end_of_file(echo: str) -> None:
    link = Proxy().link(echo)
    with connect(link) as connection:
        assert says(connection, b"a") == b"a"
        link.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_a_frozen_link_is_silent_until_it_is_healed(echo: str) -> None:
    link = Proxy().link(echo)
    with connect(link) as connection:
        assert says(connection, b"a") == b"a"
        link.freeze()
        connection.sendall(b"b")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(TIMEOUT_S)
        link.heal()
        assert connection.recv(1) == b"b"
