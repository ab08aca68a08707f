"""PPO: the paper's update to the last bit without staleness, and the effects of staleness and rounding."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actorq.domain.spaces import EnvironmentSpec
from learner_service.algorithms.policy_gradient import PolicyGradient
from learner_service.batch import Batch
from learner_service.kernels.parameters import Adam, FlatParameters, clipping_divisor
from tests.learner_service.algorithms.algorithm_parts import BOUNDED, DISCRETE, of_the_cpu
from tests.learner_service.algorithms.on_policy_parts import (
    N,
    T,
    as_acted,
    assert_equal_states,
    make,
    random_trajectories,
)

pytestmark = of_the_cpu
SPECS = {"discrete": DISCRETE, "continuous": BOUNDED}


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest) -> EnvironmentSpec:
    return SPECS[request.param]


class PlainPPO:
    """PPO as in the paper, by autograd, without importance weights; for one segment without resets.

    The initial networks, the clipping of gradients and Adam are those of an algorithm of ours. torchs: with the
    densities and the optimizer of torch.
    """

    def __init__(self, start: PolicyGradient, torchs: bool = False, entropy_cost: float = 0.0) -> None:
        self.policy, self.value = start.policy, start.networks["critic"].network
        self.torchs, self.entropy_cost = torchs, entropy_cost
        self.flat = [FlatParameters(self.policy), FlatParameters(self.value)]
        self.adams = [Adam(each, 3e-3, 1e-5) for each in self.flat]
        self.parameters = [*self.policy.parameters(), *self.value.parameters()]
        self.torch_adam = torch.optim.Adam(self.parameters, lr=3e-3, eps=1e-5)
        self.generator = torch.Generator().manual_seed(1)

    def judged(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of probabilities, and entropies."""
        outputs: Any = self.policy(observations)
        if isinstance(outputs, Tensor):
            logarithms = torch.log_softmax(outputs, 1)
            return logarithms[torch.arange(len(actions)), actions], -(logarithms.exp() * logarithms).sum(1)
        if self.torchs:
            gaussian: Any = torch.distributions.Normal(outputs[1], outputs[2].exp())
            return gaussian.log_prob(actions).sum(1), gaussian.entropy().sum(1)
        policy: Any = self.policy
        distribution = policy.distribution(observations)
        return policy.log_probabilities(actions, *distribution), policy.entropies(*distribution)

    def learn(self, steps: Batch) -> None:
        observations, actions = torch.from_numpy(steps.observations), torch.from_numpy(steps.actions).flatten(0, 1)
        with torch.no_grad():
            values = self.value(observations.flatten(0, 1)).view(T + 1, N).numpy()
        advantages, last = np.zeros((T, N), np.float32), np.zeros(N, np.float32)
        gamma, decay = np.float32(0.99), np.float32(0.99) * np.float32(0.95)
        for t in reversed(range(T)):
            following = np.where(steps.terminated[t], np.float32(0), gamma * values[t + 1])
            last = (steps.rewards[t] + following - values[t]) + decay * ~steps.terminated[t] * last
            advantages[t] = last
        seen, logged = observations[:-1].flatten(0, 1), torch.from_numpy(steps.log_probabilities.ravel())
        found = (torch.from_numpy(each.ravel()) for each in (advantages, advantages + values[:-1], values[:-1]))
        columns = (seen, actions, *self.old(seen, actions, logged), *found)
        for _ in range(4):
            for rows in torch.split(torch.randperm(T * N, generator=self.generator), 32):
                self.step(*(column[rows] for column in columns))

    def old(self, observations: Tensor, actions: Tensor, logged: Tensor) -> tuple[Tensor, ...]:
        """The logarithms of probabilities that ratios are relative to."""
        return (logged,)

    def step(
        self, observations: Tensor, actions: Tensor, old: Tensor, advantages: Tensor, returns: Tensor, values: Tensor
    ) -> None:
        logarithms, entropies = self.judged(observations, actions)
        ratio = torch.exp(logarithms - old)
        std, mean = torch.std_mean(advantages)
        advantages = (advantages - mean) / (std + 1e-8)
        policy_loss = -torch.min(ratio * advantages, torch.clamp(ratio, 0.8, 1.2) * advantages).mean()
        value_loss = 0.5 * ((self.value(observations) - returns) ** 2).mean()
        self.descend(policy_loss + 0.5 * value_loss - self.entropy_cost * entropies.mean())

    def descend(self, loss: Tensor) -> None:
        for each in self.flat:
            each.gradient.zero_()
        torch.autograd.backward(loss)
        if self.torchs:
            torch.nn.utils.clip_grad_norm_(self.parameters, 0.5)
            self.torch_adam.step()
            return
        divisor = clipping_divisor(self.flat, 0.5)
        for adam in self.adams:
            adam.step(divisor)


