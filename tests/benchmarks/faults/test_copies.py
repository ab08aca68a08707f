"""How often the publisher of a run changed follows from the order of publications."""

import pytest

from benchmarks.faults.copies import switches


@pytest.mark.parametrize(("published", "count"), [("", 0), ("aaa", 0), ("aab", 1), ("abab", 3), ("aabbaa", 2)], ids=str)
def test_a_switch_is_a_publication_of_another_learner_than_the_one_before(published: str, count: int) -> None:
    assert switches(list(published)) == count
