"""DQN's update against its equations: exact values of small problems, and a slow reference of every step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from actorq.config.algorithms import DQNConfig
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from actorq.errors import UserError
from learner_service.algorithms import make_algorithm
from learner_service.algorithms.dqn import DQN
from learner_service.batch import Batch
from learner_service.replay import ReplayStore, Returns, SegmentSource, assemble
from tests.learner_service.learner_parts import SPEC, ones, random_batch

BATCH = 16
CPU = torch.device("cpu")


def run_config(dqn: DQNConfig, seed: int = 1) -> RunConfig:
    return RunConfig(dqn=dqn, seed=seed)


def make_dqn(spec: EnvironmentSpec = SPEC, seed: int = 1, **config: Any) -> DQN:
    defaults: dict[str, Any] = {"hidden_sizes": (16, 16), "batch_size": BATCH}
    return DQN(run_config(DQNConfig(**{**defaults, **config}), seed), spec, CPU)


def named(dqn: DQN, vector: Tensor) -> dict[str, Tensor]:
    """A flat vector of `DQN.state` by the names of the policy's parameters."""
    parameters = dict(dqn.policy.named_parameters())
    parts = torch.split(vector, [parameter.numel() for parameter in parameters.values()])
    return {name: part.view(parameter.shape) for (name, parameter), part in zip(parameters.items(), parts, strict=True)}


def q_values(parameters: Mapping[str, Tensor], observations: Tensor) -> Tensor:
    """The network written out, with separate parameters."""
    x = observations
    for layer in ("torso.0", "torso.2"):
        x = torch.relu(x @ parameters[f"{layer}.weight"].T + parameters[f"{layer}.bias"])
    advantage = x @ parameters["advantage.weight"].T + parameters["advantage.bias"]
    if "value.weight" not in parameters:
        return advantage
    value = x @ parameters["value.weight"].T + parameters["value.bias"]
    return value + advantage - advantage.mean(1, keepdim=True)


class Reference:
    """The update of the module's docstring, one transition after another, with an optimizer per parameter tensor."""

    def __init__(self, dqn: DQN, config: DQNConfig) -> None:
        self._config = config
        self.online = {name: value.detach().clone().requires_grad_() for name, value in dqn.policy.named_parameters()}
        self.target = {name: value.detach().clone() for name, value in self.online.items()}
        self._adam = torch.optim.Adam(list(self.online.values()), lr=config.learning_rate, fused=False)
        self._updates = 0

    def update(self, batch: Batch, weights: NDArray[np.float32]) -> list[float]:
        losses, errors = [], []
        for i in range(len(batch.returns)):
            following = torch.from_numpy(batch.bootstrap_observations[i : i + 1])
            selecting = self.online if self._config.double else self.target
            with torch.no_grad():
                best = int(q_values(selecting, following).argmax())
                bootstrap = float(q_values(self.target, following)[0, best])
            target = float(batch.returns[i]) + float(batch.bootstrap_discounts[i]) * bootstrap
            observation = torch.from_numpy(batch.observations[i : i + 1])
            error = target - q_values(self.online, observation)[0, int(batch.actions[i])]
            losses.append(weights[i] * functional.huber_loss(error, torch.zeros(()), delta=self._config.huber_delta))
            errors.append(abs(float(error.detach())))
        self._adam.zero_grad()
        torch.autograd.backward(torch.stack(losses).mean())
        torch.nn.utils.clip_grad_norm_(self.online.values(), self._config.max_gradient_norm)
        progress = min(1.0, self._updates / self._config.learning_rate_updates)
        assert self._config.learning_rate_end is not None
        lr = self._config.learning_rate + (self._config.learning_rate_end - self._config.learning_rate) * progress
        self._adam.param_groups[0]["lr"] = lr
        self._adam.step()
        self._updates += 1
        if self._updates % self._config.target_update_period == 0:
            self.target = {name: value.detach().clone() for name, value in self.online.items()}
        return errors


@pytest.mark.parametrize("double", [True, False], ids=["double", "single"])
@pytest.mark.parametrize("dueling", [True, False], ids=["dueling", "one head"])
def test_fifty_updates_agree_with_a_slow_reference(dueling: bool, double: bool) -> None:
    config = DQNConfig(
        hidden_sizes=(16, 16),
        batch_size=BATCH,
        dueling=dueling,
        double=double,
        learning_rate=1e-3,
        learning_rate_end=1e-4,
        learning_rate_updates=40,
        target_update_period=7,
        max_gradient_norm=0.1,
        huber_delta=0.5,
    )
    dqn = DQN(run_config(config, seed=3), SPEC, CPU)
    reference = Reference(dqn, config)
    rng = np.random.default_rng(4)
    for _ in range(25):
        batch, weights = random_batch(rng, 2 * BATCH), rng.uniform(0.1, 1.0, 2 * BATCH).astype(np.float32)
        losses = dqn.update(batch, weights)
        expected: list[float] = []
        for start in (0, BATCH):
            rows = slice(start, start + BATCH)
            minibatch = batch[rows]
            expected += reference.update(minibatch, weights[rows])
        np.testing.assert_allclose(losses.priorities, expected, atol=1e-5)
    online, target = (named(dqn, dqn.state()[which]) for which in ("online.parameters", "target"))
    for name in reference.online:
        np.testing.assert_allclose(online[name], reference.online[name].detach(), atol=1e-5, err_msg=name)
        np.testing.assert_allclose(target[name], reference.target[name], atol=1e-5, err_msg=name)


