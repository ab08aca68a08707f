"""The rate limiter holds the ratio, waits for the right side and never stops both."""

import random
import threading
from collections import deque

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actorq.errors import ConflictError, UserError
from learner_service.replay import RateLimiter


def _limiter(ratio: float = 4.0, min_size: int = 100, error_buffer: float = 80.0) -> RateLimiter:
    return RateLimiter(ratio, min_size, error_buffer, clock=lambda: 0.0)


def _insert(limiter: RateLimiter, n: int) -> None:
    assert limiter.try_reserve(n)
    limiter.insert(n, n)


def test_sampling_starts_at_the_minimum_size() -> None:
    limiter = _limiter()
    _insert(limiter, 99)
    assert limiter.missing == 1
    assert not limiter.can_sample(1)
    _insert(limiter, 1)
    assert limiter.can_sample(1)


def test_the_learner_may_be_ahead_by_the_error_buffer_and_no_more() -> None:
    limiter = _limiter()
    _insert(limiter, 100)
    assert limiter.can_sample(80)
    assert not limiter.can_sample(81)
    limiter.sample(80)
    assert not limiter.can_sample(1)
    _insert(limiter, 1)
    assert limiter.can_sample(4)


def test_the_actors_may_be_ahead_by_the_error_buffer_and_no_more() -> None:
    limiter = _limiter()
    _insert(limiter, 100)
    assert not limiter.try_reserve(21)
    _insert(limiter, 20)
    assert not limiter.try_reserve(1)
    limiter.sample(4)
    assert limiter.try_reserve(1)


def test_held_inserts_wait_at_any_ratio_until_they_are_released() -> None:
    limiter, asked = _limiter(), []
    limiter.on_inserts_possible(lambda: asked.append(limiter.try_reserve(10)))
    assert limiter.try_reserve(10)
    limiter.hold_inserts(True)
    assert not limiter.try_reserve(10)
    limiter.insert(10, 10)
    limiter.release(0)
    assert asked == []
    limiter.hold_inserts(False)
    assert asked == [True]


def test_sampling_waits_for_the_requested_number_of_inserts() -> None:
    limiter = _limiter()
    _insert(limiter, 100)
    limiter.await_inserts(105)
    assert not limiter.can_sample(1)
    _insert(limiter, 5)
    assert limiter.can_sample(1)


@pytest.mark.parametrize("behind", [80, -80])
def test_filling_again_after_a_loss_is_like_filling_for_the_first_time(behind: int) -> None:
    def filling(limiter: RateLimiter) -> tuple[list[int], int]:
        admitted, updates = [], 0
        while not limiter.can_sample(20):
            admitted.append(0)
            while admitted[-1] < 8 and limiter.try_reserve(10):
                admitted[-1] += 1
            for _ in range(admitted[-1]):
                limiter.insert(10, 10)
        while not limiter.try_reserve(10):
            limiter.sample(20)
            updates += 1
        return admitted, updates

    limiter = _limiter()
    limiter.load_state_dict({"inserts": 5000, "samples": 4900 * 4 - behind})
    limiter.await_inserts(5100)
    assert limiter.missing == 100
    assert filling(limiter) == filling(_limiter())
    restored = _limiter()
    restored.load_state_dict(limiter.state_dict())
    assert [restored.can_sample(n) for n in range(200)] == [limiter.can_sample(n) for n in range(200)]


def test_reservations_count_until_they_are_used_or_released() -> None:
    limiter = _limiter()
    _insert(limiter, 100)
    assert limiter.try_reserve(20)
    assert not limiter.try_reserve(1)
    limiter.release(20)
    assert limiter.try_reserve(20)
    limiter.insert(5, 20)
    assert limiter.inserts == 105
    assert limiter.try_reserve(15)


def test_more_than_the_reserved_inserts_cannot_be_released() -> None:
    limiter = _limiter()
    assert limiter.try_reserve(5)
    with pytest.raises(ConflictError, match="6 of 5"):
        limiter.release(6)
    limiter.release(5)


def test_a_segment_of_any_size_is_admitted_when_the_learner_is_blocked_and_nothing_is_outstanding() -> None:
    limiter = _limiter()
    assert limiter.try_reserve(10_000)
    assert not limiter.try_reserve(10_000)
    limiter.release(10_000)
    assert limiter.try_reserve(10_000)


