"""The retry loop, without real waits: the event that stops it records how long it was asked to wait."""

import logging
import random
import re
import threading
from collections.abc import Callable

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorq.errors import ActorQError, InvalidInputError, UnavailableError
from actorq.transport.options import CLIENT_OPTIONS
from actorq.transport.reconnect import Backoff, keep_connected

# Always the full delay, the upper end of the jitter.
BACKOFF = Backoff(initial_s=1.0, maximum_s=8.0, eager_s=0.0)


class NoJitter(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return b


class Waits(threading.Event):
    """Does not wait, but records the requested waits. Sets itself after this many waits."""

    def __init__(self, limit: int = 1_000) -> None:
        super().__init__()
        self.delays: list[float] = []
        self._limit = limit

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.delays.append(timeout)
        if len(self.delays) >= self._limit:
            self.set()
        return self.is_set()


class Peer:
    """Fails the given number of times, before or after an answer, then works."""

    def __init__(self, *answers: bool, last: ActorQError | None = None) -> None:
        self._answers = list(answers)
        self._last = last
        self.calls = 0

    def connect(self, connected: Callable[[], None]) -> None:
        self.calls += 1
        if self._answers:
            if self._answers.pop(0):
                connected()
            raise UnavailableError("quantizer cannot be reached") from grpc.RpcError()
        if self._last:
            raise self._last
        connected()


def keep(peer: Peer, stop: Waits) -> None:
    keep_connected(peer.connect, stop, "quantizer", NoJitter(), BACKOFF)


def test_delays_double_from_the_first_to_the_longest() -> None:
    delays = [BACKOFF.delay(failures, NoJitter()) for failures in range(1, 8)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]


@settings(deadline=None)
@given(failures=st.integers(1, 10**9), seed=st.integers(0, 2**32))
def test_a_delay_lies_in_the_upper_half_below_its_ceiling(failures: int, seed: int) -> None:
    backoff = Backoff(initial_s=0.1, maximum_s=5.0)
    ceiling = min(5.0, 0.1 * 2.0 ** min(failures - 1, 100))
    assert ceiling / 2 <= backoff.delay(failures, random.Random(seed)) <= ceiling


def test_jitter_spreads_the_delays_of_many_clients() -> None:
    rng = random.Random(1)
    delays = [BACKOFF.delay(1, rng) for _ in range(200)]
    assert min(delays) < 0.55
    assert max(delays) > 0.95


def test_a_stream_that_ends_by_itself_is_not_opened_again() -> None:
    peer, stop = Peer(), Waits()
    keep(peer, stop)
    assert (peer.calls, stop.delays) == (1, [])


def test_an_unavailable_peer_is_tried_again_with_growing_delays() -> None:
    peer, stop = Peer(False, False, False), Waits()
    keep(peer, stop)
    assert (peer.calls, stop.delays) == (4, [1.0, 2.0, 4.0])


def test_a_peer_that_comes_within_half_a_minute_is_found_within_half_a_second() -> None:
    stop = Waits(limit=100)
    peer = Peer(*[False] * 100)
    keep_connected(peer.connect, stop, "learner", NoJitter(), Backoff(), lambda: sum(stop.delays))
    begins = [sum(stop.delays[:index]) for index in range(len(stop.delays))]
    eager = [delay for delay, begin in zip(stop.delays, begins, strict=True) if begin < 30.0]
    assert eager[:4] == [0.1, 0.2, 0.4, 0.5]
    assert max(eager) == 0.5
    assert sum(eager) >= 30.0
    assert set(stop.delays[len(eager) :]) == {5.0}


def test_each_absence_of_the_peer_begins_with_short_delays() -> None:
    stop = Waits(limit=83)
    # Away for a long time with growing delays, then back for a moment.
    peer = Peer(*[False] * 80, True, False, False, False)
    keep_connected(peer.connect, stop, "learner", NoJitter(), Backoff(), lambda: sum(stop.delays))
    assert stop.delays[79:] == [5.0, 0.1, 0.2, 0.4]


def test_an_answer_of_the_peer_starts_the_delays_anew() -> None:
    peer, stop = Peer(False, False, True, False), Waits()
    keep(peer, stop)
    assert stop.delays == [1.0, 2.0, 1.0, 2.0]


@pytest.mark.parametrize("error", [InvalidInputError("no"), ActorQError("broken")])
def test_raises_an_error_that_a_retry_cannot_fix(error: ActorQError) -> None:
    peer, stop = Peer(False, last=error), Waits()
    with pytest.raises(type(error)) as caught:
        keep(peer, stop)
    assert caught.value is error
    assert peer.calls == 2


def test_nothing_is_opened_once_it_is_stopped() -> None:
    peer, stop = Peer(), Waits()
    stop.set()
    keep(peer, stop)
    assert peer.calls == 0


def test_each_failed_attempt_is_counted() -> None:
    retries: list[int] = []
    peer = Peer(False, True, False)
    keep_connected(peer.connect, Waits(), "quantizer", NoJitter(), BACKOFF, on_retry=lambda: retries.append(peer.calls))
    assert retries == [1, 2, 3]


def test_a_stop_during_a_wait_is_the_end() -> None:
    peer, stop = Peer(*[False] * 10), Waits(limit=3)
    keep(peer, stop)
    assert peer.calls == 3


def test_a_failure_and_the_return_of_the_peer_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "actorq.transport.reconnect"):
        keep(Peer(False, False), Waits())
    lost, found = caplog.messages
    assert re.search("quantizer.* 8.0 s", lost)
    assert re.search("quantizer.* 2 attempts", found)


