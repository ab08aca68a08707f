"""Random numbers by their count."""

import numpy as np
import pytest

from actor_service.acting.sampling import CountedDraws

UNIFORM = (np.float64, np.random.Generator.random)
NORMAL = (np.float32, np.random.Generator.standard_normal)


@pytest.mark.parametrize("kind", [UNIFORM, NORMAL], ids=["uniform", "normal"])
def test_a_row_depends_on_the_key_and_its_count_only(kind: tuple) -> None:  # type: ignore[type-arg]
    in_order = CountedDraws(7, (3, 2), *kind)
    rows = [in_order.row(count).copy() for count in range(600)]
    in_any_order = CountedDraws(7, (3, 2), *kind)
    for count in (599, 0, 127, 128, 300, 1, 129, 0):
        np.testing.assert_array_equal(in_any_order.row(count), rows[count])
    other = CountedDraws(8, (3, 2), *kind)
    assert not any(np.array_equal(other.row(count), rows[count]) for count in range(600))
    assert rows[0].dtype == kind[0]
    # No row repeats another one.
    assert len({row.tobytes() for row in rows}) == 600


def test_rows_have_the_distribution_that_is_asked_for_and_are_independent() -> None:
    uniform, normal = CountedDraws(1, (4,), *UNIFORM), CountedDraws(1, (4,), *NORMAL)
    uniforms = np.array([uniform.row(count).copy() for count in range(20_000)])
    normals = np.array([normal.row(count).copy() for count in range(20_000)])
    np.testing.assert_allclose(uniforms.mean(axis=0), 0.5, atol=0.01)
    np.testing.assert_allclose(uniforms.std(axis=0), 12**-0.5, atol=0.01)
    np.testing.assert_allclose(normals.mean(axis=0), 0, atol=0.03)
    np.testing.assert_allclose(normals.std(axis=0), 1, atol=0.03)
    for rows in (uniforms, normals):
        both = np.concatenate([rows[:-1], rows[1:]], axis=1)
        assert np.abs(np.corrcoef(both.T) - np.eye(8)).max() < 0.03


def test_a_key_has_as_many_bits_as_a_seed() -> None:
    assert CountedDraws(2**64 - 1, (1,), *UNIFORM).row(2**40) != CountedDraws(2**63, (1,), *UNIFORM).row(2**40)
