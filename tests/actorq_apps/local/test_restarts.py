import random

from actorq.process import EXIT_HUNG
from actorq.transport.reconnect import Backoff
from actorq_apps.local.restarts import RestartHistory, RestartPolicy, policy_where_calls_hang


def history(now: list[float], limit: int = 3) -> RestartHistory:
    policy = RestartPolicy(limit=limit, window_s=60.0, backoff=Backoff(initial_s=1.0, maximum_s=4.0))
    return RestartHistory(policy, lambda: now[0], random.Random(1))


def test_delays_between_restarts_grow_up_to_the_maximum() -> None:
    dying = history([0.0], limit=6)
    delays = [dying.next_delay() or 0.0 for _ in range(6)]
    for delay, ceiling in zip(delays, (1, 2, 4, 4, 4, 4), strict=True):
        assert ceiling / 2 <= delay <= ceiling


def test_a_process_that_dies_too_often_within_the_window_is_not_restarted() -> None:
    dying = history([0.0])
    assert None not in [dying.next_delay() for _ in range(3)]
    assert dying.next_delay() is None
    assert dying.total == 3


def test_ignores_restarts_before_the_window() -> None:
    now = [0.0]
    dying = history(now)
    for _ in range(3):
        dying.next_delay()
    now[0] = 61.0
    delay = dying.next_delay()
    assert delay is not None
    assert delay <= 1.0
    assert dying.total == 4


def test_gives_up_a_process_that_always_hangs() -> None:
    for timeout_s in (1.0, 60.0, 1000.0):
        now = [0.0]
        hanging = RestartHistory(policy_where_calls_hang(timeout_s), lambda now=now: now[0], random.Random(1))  # type: ignore[misc]
        delays: list[float] = []
        while (delay := hanging.next_delay(EXIT_HUNG)) is not None and len(delays) < 20:
            delays.append(delay)
            # Time to start, to hang, and to be noticed.
            now[0] += 10.0 + 1.25 * timeout_s + delay
        assert len(delays) == 10


def test_always_restarts_a_process_that_hangs_rarely() -> None:
    now = [0.0]
    hanging = RestartHistory(RestartPolicy(), lambda: now[0], random.Random(1))
    for _ in range(50):
        assert hanging.next_delay(EXIT_HUNG) is not None
        now[0] += 1800.0


def test_a_crash_each_minute_is_no_hang() -> None:
    now = [0.0]
    crashing = RestartHistory(RestartPolicy(), lambda: now[0], random.Random(1))
    for _ in range(50):
        assert crashing.next_delay(-11) is not None
        now[0] += 60.0