def test_a_batch_larger_than_the_buffer_opens_inserts_until_it_is_allowed() -> None:
    limiter = _limiter()
    _insert(limiter, 120)
    assert not limiter.try_reserve(1)
    assert not limiter.can_sample(1000)
    while not limiter.can_sample(1000):
        _insert(limiter, 7)
    assert not limiter.try_reserve(7)


def test_listeners_are_called_when_inserts_become_possible_and_may_reserve() -> None:
    limiter = _limiter()
    answers: list[bool] = []
    _insert(limiter, 100)
    assert limiter.try_reserve(20)
    limiter.on_inserts_possible(lambda: answers.append(limiter.try_reserve(20)))
    limiter.insert(20, 20)
    assert answers == []
    limiter.sample(4)
    assert answers == [False]
    limiter.sample(76)
    assert answers == [False, True]
    limiter.release(20)
    assert answers == [False, True, True]


def test_a_larger_demand_of_the_learner_is_announced() -> None:
    limiter = _limiter()
    _insert(limiter, 120)
    calls: list[int] = []
    limiter.on_inserts_possible(lambda: calls.append(1))
    assert not limiter.can_sample(500)
    assert not limiter.can_sample(500)
    assert calls == [1]


def test_a_waiting_learner_wakes_when_its_data_is_there() -> None:
    limiter = _limiter()
    asking, answers = threading.Event(), []
    limiter.on_inserts_possible(asking.set)
    learner = threading.Thread(target=lambda: answers.append(limiter.await_sample(50, None)))
    learner.start()
    asking.wait()
    _insert(limiter, 100)
    learner.join()
    assert answers == [True]
    assert not limiter.await_sample(10_000, timeout=0)


def test_starved_seconds_count_only_waiting() -> None:
    now = deque([10.0, 13.0, 15.0])
    limiter = RateLimiter(4.0, 100, 80.0, clock=now.popleft)
    limiter.on_inserts_possible(lambda: seen.append(limiter.starved_seconds))
    seen: list[float] = []
    assert not limiter.await_sample(1, timeout=0)
    assert seen == [3.0]
    assert limiter.starved_seconds == 5.0
    _insert(limiter, 100)
    assert limiter.await_sample(1, timeout=0)
    assert limiter.starved_seconds == 5.0


def test_the_realised_ratio_and_the_state_outlive_a_restart() -> None:
    limiter = _limiter()
    assert limiter.samples_per_insert_realised == 0
    _insert(limiter, 100)
    limiter.sample(50)
    restored = _limiter()
    restored.load_state_dict(limiter.state_dict())
    assert restored.state_dict() == limiter.state_dict()
    assert restored.samples_per_insert_realised == 0.5
    assert restored.can_sample(30)
    assert not restored.can_sample(31)


