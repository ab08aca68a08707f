"""SAC's update against its equations, written out with separate networks and torch.distributions."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from actorq.errors import UserError
from learner_service.algorithms.base import minibatches
from learner_service.algorithms.sac import SAC
from learner_service.batch import Batch
from tests.learner_service.algorithms.algorithm_parts import (
    BATCH,
    CONTINUOUS,
    make,
    of_the_cpu,
    ones,
    random_batch,
    with_windows,
)

pytestmark = of_the_cpu
RATE, LEARNING_RATE = 0.1, 1e-2


def make_sac(seed: int = 1, **changes: Any) -> SAC:
    defaults = {"hidden_sizes": (16, 16), "learning_rate": LEARNING_RATE, "target_rate": RATE, "temperature": None}
    algorithm = make("sac", seed=seed, **{**defaults, **changes})
    assert isinstance(algorithm, SAC)
    return algorithm


class Reference:
    """Algorithm 1 of arXiv 1812.05905, in float64."""

    def __init__(self, sac: SAC, target_entropy: float) -> None:
        policy = sac.state()["policy.parameters"]
        self.policy, self.log_alpha = _split(policy[:-1], _POLICY_SHAPES), policy[-1].double().clone()
        self.critic = _split(sac.state()["critic.parameters"], _CRITIC_SHAPES)
        self.target = [value.clone() for value in self.critic]
        for value in (*self.policy, *self.critic, self.log_alpha):
            value.requires_grad_()
        self._adams = [
            torch.optim.Adam(values, lr=LEARNING_RATE) for values in (self.critic, self.policy, [self.log_alpha])
        ]
        self._generator = torch.Generator().manual_seed(1)
        self._target_entropy = target_entropy

    def update(self, batch: Batch, weights: Any) -> Tensor:
        observations, following, actions, returns, discounts = (
            torch.from_numpy(column).double()
            for column in (
                *(batch.observations, batch.bootstrap_observations, batch.actions),
                *(batch.returns, batch.bootstrap_discounts),
            )
        )
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            drawn, log_probabilities = self._sample(following)
            soft = torch.minimum(*_q(following, drawn, self.target)) - alpha * log_probabilities
            targets = returns + discounts * soft
            if "between_discounts" in batch:
                targets += alpha * self._entropies_between(batch)
        first, second = _q(observations, actions, self.critic)
        squares = 0.5 * ((targets - first).square() + (targets - second).square())
        drawn, log_probabilities = self._sample(observations)
        temperature_loss = -(self.log_alpha * (log_probabilities.detach() + self._target_entropy)).mean()
        _descend(self._adams[0], (torch.from_numpy(weights) * squares).mean())
        values = torch.minimum(*_q(observations, drawn, self.critic))
        _descend(self._adams[1], (alpha * log_probabilities - values).mean())
        _descend(self._adams[2], temperature_loss)
        for target, value in zip(self.target, self.critic, strict=True):
            target.copy_(RATE * value.detach() + (1 - RATE) * target)
        return 0.5 * ((targets - first).abs() + (targets - second).abs()).detach()

    def _entropies_between(self, batch: Batch) -> Tensor:
        """sum_{0<k<m} -gamma^k log pi(a'_k | s_{t+k}), float64[B], one step of one row after the other."""
        size, between = batch.between_discounts.shape
        noise = torch.randn(size * between, 2, generator=self._generator).double()
        sums = torch.zeros(size, dtype=torch.float64)
        for row in range(size):
            for step in range(between):
                state = torch.from_numpy(batch.between_observations[row, step][None]).double()
                _, log_probability = self._sample(state, noise[row * between + step][None])
                sums[row] -= float(batch.between_discounts[row, step]) * log_probability[0]
        return sums

    def _sample(self, observations: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean, log_deviation = _mlp(observations, self.policy).chunk(2, dim=1)
        if noise is None:
            noise = torch.randn(BATCH, 2, generator=self._generator).double()
        deviation = log_deviation.clamp(-20, 2).exp()
        drawn = mean + deviation * noise
        action = torch.tanh(drawn)
        gaussian = Independent(Normal(mean, deviation), 1)
        log_probability: Tensor = gaussian.log_prob(drawn)  # type: ignore[no-untyped-call]
        return action, log_probability - torch.log(1 - action.square()).sum(1)


_POLICY_SHAPES = [(16, 3), (16,), (16, 16), (16,), (4, 16), (4,)]
_CRITIC_SHAPES = [(2, 16, 5), (2, 16), (2, 16, 16), (2, 16), (2, 1, 16), (2, 1)]


def _split(vector: Tensor, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    parts = torch.split(vector, [int(np.prod(shape)) for shape in shapes])
    return [part.view(shape).double().clone() for part, shape in zip(parts, shapes, strict=True)]


def _mlp(x: Tensor, parameters: list[Tensor]) -> Tensor:
    first, first_bias, second, second_bias, last, last_bias = parameters
    x = torch.relu(x @ first.T + first_bias)
    return torch.relu(x @ second.T + second_bias) @ last.T + last_bias


def _q(observations: Tensor, actions: Tensor, critics: list[Tensor]) -> tuple[Tensor, Tensor]:
    x = torch.cat((observations, actions), 1)
    first, second = (_mlp(x, [parameter[critic] for parameter in critics]).squeeze(1) for critic in (0, 1))
    return first, second


def _descend(adam: torch.optim.Optimizer, loss: Tensor) -> None:
    # Only these parameters' gradients are checked, so other gradients may stay.
    adam.zero_grad()
    torch.autograd.backward(loss)
    adam.step()


@pytest.mark.parametrize("target_entropy", [None, 0.7])
@pytest.mark.parametrize("n_step", [1, 2, 4])
def test_updates_are_those_of_the_paper(target_entropy: float | None, n_step: int) -> None:
    sac, rng = make_sac(target_entropy=target_entropy), np.random.default_rng(0)
    reference = Reference(sac, -2.0 if target_entropy is None else target_entropy)
    for _ in range(5):
        batch, weights = random_batch(rng, CONTINUOUS, BATCH), rng.random(BATCH, np.float32)
        if n_step > 1:
            batch = with_windows(rng, batch, n_step)
        losses = sac.update(batch, weights)
        np.testing.assert_allclose(losses.priorities, reference.update(batch, weights), rtol=1e-3, atol=1e-4)
        state = sac.state()
        for name, values in (
            ("policy.parameters", [*reference.policy, reference.log_alpha]),
            ("critic.parameters", reference.critic),
            ("target_critic", reference.target),
        ):
            expected = torch.cat([value.detach().flatten() for value in values]).float()
            torch.testing.assert_close(state[name], expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(("target_entropy", "rises"), [(1.386, True), (-50.0, False)])
def test_the_temperature_rises_while_there_is_too_little_entropy(target_entropy: float, rises: bool) -> None:
    sac, rng = make_sac(target_entropy=target_entropy), np.random.default_rng(0)
    assert float(sac.temperature.alpha) == pytest.approx(1.0)
    before = float(sac.temperature.alpha)
    for _ in range(5):
        sac.update(random_batch(rng, CONTINUOUS, BATCH), ones())
        assert (float(sac.temperature.alpha) > before) == rises
        before = float(sac.temperature.alpha)


def test_the_temperature_comes_to_rest_at_the_target_entropy() -> None:
    """For rewards -4 |a|^2 the best soft policy is Gaussian, as long as it is narrow: its variance is alpha / 8 and its
    entropy 1/2 log(2 pi e alpha / 8) in each component, so that alpha = 0.172 where the two together have -1.
    """
    sac, rng = make_sac(target_entropy=-1.0, learning_rate=5e-3), np.random.default_rng(0)
    for _ in range(100):
        batch = random_batch(rng, CONTINUOUS, 10 * BATCH)
        rewards = -4.0 * np.square(batch.actions).sum(1)
        sac.update(batch.with_columns(returns=rewards, bootstrap_discounts=np.zeros(10 * BATCH, np.float32)), ones(320))
    observations = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(4000, 2, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        _, log_probabilities = sac.policy.sample(observations, noise)
    assert -float(log_probabilities.mean()) == pytest.approx(-1.0, abs=0.2)
    assert float(sac.temperature.alpha) == pytest.approx(0.172, rel=0.3)


def test_an_unreachable_target_entropy_is_refused() -> None:
    most = CONTINUOUS.actions.shape[0] * math.log(2)
    make_sac(target_entropy=most - 1e-3)
    make_sac(target_entropy=most, temperature=0.1)
    with pytest.raises(UserError) as caught:
        make_sac(target_entropy=most)
    assert str(caught.value) == (
        "sac.target_entropy must be below A log 2 = 1.386, the entropy of uniform actions in [-1, 1], got 1.38629"
    )


def test_a_constant_temperature_stays() -> None:
    sac = make_sac(temperature=0.25)
    sac.update(random_batch(np.random.default_rng(0), CONTINUOUS, 4 * BATCH), ones(4 * BATCH))
    assert float(sac.temperature.alpha) == pytest.approx(0.25, rel=1e-6)


def test_a_resumed_run_has_the_constant_temperature_of_its_settings() -> None:
    batch = random_batch(np.random.default_rng(0), CONTINUOUS, 4 * BATCH)
    adjusted = make_sac()
    adjusted.update(batch, ones(4 * BATCH))
    resumed = make_sac(temperature=0.01)
    resumed.load_state(adjusted.state())
    assert float(resumed.temperature.alpha) == pytest.approx(0.01)
    resumed.update(batch, ones(4 * BATCH))
    assert float(resumed.temperature.alpha) == pytest.approx(0.01)


def test_a_terminal_state_has_no_entropy_to_bootstrap_from() -> None:
    batch = random_batch(np.random.default_rng(0), CONTINUOUS, BATCH)
    terminal = batch.with_columns(bootstrap_discounts=0 * ones())
    cold, hot = (make_sac(temperature=value).update(terminal, ones()).priorities for value in (1e-3, 10.0))
    np.testing.assert_array_equal(cold, hot)
    cold, hot = (make_sac(temperature=value).update(batch, ones()).priorities for value in (1e-3, 10.0))
    assert np.abs(cold - hot).max() > 1


def test_a_window_that_ended_at_once_has_the_target_of_one_step() -> None:
    rng = np.random.default_rng(0)
    batch = random_batch(rng, CONTINUOUS, BATCH)
    windows = with_windows(rng, batch, n_step=3)
    ended = windows.with_columns(between_discounts=np.zeros_like(windows.between_discounts))
    one, same, longer = (make_sac().update(each, ones()).priorities for each in (batch, ended, windows))
    np.testing.assert_allclose(same, one, rtol=1e-6)
    assert np.abs(longer - one).max() > 0.1


def test_minibatches_of_windows_are_cut_like_all_others() -> None:
    rng = np.random.default_rng(0)
    batch = with_windows(rng, random_batch(rng, CONTINUOUS, 3 * BATCH), n_step=3)
    parts = list(minibatches(batch, ones(3 * BATCH), BATCH, torch.device("cpu")))
    assert len(parts) == 3
    for number, part in enumerate(parts):
        assert part.between_observations is not None
        assert part.between_discounts is not None
        rows = slice(number * BATCH, (number + 1) * BATCH)
        np.testing.assert_array_equal(part.between_observations.numpy(), batch.between_observations[rows])
        np.testing.assert_array_equal(part.between_discounts.numpy(), batch.between_discounts[rows])


def test_flops_include_the_actions_of_longer_targets() -> None:
    rng = np.random.default_rng(0)
    batch = random_batch(rng, CONTINUOUS, BATCH)
    sac = make_sac()
    one_step = sac.flops
    sac.update(with_windows(rng, batch, n_step=3), ones())
    assert sac.flops.update.now - one_step.update.now == pytest.approx(2 * BATCH * one_step.action.now)
    assert sac.flops.action == one_step.action