class DecoupledPPO(PlainPPO):
    """With the proximal policy, truncated weights and clipped values."""

    def old(self, observations: Tensor, actions: Tensor, logged: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            proximal = self.judged(observations, actions)[0]
        return proximal, (proximal - logged).exp().clamp(max=2.0)

    def step(self, observations: Tensor, actions: Tensor, old: Tensor, *more: Tensor) -> None:
        weights, advantages, returns, values = more
        logarithms, entropies = self.judged(observations, actions)
        ratio = torch.exp(logarithms - old)
        policy_loss = -(weights * torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)).mean()
        present = self.value(observations)
        clipped = values + (present - values).clamp(-0.05, 0.05)
        value_loss = 0.5 * torch.max((present - returns) ** 2, (clipped - returns) ** 2).mean()
        self.descend(policy_loss + 0.5 * value_loss - self.entropy_cost * entropies.mean())


def assert_networks_are(ours: PolicyGradient, reference: PlainPPO, exactly: bool) -> None:
    for network, flat in zip(ours.networks.values(), reference.flat, strict=True):
        actual = network.parameters[0].vector
        if exactly:
            assert torch.equal(actual, flat.vector)
        else:
            torch.testing.assert_close(actual, flat.vector, rtol=1e-3, atol=1e-4)


def episodes(rng: np.random.Generator, spec: EnvironmentSpec) -> Batch:
    """Some with terminal states, and none with a reset."""
    never = np.zeros((T, N), np.bool_)
    return random_trajectories(rng, spec).with_columns(truncated=never, valid=~never)


@pytest.mark.parametrize("entropy_cost", [0.0, 0.25])
@pytest.mark.parametrize("torchs", [False, True], ids=["bit for bit", "with torch's optimizer"])
def test_without_staleness_and_rounding_it_is_plain_ppo(
    spec: EnvironmentSpec, torchs: bool, entropy_cost: float
) -> None:
    ours, start = (make("ppo", spec, entropy_cost=entropy_cost) for _ in range(2))
    plain, rng = PlainPPO(start, torchs, entropy_cost), np.random.default_rng(0)
    for _ in range(4):
        steps = as_acted(ours, episodes(rng, spec))
        learned = ours.learn([steps], 0.0)
        assert learned.figures["mean_weight"] == 1.0
        assert learned.figures["truncated_share"] == 0.0
        plain.learn(steps)
    assert_networks_are(ours, plain, exactly=not torchs)


def test_stale_transitions_are_weighted_and_values_are_clipped(spec: EnvironmentSpec) -> None:
    """Against autograd on the loss as it is written in the paper."""
    settings: dict[str, Any] = {"entropy_cost": 0.1, "value_clip": 0.05, "normalize_advantages": False}
    ours, start = (make("ppo", spec, **settings) for _ in range(2))
    decoupled, rng = DecoupledPPO(start, torchs=True, entropy_cost=0.1), np.random.default_rng(0)
    for _ in range(3):
        steps = as_acted(ours, episodes(rng, spec))
        noise = rng.standard_normal((T, N)).astype(np.float32)
        steps = steps.with_columns(log_probabilities=steps.log_probabilities + noise)
        learned = ours.learn([steps], 0.0)
        weights = np.exp(-noise)
        assert learned.figures["truncated_share"] == pytest.approx((weights > 2).mean())
        assert learned.figures["mean_weight"] == pytest.approx(np.minimum(weights, 2).mean(), rel=1e-4)
        decoupled.learn(steps)
    assert_networks_are(ours, decoupled, exactly=False)


