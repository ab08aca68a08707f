import random

from actorq.local.restarts import RestartHistory, RestartPolicy
from actorq.transport.reconnect import Backoff


def history(now: list[float], limit: int = 3) -> RestartHistory:
    policy = RestartPolicy(limit=limit, window_s=60.0, backoff=Backoff(initial_s=1.0, maximum_s=4.0))
    return RestartHistory(policy, lambda: now[0], random.Random(1))


def test_restarts_of_one_process_come_further_and_further_apart_up_to_the_cap() -> None:
    dying = history([0.0], limit=6)
    delays = [dying.next_delay() or 0.0 for _ in range(6)]
    for delay, ceiling in zip(delays, (1, 2, 4, 4, 4, 4), strict=True):
        assert ceiling / 2 <= delay <= ceiling


def test_a_process_that_dies_too_often_within_the_window_is_not_restarted() -> None:
    dying = history([0.0])
    assert None not in [dying.next_delay() for _ in range(3)]
    assert dying.next_delay() is None
    assert dying.total == 3


def test_restarts_before_the_window_are_forgiven() -> None:
    now = [0.0]
    dying = history(now)
    for _ in range(3):
        dying.next_delay()
    now[0] = 61.0
    delay = dying.next_delay()
    assert delay is not None
    assert delay <= 1.0
    assert dying.total == 4
