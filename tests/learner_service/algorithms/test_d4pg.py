"""D4PG's update against its equations, one transition after another."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actorq.config.run_config import RunConfig
from actorq.config.settings import build
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from learner_service.algorithms.d4pg import D4PG
from learner_service.batch import Batch
from tests.learner_service.learner_parts import ones

BATCH = 8
SPEC = EnvironmentSpec("Arm-v0", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", (-2.0, 0.0), (2.0, 1.0)), ())
LOW, HIGH = (torch.tensor(bound) for bound in ((-2.0, 0.0), (2.0, 1.0)))
SECTION: dict[str, Any] = {
    "policy_sizes": (16, 16),
    "critic_sizes": (16, 8),
    "batch_size": BATCH,
    "policy_learning_rate": 1e-3,
    "critic_learning_rate": 2e-3,
    "target_update_period": 3,
    "max_gradient_norm": 0.05,
    "atoms": 7,
    "value_min": -3.0,
    "value_max": 3.0,
}


def make(**changes: Any) -> D4PG:
    config = RunConfig.model_validate({"algorithm": "d4pg", "seed": 1, "d4pg": {**SECTION, **changes}})
    return D4PG(config, SPEC, torch.device("cpu"))


def random_batch(rng: np.random.Generator, size: int, returns: float = 1.0) -> Batch:
    return Batch(
        observations=rng.standard_normal((size, 3), np.float32),
        actions=rng.uniform((-2.0, 0.0), (2.0, 1.0), (size, 2)).astype(np.float32),
        returns=returns * rng.standard_normal(size, np.float32),
        bootstrap_discounts=np.where(rng.random(size) < 0.3, 0.0, 0.9).astype(np.float32),
        bootstrap_observations=rng.standard_normal((size, 3), np.float32),
        policy_versions=np.ones(size, np.int64),
    )


def parts(vector: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
    return [
        part.view(shape) for part, shape in zip(torch.split(vector, [s.numel() for s in shapes]), shapes, strict=True)
    ]


def layer_norm_mlp(x: Tensor, parameters: list[Tensor]) -> Tensor:
    """Two hidden layers and a head, written out."""
    w0, b0, scale, shift, w1, b1, w2, b2 = parameters
    x = x @ w0.T + b0
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * scale + shift
    x = torch.tanh(x) @ w1.T + b1
    return torch.where(x > 0, x, x.exp() - 1) @ w2.T + b2


def shapes_of(inputs: int, sizes: tuple[int, int], outputs: int) -> list[torch.Size]:
    a, b = sizes
    return [torch.Size(s) for s in ((a, inputs), (a,), (a,), (a,), (b, a), (b,), (outputs, b), (outputs,))]


class Reference:
    """The update of the module's docstring with separate parameters, rows one by one."""

    def __init__(self, d4pg: D4PG, delay: int) -> None:
        self._delay = delay
        state = d4pg.state()
        self.shapes = {"policy": shapes_of(3, (16, 16), 2), "critic": shapes_of(5, (16, 8), 7)}
        self.online = {
            name: [part.clone().requires_grad_() for part in parts(state[f"{name}.parameters"], shapes)]
            for name, shapes in self.shapes.items()
        }
        self._copy()
        self._adam = {
            "policy": torch.optim.Adam(self.online["policy"], lr=1e-3, fused=False),
            "critic": torch.optim.Adam(self.online["critic"], lr=2e-3, fused=False),
        }
        self._updates = 0
        self.values = torch.linspace(-3, 3, 7)

    def update(self, batch: Batch, weights: np.ndarray[Any, Any]) -> list[float]:
        losses, errors = [], []
        for i in range(BATCH):
            observation, following = (
                torch.from_numpy(rows[i]) for rows in (batch.observations, batch.bootstrap_observations)
            )
            action = 2 * (torch.from_numpy(batch.actions[i]) - LOW) / (HIGH - LOW) - 1
            with torch.no_grad():
                best = torch.tanh(layer_norm_mlp(following, self.target["policy"]))
                following_p = torch.softmax(layer_norm_mlp(torch.cat((following, best)), self.target["critic"]), 0)
                target = torch.zeros(7)
                for p, z in zip(following_p, self.values, strict=True):
                    moved = (float(batch.returns[i]) + float(batch.bootstrap_discounts[i]) * z).clamp(-3, 3)
                    target += p * (1 - (moved - self.values).abs() / 1.0).clamp(0, 1)
            logits = layer_norm_mlp(torch.cat((observation, action)), self.online["critic"])
            losses.append(-float(weights[i]) * (target * torch.log_softmax(logits, 0)).sum())
            errors.append(abs(float(target @ self.values - (torch.softmax(logits, 0) @ self.values).detach())))
        self._descend("critic", torch.stack(losses).mean())
        objectives = []
        for row in batch.observations:
            observation = torch.from_numpy(row)
            action = torch.tanh(layer_norm_mlp(observation, self.online["policy"]))
            free = action.detach().requires_grad_()
            q = torch.softmax(layer_norm_mlp(torch.cat((observation, free)), self.online["critic"]), 0) @ self.values
            (direction,) = torch.autograd.grad(q, free)
            direction = direction / max(1.0, float(direction.norm()))
            objectives.append((direction * action).sum())
        self._updates += 1
        if self._updates % self._delay == 0:
            self._descend("policy", -torch.stack(objectives).mean())
        if self._updates % 3 == 0:
            self._copy()
        return errors

    def _descend(self, name: str, loss: Tensor) -> None:
        self._adam[name].zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.online[name], 0.05)
        self._adam[name].step()

    def _copy(self) -> None:
        self.target = {name: [part.detach().clone() for part in parts] for name, parts in self.online.items()}


