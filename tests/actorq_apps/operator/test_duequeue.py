"""Names come out of the queue once, when they are due."""

import threading
from queue import SimpleQueue

from actorq_apps.operator.controller import DueQueue
from tests.builders.clocks import ManualClock


def test_a_name_that_was_put_often_comes_once() -> None:
    queue: DueQueue[str] = DueQueue(ManualClock())
    for _ in range(3):
        queue.put("a")
    assert queue.get(0) == "a"
    assert queue.get(0) is None


def test_a_name_comes_when_it_is_due_and_the_earliest_time_counts() -> None:
    clock = ManualClock()
    queue: DueQueue[str] = DueQueue(clock)
    queue.put("a", 10)
    queue.put("b", 5)
    queue.put("a", 20)
    assert queue.get(0) is None
    assert queue.due() == 0
    clock.now = 10
    assert queue.due() == 2
    assert [queue.get(0), queue.get(0), queue.get(0)] == ["b", "a", None]


def test_news_of_a_name_come_before_its_date() -> None:
    queue: DueQueue[str] = DueQueue(ManualClock())
    queue.put("a", 10)
    queue.put("a")
    assert queue.get(0) == "a"


def test_every_name_gets_its_turn() -> None:
    queue: DueQueue[int] = DueQueue(ManualClock())
    for number in range(10_001):
        queue.put(number, 0.0 if number == 10_000 else 5.0)
    assert [queue.get(0), queue.get(0)] == [10_000, None]


def test_a_waiting_caller_gets_a_new_name_and_the_end() -> None:
    queue: DueQueue[str] = DueQueue()
    got: SimpleQueue[str | None] = SimpleQueue()

    def get_two() -> None:
        for _ in range(2):
            got.put(queue.get(60))

    thread = threading.Thread(target=get_two)
    thread.start()
    queue.put("a")
    assert got.get(timeout=10) == "a"
    queue.close()
    assert got.get(timeout=10) is None
    thread.join(10)