def test_double_and_single_targets_differ_as_in_the_equation() -> None:
    priorities = {}
    for double in (True, False):
        # The target network never follows, so after some updates the two networks prefer different actions.
        dqn = make_dqn(double=double, target_update_period=10_000, learning_rate=0.01, learning_rate_end=0.01)
        dqn.load_state(drifted_apart())
        state = dqn.state()
        online, target = named(dqn, state["online.parameters"]), named(dqn, state["target"])
        batch = random_batch(np.random.default_rng(9), BATCH)
        following = torch.from_numpy(batch.bootstrap_observations)
        with torch.no_grad():
            target_values = q_values(target, following).numpy()
            chosen = (q_values(online, following) if double else q_values(target, following)).argmax(1).numpy()
            values = q_values(online, torch.from_numpy(batch.observations)).numpy()
        rows = np.arange(BATCH)
        y = batch.returns + batch.bootstrap_discounts * target_values[rows, chosen]
        losses = dqn.update(batch, ones(BATCH))
        expected = np.abs(y - values[rows, batch.actions])
        np.testing.assert_allclose(losses.priorities, expected, atol=1e-5)
        huber = np.where(expected < 1, 0.5 * expected**2, expected - 0.5)
        assert losses.loss == pytest.approx(huber.mean(), abs=1e-5)
        priorities[double] = losses.priorities
    assert not np.allclose(priorities[True], priorities[False], atol=1e-2)


def drifted_apart() -> dict[str, Tensor]:
    """A state whose online network has learned a low value for the action that the target network prefers."""
    dqn = make_dqn(target_update_period=10_000, learning_rate=0.01, learning_rate_end=0.01)
    batch = random_batch(np.random.default_rng(8), 100 * BATCH)
    with torch.no_grad():
        preferred = dqn.policy(torch.from_numpy(batch.observations)).argmax(1).numpy()
    batch.returns[:] = np.where(batch.actions == preferred, -1.0, 1.0)
    batch.bootstrap_discounts[:] = 0.0
    dqn.update(batch, ones(100 * BATCH))
    return dqn.state()


@pytest.mark.parametrize("dueling", [True, False], ids=["dueling", "one head"])
def test_a_bandit_is_learned_to_its_exact_rewards(dueling: bool) -> None:
    dqn = make_dqn(dueling=dueling, learning_rate=0.01, learning_rate_end=0.0, learning_rate_updates=400)
    batch = random_batch(np.random.default_rng(0), 400 * BATCH)
    batch.observations[:] = 1.0
    batch.bootstrap_discounts[:] = 0.0
    batch.returns[:] = np.where(batch.actions == 0, 0.75, -0.5)
    dqn.update(batch, ones(400 * BATCH))
    with torch.no_grad():
        values = dqn.policy(torch.ones(1, 4))
    np.testing.assert_allclose(values, [[0.75, -0.5]], atol=1e-4)


CHAIN = EnvironmentSpec("Chain-v0", ArraySpec((2,), "float32"), ArraySpec((), "int64"), sizes=(1,))
STATES = np.eye(2, dtype=np.float32)


def chain_segment(states: list[int], rewards: list[float], end: str | None = None) -> Segment:
    """One environment that passes through `states`; its last step may be the end of the episode."""
    steps = len(rewards)
    terminated, truncated = np.zeros((steps, 1), np.bool_), np.zeros((steps, 1), np.bool_)
    terminated[-1], truncated[-1] = end == "terminated", end == "truncated"
    return Segment(
        sequence=1,
        spans=(PolicySpan(0, 1, "int8"),),
        columns={
            "observations": STATES[states][:, None],
            "actions": np.zeros((steps, 1), np.int64),
            "rewards": np.array(rewards, np.float32)[:, None],
            "terminated": terminated,
            "truncated": truncated,
            "valid": np.ones((steps, 1), np.bool_),
            "ages": np.zeros(1, np.uint8),
        },
    )


