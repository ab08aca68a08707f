"""The projection of a distribution of returns against its equation written out in loops."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from torch import Tensor

from learner_service.networks import Support


def slow_projection(values: list[float], probabilities: list[float], ret: float, discount: float) -> list[float]:
    """arXiv 1707.06887, equation 7, for one row."""
    lowest, highest, spacing = values[0], values[-1], values[1] - values[0]
    projected = []
    for z_i in values:
        total = 0.0
        for p_j, z_j in zip(probabilities, values, strict=True):
            moved = min(max(ret + discount * z_j, lowest), highest)
            total += p_j * min(max(1 - abs(moved - z_i) / spacing, 0.0), 1.0)
        projected.append(total)
    return projected


def distributions(rows: int, atoms: int, seed: int) -> Tensor:
    return torch.softmax(3 * torch.randn(rows, atoms, generator=torch.Generator().manual_seed(seed)), 1)


@effort(max_examples=60, deadline=None)
@given(
    atoms=st.integers(2, 9),
    bounds=st.tuples(st.floats(-50, 49), st.floats(0.5, 100)),
    returns=st.lists(st.floats(-300, 300, width=32), min_size=1, max_size=4),
    discount=st.sampled_from([0.0, 0.5, 0.951, 1.0]),
    seed=st.integers(0, 99),
)
def test_the_projection_follows_the_equation(
    atoms: int, bounds: tuple[float, float], returns: list[float], discount: float, seed: int
) -> None:
    support = Support(bounds[0], bounds[0] + bounds[1], atoms)
    probabilities = distributions(len(returns), atoms, seed)
    projected = support.project(probabilities, torch.tensor(returns), torch.full((len(returns),), discount))
    values = np.linspace(support.lowest, support.highest, atoms).tolist()
    expected = [slow_projection(values, p.tolist(), r, discount) for p, r in zip(probabilities, returns, strict=True)]
    np.testing.assert_allclose(projected, expected, atol=2e-3)
    np.testing.assert_allclose(projected.sum(1), 1, atol=1e-5)


def test_a_projection_onto_the_same_values_changes_nothing() -> None:
    support, probabilities = Support(-150.0, 150.0, 51), distributions(5, 51, 1)
    kept = probabilities.clone()
    projected = support.project(probabilities, torch.zeros(5), torch.ones(5))
    np.testing.assert_allclose(projected, kept, atol=1e-5)
    assert torch.equal(probabilities, kept), "its input is the caller's"


@pytest.mark.parametrize(
    ("ret", "expected"),
    [
        (0.0, [0, 0, 1, 0, 0]),
        (0.25, [0, 0, 0.75, 0.25, 0]),
        (2.0, [0, 0, 0, 0, 1]),
        (-2.0, [1, 0, 0, 0, 0]),
        (7.5, [0, 0, 0, 0, 1]),
        (-1e9, [1, 0, 0, 0, 0]),
    ],
)
def test_past_a_terminal_state_all_mass_is_on_the_clipped_return(ret: float, expected: list[float]) -> None:
    projected = Support(-2.0, 2.0, 5).project(distributions(1, 5, 2), torch.tensor([ret]), torch.zeros(1))
    np.testing.assert_allclose(projected[0], expected, atol=1e-6)


def test_a_projection_within_the_bounds_keeps_the_mean() -> None:
    support = Support(-150.0, 150.0, 51)
    probabilities = torch.zeros(3, 51)
    probabilities[:, 20:31] = distributions(3, 11, 4)
    returns, discounts = torch.tensor([-3.0, 0.7, 40.0]), torch.tensor([0.9, 0.951, 1.0])
    projected = support.project(probabilities, returns, discounts)
    expected = returns + discounts * (probabilities @ support.values)
    np.testing.assert_allclose(projected @ support.values, expected, atol=1e-3)


def test_the_mean_is_over_the_softmax_of_the_logits() -> None:
    assert Support(-1.0, 3.0, 3).mean(torch.tensor([[0.0, 0.0, 0.0], [100.0, 0.0, 0.0]])).tolist() == [1.0, -1.0]
