"""Updates with several threads: both critics in one product give the numbers of one critic after the other."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from learner_service.algorithms import GradientAlgorithm
from learner_service.kernels.torch_private import plain_product
from learner_service.networks import TwinCritic, twin
from tests.learner_service.algorithms.algorithm_parts import (
    CONTINUOUS,
    assert_equal_states,
    make,
    of_the_cpu,
    random_batch,
    spec_of,
    with_windows,
)

pytestmark = of_the_cpu


@pytest.fixture(autouse=True)
def of_mkl(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where products are MKL's, and the number of threads as before."""
    monkeypatch.setattr(twin, "large_product", lambda: plain_product)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def made_with(threads: int, name: str, n_step: int = 1, recorded: bool = True) -> GradientAlgorithm:
    """The algorithm after three updates."""
    torch.set_num_threads(threads)
    algorithm = make(name, hidden_sizes=(64, 64), batch_size=32, n_step=n_step)
    assert isinstance(algorithm, GradientAlgorithm)
    algorithm.can_record = recorded
    rng = np.random.default_rng(0)
    for _ in range(3):
        batch = random_batch(rng, spec_of(name), 64)
        batch = with_windows(rng, batch, n_step) if name == "sac" and n_step > 1 else batch
        algorithm.update(batch, rng.random(64, np.float32))
    return algorithm


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("name", ["td3", "sac"])
def test_two_threads_give_the_numbers_of_one_up_to_rounding(name: str, n_step: int) -> None:
    one, two = (made_with(threads, name, n_step).state() for threads in (1, 2))
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["td3", "sac"])
def test_recorded_updates_with_two_threads_are_those_of_autograd(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert_equal_states(made_with(2, name), made_with(2, name, recorded=False))
    assert not caplog.records


@pytest.mark.parametrize("name", ["td3", "sac"])
def test_updates_are_the_same_each_time_with_two_threads(name: str) -> None:
    assert_equal_states(made_with(2, name), made_with(2, name))


def test_an_algorithm_follows_a_new_number_of_threads() -> None:
    """As in the measurement of `auto`."""
    algorithm, expected = made_with(1, "td3"), made_with(1, "td3")
    rng = np.random.default_rng(1)
    batch, weights = random_batch(rng, CONTINUOUS, 64), np.ones(64, np.float32)
    for threads in (2, 1):
        torch.set_num_threads(threads)
        algorithm.update(batch, weights)
        torch.set_num_threads(1)
        expected.update(batch, weights)
    for key, value in expected.state().items():
        torch.testing.assert_close(algorithm.state()[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("writes", [True, False])
def test_gradients_are_those_of_one_critic_after_the_other(writes: bool) -> None:
    gradients = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        critic = TwinCritic(CONTINUOUS, (8, 8))
        written = []
        if writes:
            for parameter in critic.parameters():
                parameter.grad = torch.full_like(parameter, 7.0)
            written = critic.write_gradients()
        for each in written:
            each.begin()
        observations = torch.randn(5, *CONTINUOUS.observations.shape)
        actions = torch.randn(5, *CONTINUOUS.actions.shape).requires_grad_()
        # Two uses of one network: the second one's gradient is added.
        values = critic(observations, actions).square().mean() + critic(observations, 2 * actions).mean()
        torch.autograd.backward(values + critic.judge(observations, actions).amin(0).mean())
        for each in written:
            each.finish()
        gradients.append([actions.grad, *(parameter.grad for parameter in critic.parameters())])
    torch.testing.assert_close(gradients[1], gradients[0])