def test_the_same_failure_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    stop = Waits(limit=40)
    with caplog.at_level(logging.INFO, "actorq.transport.reconnect"):
        keep_connected(Peer(*[False] * 100).connect, stop, "quantizer", NoJitter(), BACKOFF, lambda: sum(stop.delays))
    minutes = sum(stop.delays) / 60
    assert minutes - 1 <= len(caplog.records) <= minutes + 1


def test_grpc_itself_waits_no_longer_than_an_eager_client() -> None:
    assert dict(CLIENT_OPTIONS)["grpc.max_reconnect_backoff_ms"] <= 1_000 * Backoff().eager_maximum_s


def test_the_end_of_a_stream_that_worked_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "actorq.transport.reconnect"):
        keep(Peer(True, True), Waits())
    assert {record.levelname for record in caplog.records} == {"INFO"}


@pytest.mark.parametrize(
    ("peer", "levels"),
    [
        # 0, 1, 3, 7 and 15 seconds after the first failure.
        (Peer(False, False, False, False), ["INFO", "INFO"]),
        (Peer(False, False, False, False, False), ["INFO", "WARNING", "INFO"]),
        # The stream works first. The failures are 1, 3 and 5 seconds after its end.
        (Peer(True, False, False, False), ["INFO", "WARNING", "INFO"]),
    ],
    ids=["starting", "never there", "lost"],
)
def test_a_peer_that_stays_away_is_a_warning_later_before_its_first_answer(
    peer: Peer, levels: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    stop = Waits()
    with caplog.at_level(logging.INFO, "actorq.transport.reconnect"):
        keep_connected(peer.connect, stop, "quantizer", NoJitter(), BACKOFF, lambda: sum(stop.delays))
    assert [record.levelname for record in caplog.records] == levels
    if "WARNING" in levels:
        assert re.search("quantizer.* 8.0 s", caplog.messages[1])
    assert re.search("quantizer.* attempts", caplog.messages[-1])


def test_a_stream_that_breaks_all_the_time_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    stop = Waits(limit=40)
    with caplog.at_level(logging.INFO, "actorq.transport.reconnect"):
        keep_connected(Peer(*[True] * 100).connect, stop, "quantizer", NoJitter(), BACKOFF, lambda: sum(stop.delays))
    assert len([record for record in caplog.records if "trying again" in record.getMessage()]) == 1
    assert sum(stop.delays) < 60
