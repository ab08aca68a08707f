"""The waiting time for credit that an actor reports. The scaling of actors depends on it."""

import threading

from actor_service.uploader import Uploader
from actorq.client import LearnerClient
from actorq.domain.trajectory import Evaluation


class WatchedClock:
    """Seconds that pass when a test says so. Reports when the clock has been read a given number of times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._looks = threading.Semaphore(0)

    def __call__(self) -> float:
        now = self.now
        self._looks.release()
        return now

    def await_looks(self, count: int) -> None:
        for _ in range(count):
            assert self._looks.acquire(timeout=30)


def evaluation(sequence: int) -> Evaluation:
    return Evaluation(sequence, 1, 1, "int8", (1.0,), (1,), 0.1)


def test_only_the_time_with_a_full_queue_counts_as_waiting() -> None:
    clock, stop = WatchedClock(), threading.Event()
    with LearnerClient("127.0.0.1:1") as client:
        unused = [lambda *_: None] * 5
        uploader = Uploader(client, "actor-0", *unused, clock=clock)  # type: ignore[arg-type]
        uploader.put(evaluation(1), stop)
        clock.await_looks(2)
        clock.now = 10.0
        assert uploader.waited_s == 0.0
        waiting = threading.Thread(target=uploader.put, args=(evaluation(2), stop))
        waiting.start()
        clock.await_looks(1)
        clock.now = 13.0
        # While it waits, and when it has waited.
        assert uploader.waited_s == 3.0
        stop.set()
        uploader.wake()
        waiting.join()
        clock.now = 20.0
        assert uploader.waited_s == 3.0