@pytest.mark.parametrize(("ratio", "min_size"), [(8.0, 100), (2.0, 100), (4.0, 200), (8.0, 10)])
def test_another_ratio_or_minimum_size_counts_from_the_restart_on(ratio: float, min_size: int) -> None:
    limiter = _limiter()
    limiter.load_state_dict({"inserts": 5000, "samples": 4900 * 4})
    restored = _limiter(ratio, min_size)
    restored.load_state_dict(limiter.state_dict())
    assert not restored.can_sample(81)
    assert restored.can_sample(80)
    assert not restored.try_reserve(int(80 // ratio) + 1)
    assert restored.try_reserve(int(80 // ratio))


def test_a_larger_minimum_size_is_filled_up_without_a_surplus() -> None:
    limiter = _limiter()
    _insert(limiter, 100)
    limiter.sample(70)
    restored = _limiter(min_size=300)
    restored.load_state_dict(limiter.state_dict())
    _insert(restored, 199)
    assert not restored.can_sample(1)
    _insert(restored, 1)
    assert restored.can_sample(80)
    assert not restored.can_sample(81)


def test_a_state_without_settings_is_restored_with_the_present_ones() -> None:
    limiter = _limiter()
    limiter.load_state_dict({"inserts": 100, "samples": 50})
    assert limiter.can_sample(30)
    assert not limiter.can_sample(31)


@pytest.mark.parametrize("ratio", [0.0, float("nan")])
def test_a_ratio_without_samples_is_refused(ratio: float) -> None:
    with pytest.raises(UserError, match="samples_per_insert"):
        _limiter(ratio, 1, 10.0)


@settings(max_examples=100, deadline=None)
@given(
    ratio=st.sampled_from([0.05, 0.5, 1.0, 4.0, 32.0]),
    min_size=st.integers(1, 2000),
    slack=st.floats(1.0, 100.0),
    batch=st.integers(1, 5000),
    segments=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_actors_and_a_learner_never_stop_and_keep_the_ratio(
    ratio: float,
    min_size: int,
    slack: float,
    batch: int,
    segments: list[int],
    seed: int,
) -> None:
    choices = random.Random(seed)
    error_buffer = 2 * max(1.0, ratio) * slack
    highest = max(error_buffer, max(batch - error_buffer, 0) + max(segments) * ratio)
    limiter = _limiter(ratio, min_size, error_buffer)
    reserved: deque[int] = deque()
    for _ in range(200):
        movers = [("sample", batch)] if limiter.can_sample(batch) else []
        movers += [("insert", size) for size in segments] + [("finish", 0)] * len(reserved)
        choices.shuffle(movers)
        assert any(_moves(limiter, reserved, mover, choices.random()) for mover in movers)
        diff = limiter.inserts * ratio - limiter.samples - min_size * ratio
        assert diff <= highest + 1e-6
        assert limiter.samples == 0 or diff >= -error_buffer - 1e-6


def test_a_queue_is_sampled_as_soon_as_a_rollout_waits_and_filled_no_further_than_set() -> None:
    limiter = RateLimiter.of_queue(epochs=3, rollout_size=25, ahead=100, clock=lambda: 0.0)
    _insert(limiter, 24)
    assert not limiter.can_sample(75)
    _insert(limiter, 1)
    assert limiter.can_sample(75)
    _insert(limiter, 75)
    assert not limiter.try_reserve(1)
    limiter.sample(75)
    assert limiter.try_reserve(25)
    assert not limiter.try_reserve(1)


def test_withdrawn_inserts_make_room_for_others() -> None:
    limiter = RateLimiter.of_queue(epochs=2, rollout_size=8, ahead=8, clock=lambda: 0.0)
    _insert(limiter, 8)
    limiter.withdraw(8)
    assert not limiter.can_sample(16)
    _insert(limiter, 8)
    assert limiter.can_sample(16)
    assert not limiter.try_reserve(1)


@settings(max_examples=100, deadline=None)
@example(epochs=1, rollout_size=1, waiting=1.0, segments=[1], seed=1)
@given(
    epochs=st.integers(1, 20),
    rollout_size=st.integers(1, 3000),
    waiting=st.floats(1.0, 5.0),
    segments=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_queue_never_stops_with_rollouts_of_whole_segments(
    epochs: int, rollout_size: int, waiting: float, segments: list[int], seed: int
) -> None:
    choices = random.Random(seed)
    ahead = int(waiting * rollout_size)
    limiter = RateLimiter.of_queue(epochs, rollout_size, ahead, lambda: 0.0)
    reserved: deque[int] = deque()
    stored: deque[int] = deque()
    for _ in range(200):
        movers = ["sample"] * limiter.can_sample(rollout_size * epochs) + ["finish"] * len(reserved) + ["insert"]
        mover = choices.choice(movers)
        if mover == "sample":
            taken = 0
            while taken < rollout_size:
                taken += (step := stored.popleft())
                if choices.random() < 0.1:
                    # It was stale.
                    limiter.withdraw(step)
                    taken -= step
                if not stored:
                    break
            stored.extendleft([taken] if taken < rollout_size and taken else [])
            if taken >= rollout_size:
                limiter.sample(taken * epochs)
        elif mover == "finish":
            promised = reserved.popleft()
            came = choices.choice([0, promised, max(1, promised // 2)])
            stored.extend([came] if came else [])
            limiter.insert(came, promised)
        else:
            size = choices.choice(segments)
            if limiter.try_reserve(size):
                reserved.append(size)
            else:
                assert len(movers) > 1
        assert limiter.inserts * epochs - limiter.samples == sum(stored) * epochs
        assert sum(stored) <= max(ahead + 1, rollout_size, 4) + max(segments)


def _moves(limiter: RateLimiter, reserved: deque[int], mover: tuple[str, int], luck: float) -> bool:
    kind, size = mover
    if kind == "sample":
        limiter.sample(size)
    elif kind == "finish":
        promised = reserved.popleft()
        if luck < 0.1:
            limiter.release(promised)
        else:
            limiter.insert(promised if luck < 0.7 else max(1, promised // 2), promised)
    elif limiter.try_reserve(size):
        reserved.append(size)
    else:
        return False
    return True
