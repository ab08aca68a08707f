"""What is kept for a learner that loses power stays within its bounds, and the newest stays longest."""

from actor_service.kept import Kept
from actorq.domain.trajectory import Evaluation
from tests.actor_service.actor_peers import small_segment


def test_items_are_kept_in_order_until_they_are_durable() -> None:
    kept = Kept()
    for sequence in range(1, 6):
        kept.add(small_segment(sequence))
    kept.forget_through(3)
    assert [item.sequence for item in kept.take_all()] == [4, 5]
    assert len(kept) == 0


def test_the_oldest_goes_beyond_the_number_and_the_bytes() -> None:
    few = Kept(most_items=2)
    for sequence in range(1, 5):
        few.add(small_segment(sequence))
    assert [item.sequence for item in few.take_all()] == [3, 4]
    size = small_segment(1).observations.nbytes
    small = Kept(most_bytes=3 * size)
    for sequence in range(1, 50):
        small.add(small_segment(sequence))
    assert 1 <= len(small) <= 2
    assert small.take_all()[-1].sequence == 49
    small.add(small_segment(50))
    assert len(small) == 1


def test_an_item_that_is_larger_than_the_bound_is_not_kept() -> None:
    kept = Kept(most_bytes=8)
    kept.add(small_segment(1))
    assert len(kept) == 0
    kept.add(Evaluation(2, 1, 0, "int8", (1.0,), (10,), 0.5))
    assert [item.sequence for item in kept.take_all()] == [2]