def values_of_chain(directory: Path, segments: list[Segment], n_step: int, discount: float) -> list[float]:
    """What DQN learns from all n-step transitions of `segments` for the two states."""
    store = ReplayStore.open(directory, CHAIN, capacity=64)
    for number, part in enumerate(segments, start=1):
        store.insert(part, SegmentSource.from_name("actor", 1, number))
    rows = np.flatnonzero(store.flags & 1).astype(np.int64)
    batch = assemble(store, np.resize(rows, 1000 * BATCH), Returns(n_step, discount))
    store.close()
    dqn = make_dqn(
        CHAIN, learning_rate=0.01, learning_rate_end=0.0, learning_rate_updates=1000, target_update_period=20
    )
    dqn.update(batch, ones(len(batch.returns)))
    with torch.no_grad():
        return [float(value) for value in dqn.policy(torch.from_numpy(STATES))[:, 0]]


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_chain_of_two_states_converges_to_its_discounted_values(tmp_path: Path, n_step: int) -> None:
    loop = chain_segment([0, 1] * 6 + [0], [0.0, 1.0] * 6)
    # V(0) = V(1) / 2 and V(1) = 1 + V(0) / 2.
    assert values_of_chain(tmp_path, [loop], n_step, discount=0.5) == pytest.approx([2 / 3, 4 / 3], abs=2e-3)


@pytest.mark.parametrize(("end", "value"), [("terminated", 1.0), ("truncated", 2.0)])
def test_a_time_limit_is_bootstrapped_from_and_a_terminal_state_is_not(tmp_path: Path, end: str, value: float) -> None:
    stays = chain_segment([1] * 9, [1.0] * 8)  # V(1) = 1 + V(1) / 2 = 2
    ends = chain_segment([0, 1], [1.0], end)  # V(0) = 1, and + V(1) / 2 unless state 1 was terminal
    assert values_of_chain(tmp_path, [stays, ends], 3, discount=0.5) == pytest.approx([value, 2.0], abs=5e-3)


def test_importance_weights_scale_the_gradient() -> None:
    batch = random_batch(np.random.default_rng(2), BATCH)
    gradients = {}
    for weight in (1.0, 0.25):
        dqn = make_dqn(max_gradient_norm=1e9)
        dqn.update(batch, weight * ones(BATCH))
        gradients[weight] = [
            parameter.grad.clone() for parameter in dqn.policy.parameters() if parameter.grad is not None
        ]
    assert len(gradients[1.0]) == len(list(make_dqn().policy.parameters()))
    for whole, quarter in zip(gradients[1.0], gradients[0.25], strict=True):
        assert whole.any()
        np.testing.assert_allclose(quarter, 0.25 * whole, rtol=1e-5, atol=1e-9)


def test_a_transition_of_weight_0_has_no_effect() -> None:
    dqn = make_dqn()
    before = dqn.state()["online.parameters"]
    dqn.update(random_batch(np.random.default_rng(2), BATCH), 0 * ones(BATCH))
    assert torch.equal(dqn.state()["online.parameters"], before)


def test_the_target_network_is_copied_exactly_every_period() -> None:
    dqn = make_dqn(target_update_period=3)
    rng = np.random.default_rng(0)
    copied = dqn.state()["online.parameters"]
    assert torch.equal(dqn.state()["target"], copied)
    for update in range(1, 10):
        dqn.update(random_batch(rng, BATCH), ones(BATCH))
        state = dqn.state()
        if update % 3 == 0:
            copied = state["online.parameters"]
        else:
            assert not torch.equal(state["online.parameters"], copied)
        assert torch.equal(state["target"], copied)


def test_a_resumed_algorithm_continues_bit_for_bit() -> None:
    original, rng = make_dqn(target_update_period=3), np.random.default_rng(0)
    original.update(random_batch(rng, 4 * BATCH), ones(4 * BATCH))
    state = original.state()
    resumed = [make_dqn(seed=seed, target_update_period=3) for seed in (7, 8)]
    for dqn in resumed:
        dqn.load_state(state)
    further = random_batch(rng, 5 * BATCH)
    expected = original.update(further, ones(5 * BATCH))
    for dqn in resumed:
        losses = dqn.update(further, ones(5 * BATCH))
        assert losses.loss == expected.loss
        np.testing.assert_array_equal(losses.priorities, expected.priorities)
        for name, value in original.state().items():
            assert torch.equal(dqn.state()[name], value), name


def test_a_state_of_other_networks_is_refused() -> None:
    state = make_dqn().state()
    with pytest.raises(RuntimeError):
        make_dqn(hidden_sizes=(8, 8)).load_state(state)
    with pytest.raises(KeyError, match="target"):
        make_dqn().load_state({"online.parameters": state["online.parameters"]})


def test_the_same_seed_gives_the_same_network_after_any_draws_of_torch() -> None:
    first = make_dqn(seed=5).state()["online.parameters"]
    torch.rand(3)
    assert torch.equal(make_dqn(seed=5).state()["online.parameters"], first)
    assert not torch.equal(make_dqn(seed=6).state()["online.parameters"], first)


def test_continuous_actions_are_refused_with_what_to_do() -> None:
    pendulum = EnvironmentSpec("Pendulum-v1", ArraySpec((3,), "float32"), ArraySpec((1,), "float32", (-2,), (2,)), ())
    with pytest.raises(UserError, match="needs discrete actions, but Pendulum-v1 has continuous ones of shape \\[1\\]"):
        make_algorithm(RunConfig(), pendulum)
    assert make_algorithm(RunConfig(), SPEC).name == "dqn"
