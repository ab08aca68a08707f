"""TD3's update against its equations, written out with separate networks, one transition after another."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from learner_service.algorithms.td3 import TD3
from learner_service.batch import Batch
from tests.learner_service.algorithms.algorithm_parts import (
    BATCH,
    CONTINUOUS,
    act,
    make,
    of_the_cpu,
    ones,
    random_batch,
    rows,
)

SIZES = (16, 16)
NOISE, CLIP, RATE, LEARNING_RATE = 0.3, 0.4, 0.1, 1e-2


def make_td3(seed: int = 1, **changes: Any) -> TD3:
    defaults = {
        "hidden_sizes": SIZES,
        "learning_rate": LEARNING_RATE,
        "target_rate": RATE,
        "target_noise": NOISE,
        "target_noise_clip": CLIP,
    }
    algorithm = make("td3", seed=seed, **{**defaults, **changes})
    assert isinstance(algorithm, TD3)
    return algorithm


class Reference:
    """Algorithm 1 of arXiv 1802.09477."""

    def __init__(self, td3: TD3, delay: int) -> None:
        self.policy = _split(td3.state()["policy.parameters"], _POLICY_SHAPES)
        self.critic = _split(td3.state()["critic.parameters"], _CRITIC_SHAPES)
        self.target_policy = [value.clone() for value in self.policy]
        self.target_critic = [value.clone() for value in self.critic]
        for value in (*self.policy, *self.critic):
            value.requires_grad_()
        self._policy_adam = torch.optim.Adam(self.policy, lr=LEARNING_RATE, fused=False)
        self._critic_adam = torch.optim.Adam(self.critic, lr=LEARNING_RATE, fused=False)
        self._generator = torch.Generator().manual_seed(1)
        self._delay, self._updates = delay, 0

    def update(self, batch: Batch, weights: Any) -> list[float]:
        noise = NOISE * torch.randn(BATCH, 2, generator=self._generator)
        losses, priorities = [], []
        for i in range(BATCH):
            observation, following = (
                torch.from_numpy(column[i]) for column in (batch.observations, batch.bootstrap_observations)
            )
            with torch.no_grad():
                smoothed = torch.tanh(_mlp(following, self.target_policy)) + noise[i].clamp(-CLIP, CLIP)
                action = smoothed.clamp(-1, 1)
                least = min(float(_q(following, action, self.target_critic, critic)) for critic in (0, 1))
            target = float(batch.returns[i]) + float(batch.bootstrap_discounts[i]) * least
            taken = torch.from_numpy(batch.actions[i])
            errors = [target - _q(observation, taken, self.critic, critic) for critic in (0, 1)]
            losses.append(float(weights[i]) * sum(error.square() for error in errors))
            priorities.append(sum(abs(float(error.detach())) for error in errors) / 2)
        _descend(self._critic_adam, torch.stack([torch.as_tensor(loss) for loss in losses]).mean())
        self._updates += 1
        if self._updates % self._delay == 0:
            first = []
            for i in range(BATCH):
                observation = torch.from_numpy(batch.observations[i])
                first.append(_q(observation, torch.tanh(_mlp(observation, self.policy)), self.critic, 0))
            _descend(self._policy_adam, -torch.stack(first).mean())
            for targets, online in ((self.target_policy, self.policy), (self.target_critic, self.critic)):
                for target_value, value in zip(targets, online, strict=True):
                    target_value.copy_(RATE * value.detach() + (1 - RATE) * target_value)
        return priorities


_POLICY_SHAPES = [(16, 3), (16,), (16, 16), (16,), (2, 16), (2,)]
_CRITIC_SHAPES = [(2, 16, 5), (2, 16), (2, 16, 16), (2, 16), (2, 1, 16), (2, 1)]


def _split(vector: Tensor, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    parts = torch.split(vector, [int(np.prod(shape)) for shape in shapes])
    return [part.view(shape).clone() for part, shape in zip(parts, shapes, strict=True)]


def _mlp(x: Tensor, parameters: list[Tensor]) -> Tensor:
    first, first_bias, second, second_bias, last, last_bias = parameters
    x = torch.relu(first @ x + first_bias)
    return last @ torch.relu(second @ x + second_bias) + last_bias


def _q(observation: Tensor, action: Tensor, critics: list[Tensor], critic: int) -> Tensor:
    return _mlp(torch.cat((observation, action)), [parameter[critic] for parameter in critics]).squeeze(0)


def _descend(adam: torch.optim.Optimizer, loss: Tensor) -> None:
    adam.zero_grad()
    torch.autograd.backward(loss)
    adam.step()


@of_the_cpu
@pytest.mark.parametrize("delay", [1, 2, 3])
def test_updates_are_those_of_the_paper(delay: int) -> None:
    td3, rng = make_td3(policy_delay=delay), np.random.default_rng(0)
    reference = Reference(td3, delay)
    for _ in range(4):
        batch, weights = random_batch(rng, CONTINUOUS, BATCH), rng.random(BATCH, np.float32)
        losses = td3.update(batch, weights)
        np.testing.assert_allclose(losses.priorities, reference.update(batch, weights), rtol=1e-3, atol=1e-4)
        state = td3.state()
        for name, values in (
            ("policy.parameters", reference.policy),
            ("critic.parameters", reference.critic),
            ("target_policy", reference.target_policy),
            ("target_critic", reference.target_critic),
        ):
            expected = torch.cat([value.detach().flatten() for value in values])
            torch.testing.assert_close(state[name], expected, rtol=1e-2, atol=1e-3)


def test_the_policy_and_the_targets_wait_for_the_critics() -> None:
    td3, rng = make_td3(policy_delay=3), np.random.default_rng(0)
    for update in range(1, 7):
        before = td3.state()
        td3.update(random_batch(rng, CONTINUOUS, BATCH), ones())
        after = td3.state()
        moved = [name for name in before if not torch.equal(after[name], before[name]) and "." not in name]
        expected = {"generator", "updates"} | ({"target_policy", "target_critic"} if update % 3 == 0 else set())
        assert set(moved) == expected
        assert torch.equal(after["policy.parameters"], before["policy.parameters"]) == (update % 3 != 0)
        assert not torch.equal(after["critic.parameters"], before["critic.parameters"])


def test_smoothed_target_actions_have_the_configured_noise_within_the_bounds() -> None:
    """Seen through a critic that is the first component of the action: its targets are that component."""
    td3 = make_td3(target_noise=0.2, target_noise_clip=0.3, hidden_sizes=(16, 16), policy_delay=1_000_000)
    _make_critics_read_the_first_action(td3)
    rng = np.random.default_rng(0)
    batch = random_batch(rng, CONTINUOUS, 200 * BATCH)
    intended = act(td3, batch.bootstrap_observations)[:, 0]
    state, errors = td3.state(), []
    for start in range(0, len(intended), BATCH):
        generator = td3.state()["generator"]
        td3.load_state({**state, "generator": generator})
        part = rows(batch, slice(start, start + BATCH))
        # The critics' value of the chosen action is 0 here, so that the error is the target.
        probe = Batch(
            observations=part.observations,
            actions=0 * part.actions,
            returns=10 * ones(),
            bootstrap_discounts=ones(),
            bootstrap_observations=part.bootstrap_observations,
            policy_versions=part.policy_versions,
        )
        errors.append(td3.update(probe, 0 * ones()).priorities - 10)
    noise = np.concatenate(errors) - intended
    assert np.abs(np.concatenate(errors)).max() <= 1 + 1e-5
    assert np.abs(noise).max() == pytest.approx(0.3, abs=1e-4)
    inside = np.abs(noise) < 0.299
    # Of a normal distribution with deviation 0.2, 13.4% are beyond 0.3.
    assert 1 - inside.mean() == pytest.approx(0.134, abs=0.02)
    assert noise.mean() == pytest.approx(0.0, abs=0.01)


def _make_critics_read_the_first_action(td3: TD3) -> None:
    """Q(s, a) = a_0 = relu(a_0) - relu(-a_0), for both critics and their targets; policies stay small."""
    layers = [torch.zeros(shape) for shape in _CRITIC_SHAPES]
    layers[0][:, 0, 3], layers[0][:, 1, 3] = 1.0, -1.0
    layers[2][:, 0, 0] = layers[2][:, 1, 1] = 1.0
    layers[4][:, 0, 0], layers[4][:, 0, 1] = 1.0, -1.0
    vector = torch.cat([layer.flatten() for layer in layers])
    td3.load_state({**td3.state(), "critic.parameters": vector, "target_critic": vector})
