"""Updates on sequences equal a computation one step at a time, and have their memory only from their own episode."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from actorq.domain.spaces import EnvironmentSpec
from learner_service.algorithms import make_algorithm
from learner_service.algorithms.recurrent.sequences import priorities_of
from learner_service.batch import Batch
from tests.learner_service.algorithms.algorithm_parts import BOUNDED, DEVICE, DISCRETE, on_device
from tests.learner_service.algorithms.on_policy_parts import assert_equal_states
from tests.learner_service.algorithms.replayed_parts import random_sequences, run_of

NAMES, KINDS = ("dqn", "sac", "td3"), ("gru", "lstm")
MEMORY = {"burn_in": 3, "sequence_length": 5}
N_STEP, SIZE = 3, 4


@pytest.fixture(params=[(name, kind) for name in NAMES for kind in KINDS], ids=" with a ".join)
def chosen(request: pytest.FixtureRequest) -> tuple[str, str]:
    name, kind = request.param
    return name, kind


def spec_of(name: str) -> EnvironmentSpec:
    return DISCRETE if name == "dqn" else BOUNDED


def made(name: str, kind: str, **changes: Any) -> Any:
    section = {"batch_size": SIZE * MEMORY["sequence_length"], "n_step": N_STEP, **changes}
    return make_algorithm(run_of(name, {"kind": kind, **MEMORY}, **section), spec_of(name), DEVICE)


def sequences(algorithm: Any, size: int = SIZE) -> Batch:
    spec = spec_of(algorithm.name)
    return random_sequences(algorithm._config, spec, N_STEP, hasattr(algorithm, "needs_windows"), size)


def stepped(network: Any, batch: Batch) -> tuple[list[torch.Tensor], NDArray[np.float32]]:
    """The outputs of a network at each observation, [B, ...] each, and the states before them [B, L + 1, S]."""
    state, outputs, states = on_device(batch.states), [], []
    for place in range(batch.begins.shape[1]):
        state = torch.where(on_device(batch.begins[:, place])[:, None], 0.0, state)
        states.append(state.cpu().numpy())
        output, state = network(on_device(np.ascontiguousarray(batch.observations[:, place])), state)
        outputs.append(output)
    return outputs, np.stack(states, 1)


def test_the_states_are_those_of_single_steps(chosen: tuple[str, str]) -> None:
    algorithm = made(*chosen)
    batch = sequences(algorithm)
    with torch.no_grad():
        _, expected = stepped(algorithm.policy, batch)
    np.testing.assert_allclose(algorithm.states(batch), expected, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {"double": False, "dueling": False}, {"value_rescaling": True}], ids=str)
def test_an_update_of_dqn_is_that_of_single_steps(kind: str, changes: dict[str, Any]) -> None:
    dqn, weights = made("dqn", kind, **changes), np.linspace(0.2, 1, SIZE, dtype=np.float32)
    dqn.update(sequences(dqn), weights)
    batch = sequences(dqn)
    with torch.no_grad():
        values = torch.stack(stepped(dqn._q.network, batch)[0], 1).cpu().numpy()
        targets = torch.stack(stepped(dqn._q.target, batch)[0], 1).cpu().numpy()
    errors, loss = np.zeros((SIZE, 5)), 0.0
    for row, step in zip(*np.nonzero(batch.mask), strict=True):
        after = batch.bootstrap_steps[row, step]
        best = (values if changes.get("double", True) else targets)[row, after].argmax()
        following = targets[row, after, best]
        discount, reward = batch.bootstrap_discounts[row, step], batch.returns[row, step]
        target = reward + discount * following
        if changes.get("value_rescaling"):
            target = h(reward + discount * inverse_of_h(following))
        errors[row, step] = abs(target - values[row, 3 + step, batch.actions[row, step]])
        loss += weights[row] * float(functional.huber_loss(torch.tensor(errors[row, step]), torch.tensor(0.0).double()))
    losses = dqn.update(batch, weights)
    assert losses.loss == pytest.approx(loss / batch.mask.sum(), rel=1e-4)
    mean = errors.sum(1) / batch.mask.sum(1)
    np.testing.assert_allclose(losses.priorities, 0.9 * errors.max(1) + 0.1 * mean, rtol=1e-4)


def h(x: float) -> float:
    return float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x)


def inverse_of_h(y: float) -> float:
    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle) < y else (low, middle)
    return low


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_the_critics_read_the_present_state_of_the_policy(name: str) -> None:
    """Without noise, the critics' error at a step is that of a computation one step at a time."""
    changes: dict[str, Any] = {"temperature": 1e-9} if name == "sac" else {"target_noise": 0.0}
    algorithm, read = made(name, "gru", **changes), []
    algorithm.noise = lambda rows: torch.zeros((rows, 2), device=DEVICE)
    algorithm.update(sequences(algorithm), np.ones(SIZE, np.float32))
    batch = sequences(algorithm)
    with torch.no_grad():
        _, states = stepped(algorithm.policy, batch)
        target = algorithm.policy if name == "sac" else algorithm._pi.target
        actions = stepped(target, batch)[0]
        for place in range(batch.begins.shape[1]):
            seen = on_device(np.ascontiguousarray(batch.observations[:, place]))
            _, state = algorithm.policy(seen, on_device(np.ascontiguousarray(states[:, place])))
            read.append(state)
        errors = np.zeros((SIZE, 5))
        for row, step in zip(*np.nonzero(batch.mask), strict=True):
            after, scale = batch.bootstrap_steps[row, step], algorithm.policy.scale
            acted = torch.cat((read[after][row], scale.normalize(actions[after][row][None])[0]))[None]
            value = algorithm._q.target(on_device(batch.observations[row, after][None]), acted).amin()
            wanted = batch.returns[row, step] + batch.bootstrap_discounts[row, step] * float(value)
            taken = scale.normalize(on_device(batch.actions[row, step][None]))[0]
            acted = torch.cat((read[3 + step][row], taken))[None]
            values = algorithm._q(on_device(batch.observations[row, 3 + step][None]), acted)
            errors[row, step] = float((wanted - values).abs().mean())
    losses = algorithm.update(batch, np.ones(SIZE, np.float32))
    mean = errors.sum(1) / batch.mask.sum(1)
    np.testing.assert_allclose(losses.priorities, 0.9 * errors.max(1) + 0.1 * mean, rtol=1e-3)


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_the_loss_of_the_critics_trains_the_cell(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = made(name, "gru", **({"policy_delay": 1} if name == "td3" else {}))
    monkeypatch.setattr(algorithm, "_policy_loss", lambda *given: (torch.zeros((), device=DEVICE),))
    before = {key: value.clone() for key, value in algorithm.policy.named_parameters()}
    algorithm.update(sequences(algorithm), np.ones(SIZE, np.float32))
    after = dict(algorithm.policy.named_parameters())
    changed = {key.partition(".")[0] for key in before if not torch.equal(before[key], after[key])}
    assert changed == {"torso", "memory"}


@pytest.mark.parametrize("delayed", [False, True])
def test_td3_moves_its_policy_only_after_the_delay(delayed: bool) -> None:
    td3 = made("td3", "gru", policy_delay=2)
    td3.updates = int(delayed)
    before = td3._pi.parameters[0].vector.clone()
    td3.update(sequences(td3), np.ones(SIZE, np.float32))
    assert torch.equal(before, td3._pi.parameters[0].vector) is not delayed


def test_steps_outside_of_the_mask_have_no_effect(chosen: tuple[str, str]) -> None:
    one, other = made(*chosen), made(*chosen)
    batch, weights = sequences(one), np.ones(SIZE, np.float32)
    changed = batch.with_columns(returns=np.where(batch.mask, batch.returns, 1e6).astype(np.float32))
    expected, found = one.update(batch, weights), other.update(changed, weights)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    np.testing.assert_allclose(found.priorities, expected.priorities, rtol=1e-5)
    torch.testing.assert_close(other.state(), one.state(), rtol=1e-5, atol=1e-6)


def test_an_update_knows_nothing_of_earlier_episodes(chosen: tuple[str, str]) -> None:
    """All sequences begin an episode with the first trained step, so neither burn-in nor stored state has an effect."""
    one, other = made(*chosen), made(*chosen)
    batch, weights = sequences(one), np.ones(SIZE, np.float32)
    batch.begins[:, 3] = True
    observations = np.where(np.arange(batch.begins.shape[1])[:, None] < 3, 9.0, batch.observations)
    changed = batch.with_columns(observations=observations.astype(np.float32), states=batch.states + 1)
    assert np.abs(one.states(batch)[:, 1:3] - one.states(changed)[:, 1:3]).max() > 0.01
    assert other.update(changed, weights).loss == one.update(batch, weights).loss
    assert_equal_states(other, one)


def test_batches_of_any_number_of_updates_are_split_by_sequences(chosen: tuple[str, str]) -> None:
    algorithm = made(*chosen)
    batch = sequences(algorithm, 3 * SIZE)
    losses = algorithm.update(batch, np.ones(3 * SIZE, np.float32))
    assert algorithm.updates == 3
    assert losses.priorities.shape == (3 * SIZE,)
    assert all(bool(value.isfinite().all()) for value in algorithm.state().values() if value.is_floating_point())


def test_sequences_without_any_trained_step_change_nothing_much(chosen: tuple[str, str]) -> None:
    algorithm = made(*chosen)
    batch = sequences(algorithm)
    batch.mask[:] = False
    losses = algorithm.update(batch, np.ones(SIZE, np.float32))
    assert losses.loss == 0.0
    assert not losses.priorities.any()
    assert all(bool(value.isfinite().all()) for value in algorithm.state().values() if value.is_floating_point())


def test_a_restored_algorithm_learns_the_same(chosen: tuple[str, str]) -> None:
    one, other = made(*chosen), made(*chosen)
    batch, weights = sequences(one), np.ones(SIZE, np.float32)
    one.update(batch, weights)
    other.load_state(one.state())
    assert one.update(batch, weights).loss == other.update(batch, weights).loss
    assert_equal_states(other, one)


def test_a_priority_is_nine_tenths_of_the_largest_error_and_a_tenth_of_the_mean() -> None:
    errors, mask = torch.tensor([[1.0, 5.0], [3.0, 7.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(priorities_of(errors, Batch(mask=mask)), torch.tensor([0.9 * 3 + 0.1 * 2, 0.0]))


def test_flops_count_the_burn_in(chosen: tuple[str, str]) -> None:
    name, kind = chosen
    longer = run_of(name, {"kind": kind, **MEMORY, "burn_in": 30}, batch_size=20, n_step=N_STEP)
    short, long = made(name, kind), cast(Any, make_algorithm(longer, spec_of(name), DEVICE))
    assert long.flops.update.now > short.flops.update.now > 0
