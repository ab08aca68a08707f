"""The sum tree agrees with an array of masses and never draws a leaf without mass."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner_service.replay.sum_tree import SumTree

SIZES = [1, 2, 5, 1000, 1024, 1025, 5000]


@pytest.mark.parametrize("size", SIZES)
def test_masses_and_total_are_those_of_an_array_after_random_changes(size: int) -> None:
    rng = np.random.default_rng(size)
    tree, masses = SumTree(size), np.zeros(size)
    for _ in range(20):
        indices = rng.integers(size, size=rng.integers(1, 50))
        values = rng.random(len(indices))
        masses[indices] = values
        tree.set(indices, values)
        start, stop = np.sort(rng.integers(size + 1, size=2))
        block = rng.random(stop - start)
        masses[start:stop] = block
        tree.set_range(int(start), int(stop), block)
        np.testing.assert_array_equal(tree.get(np.arange(size)), masses)
        assert tree.total == pytest.approx(masses.sum())


@pytest.mark.parametrize("size", SIZES)
def test_a_uniform_number_finds_the_leaf_where_the_cumulative_mass_passes_it(size: int) -> None:
    rng = np.random.default_rng(size)
    # Small integers have exact sums, so there is one right answer.
    masses = rng.integers(0, 3, size=size).astype(np.float64)
    masses[size // 2] = 5
    tree = SumTree(size)
    tree.set_range(0, size, masses)
    targets = rng.integers(0, int(masses.sum()), size=300) + 0.5
    expected = np.searchsorted(np.cumsum(masses), targets, side="right")
    np.testing.assert_array_equal(tree.sample(targets / masses.sum()), expected)


@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**32 - 1), density=st.floats(0, 1))
def test_a_leaf_without_mass_is_never_drawn_whatever_the_rounding(size: int, seed: int, density: float) -> None:
    rng = np.random.default_rng(seed)
    masses = np.where(rng.random(size) < density, 10.0 ** rng.uniform(-300, 300, size=size), 0.0)
    masses[rng.integers(size)] = 10.0 ** rng.uniform(-300, 300)
    tree = SumTree(size)
    tree.set_range(0, size, masses)
    edges = np.cumsum(masses) / masses.sum()
    uniforms = np.concatenate((rng.random(50), [0.0, np.nextafter(1.0, 0.0)], edges[edges < 1]))
    drawn = tree.sample(uniforms)
    assert (masses[drawn] > 0).all()


def test_for_a_repeated_index_the_last_value_counts() -> None:
    tree = SumTree(4)
    tree.set(np.array([2, 2, 1]), np.array([7.0, 3.0, 1.0]))
    assert tree.total == 4.0
