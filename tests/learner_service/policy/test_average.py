"""The moving average of published policies."""

import numpy as np
import pytest

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from learner_service.policy.average import PolicyAverage


def parameters(value: float) -> dict[str, np.ndarray]:
    return {"weight": np.full((2, 3), value, np.float32), "mean": np.full(2, 10 * value, np.float32)}


def test_it_is_the_exponential_moving_average_of_parameters_and_not_of_statistics() -> None:
    average = PolicyAverage(0.75, ["weight"])
    expected = 1.0
    for value in (1.0, 3.0, -2.0):
        expected = 0.75 * expected + 0.25 * value if value != 1.0 else 1.0
        made = average(parameters(value))
        np.testing.assert_allclose(made["weight"], np.full((2, 3), expected), rtol=1e-6)
        np.testing.assert_array_equal(made["mean"], np.full(2, 10 * value))
        assert {array.dtype for array in made.values()} == {np.dtype(np.float32)}


def test_a_published_policy_does_not_change_with_the_next_one() -> None:
    average = PolicyAverage(0.5, ["weight"])
    first = average(parameters(1.0))
    average(parameters(2.0))
    np.testing.assert_array_equal(first["weight"], parameters(1.0)["weight"])


def test_without_a_weight_nothing_is_averaged_or_copied() -> None:
    given = parameters(1.0)
    assert PolicyAverage(0.0, ["weight"])(given) is given


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"publication": {"average": 1.0}}, "publication.average"),
        ({"publication": {"average": 0.5}, "sparsity": {"method": "rigl"}}, "whose masks change"),
        ({"publication": {"average": 0.5}, "algorithm": "ppo"}, "publication.average"),
    ],
)
def test_what_cannot_be_averaged_is_refused(given: dict[str, object], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        settings.build(RunConfig, {"environment": "CartPole-v1", **given})