def test_without_correction_the_acting_policy_has_no_effect(spec: EnvironmentSpec) -> None:
    steps = [episodes(np.random.default_rng(seed), spec) for seed in range(2)]
    others = [each.with_columns(log_probabilities=each.log_probabilities - 1) for each in steps]
    uncorrected = [make("ppo", spec, correct=False) for _ in range(2)]
    assert uncorrected[0].learn(steps, 0.0) == uncorrected[1].learn(others, 0.0)
    assert_equal_states(*uncorrected)
    corrected = [make("ppo", spec) for _ in range(2)]
    assert corrected[0].learn(steps, 0.0) != corrected[1].learn(others, 0.0)


def test_clip_and_learning_rate_reach_their_ends_with_the_budget() -> None:
    steps = [episodes(np.random.default_rng(seed), DISCRETE) for seed in range(2)]
    annealed = make("ppo", learning_rate=2e-3, learning_rate_end=0.0, clip=0.4, clip_end=0.0)
    halfway, constant = annealed.learn(steps, 0.5), make("ppo", learning_rate=1e-3, clip=0.2)
    assert halfway == constant.learn(steps, 0.5)
    assert_equal_states(annealed, constant)
    before = annealed.networks["actor"].parameters[0].vector.clone()
    annealed.learn(steps, 1.0)
    assert torch.equal(annealed.networks["actor"].parameters[0].vector, before)


def test_the_value_network_has_its_own_learning_rate() -> None:
    steps = [episodes(np.random.default_rng(seed), DISCRETE) for seed in range(2)]
    policy_only, both = make("ppo", value_learning_rate=1e-30, learning_rate_end=0.0), make("ppo")
    untouched = policy_only.networks["critic"].parameters[0].vector.clone()
    for algorithm in (policy_only, both):
        algorithm.learn(steps[:1], 0.0)
    assert torch.allclose(policy_only.networks["critic"].parameters[0].vector, untouched, rtol=0, atol=1e-20)
    assert not torch.allclose(both.networks["critic"].parameters[0].vector, untouched)
    annealed = make("ppo", value_learning_rate=4e-3, learning_rate=2e-3, learning_rate_end=1e-3)
    halved = make("ppo", value_learning_rate=2e-3, learning_rate=1e-3)
    assert annealed.learn(steps, 1.0) == halved.learn(steps, 1.0)
    assert_equal_states(annealed, halved)


def test_epochs_end_early_when_the_policy_has_moved_far() -> None:
    steps = [episodes(np.random.default_rng(seed), DISCRETE) for seed in range(2)]
    all_epochs = make("ppo", target_kl=1e3).learn(steps, 0.0)
    assert all_epochs.updates == 4 * 2 * T * N // 32
    assert make("ppo", target_kl=1e-9).learn(steps, 0.0).updates == 2 * T * N // 32


def test_figures_are_those_of_the_updates() -> None:
    steps = [as_acted(make("ppo"), episodes(np.random.default_rng(0), DISCRETE))]
    algorithm = make("ppo", learning_rate=1e-9)
    figures = algorithm.learn(steps, 0.0).figures
    # A policy that stays: the mean of normalized advantages is 0.
    assert figures["policy_loss"] == pytest.approx(0.0, abs=1e-4)
    assert figures["approximate_kl"] == pytest.approx(0.0, abs=1e-4)
    assert figures["clipped_share"] == 0.0
    # Small weights of the last layer make all actions alike.
    assert figures["entropy"] == pytest.approx(np.log(3), abs=1e-3)
    moved = make("ppo", learning_rate=0.01).learn(steps, 0.0).figures
    assert moved["approximate_kl"] > 0.01
    assert 0 < moved["clipped_share"] < 1
    assert moved["policy_loss"] < -0.001


def test_rollouts_that_are_not_whole_minibatches_are_cut_evenly() -> None:
    algorithm = make("ppo", epochs=1, batch_size=50)
    assert algorithm.learn([episodes(np.random.default_rng(0), DISCRETE)], 0.0).updates == 3
    assert (
        make("ppo", epochs=1, batch_size=1000).learn([episodes(np.random.default_rng(0), DISCRETE)], 0.0).updates == 1
    )
