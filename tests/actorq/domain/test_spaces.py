"""Choices of several discrete parts: the best choices, and random allowed choices."""

import numpy as np

from actorq.domain.spaces import allowed_choices, best_choices


def test_each_part_has_its_own_best_choice() -> None:
    outputs = np.array([[1.0, 2, 9, 8, 7], [2, 1, 0, 3, 5]], np.float32)
    assert best_choices(outputs, (2, 3)).tolist() == [[1, 0], [0, 2]]
    assert best_choices(outputs, (5,)).tolist() == [[2], [4]]


def test_random_choices_are_allowed_and_equally_likely() -> None:
    rng, sizes = np.random.default_rng(0), (2, 4)
    allowed = np.array([True, False, True, False, True, True])
    rows = 9000
    chosen = allowed_choices(np.tile(allowed, (rows, 1)), rng.random((rows, 2)), sizes)
    assert (chosen[:, 0] == 0).all()
    np.testing.assert_allclose(np.bincount(chosen[:, 1], minlength=4) / rows, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.02)


def test_the_highest_uniform_number_gives_the_last_allowed_choice() -> None:
    allowed = np.array([[True, True, False]])
    assert allowed_choices(allowed, np.array([[np.nextafter(1.0, 0.0)]]), (3,)).tolist() == [[1]]