@pytest.mark.parametrize("delay", [1, 2])
def test_updates_agree_with_a_slow_reference(delay: int) -> None:
    d4pg, rng = make(policy_delay=delay), np.random.default_rng(5)
    reference = Reference(d4pg, delay)
    for _ in range(6):
        batch, weights = random_batch(rng, 2 * BATCH), rng.uniform(0.1, 1.0, 2 * BATCH).astype(np.float32)
        losses = d4pg.update(batch, weights)
        expected: list[float] = []
        for start in (0, BATCH):
            rows = slice(start, start + BATCH)
            minibatch = batch[rows]
            expected += reference.update(minibatch, weights[rows])
        np.testing.assert_allclose(losses.priorities, expected, atol=1e-4)
    state = d4pg.state()
    for name, shapes in reference.shapes.items():
        for got, wanted in zip(parts(state[f"{name}.parameters"], shapes), reference.online[name], strict=True):
            np.testing.assert_allclose(got, wanted.detach(), atol=1e-4)
        for got, wanted in zip(parts(state[f"target_{name}"], shapes), reference.target[name], strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-4)


def test_the_policy_acts_within_the_bounds_of_each_component_and_begins_in_their_middle() -> None:
    d4pg = make()
    observations = 10 * torch.randn(200, 3)
    assert torch.allclose(d4pg.policy(observations), torch.tensor([0.0, 0.5]).expand(200, 2), atol=0.1)
    for _ in range(30):
        d4pg.update(random_batch(np.random.default_rng(0), BATCH), ones(BATCH))
    with torch.no_grad():
        for parameter in d4pg.policy.parameters():
            parameter.mul_(30)
        actions = d4pg.policy(observations)
    assert (actions >= LOW).all()
    assert (actions <= HIGH).all()
    assert actions[:, 0].max() > 1.9


def test_the_policy_is_updated_by_the_critic_but_not_the_other_way_round() -> None:
    # The critic does not learn, so any change of it would come from the policy's update.
    d4pg = make(critic_learning_rate=1e-30)
    before = d4pg.state()
    d4pg.update(random_batch(np.random.default_rng(0), BATCH), ones(BATCH))
    after = d4pg.state()
    np.testing.assert_allclose(after["critic.parameters"], before["critic.parameters"], atol=1e-20)
    assert not torch.equal(after["policy.parameters"], before["policy.parameters"])


def test_returns_beyond_the_support_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    d4pg, rng = make(), np.random.default_rng(0)
    with caplog.at_level(logging.WARNING):
        d4pg.update(random_batch(rng, BATCH, returns=0.1), ones(BATCH))
        assert not caplog.messages
        for _ in range(2):
            d4pg.update(random_batch(rng, BATCH, returns=100.0), ones(BATCH))
    assert len(caplog.messages) == 1
    assert "outside d4pg.value_min..value_max (-3..3)" in caplog.messages[0]


def test_bounds_of_values_must_ascend() -> None:
    with pytest.raises(UserError, match=r"^d4pg.value_min must be below d4pg.value_max \(1\), got 1$"):
        build(RunConfig, {"d4pg": {"value_min": 1.0, "value_max": 1.0}})
