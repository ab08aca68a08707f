"""XQC: its update against its equations, its state, and the policy that it publishes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actorq.domain.spaces import ArraySpec
from actorq.errors import UserError
from learner_service.policy.policy_graph import snapshot_parameters
from tests.learner_service.algorithms.algorithm_parts import (
    BATCH,
    BOUNDED,
    CONTINUOUS,
    assert_equal_states,
    of_the_cpu,
    ones,
    random_batch,
    spoil,
    with_windows,
)
from tests.learner_service.algorithms.xqc_reference import ATOMS, Reference, ReferenceMLP, make_xqc

pytestmark = of_the_cpu


def test_updates_are_those_of_the_equations() -> None:
    xqc, rng = make_xqc(), np.random.default_rng(0)
    reference = Reference(xqc)
    for _ in range(5):
        batch, weights = random_batch(rng, CONTINUOUS, BATCH), rng.random(BATCH, np.float32)
        losses = xqc.update(batch, weights)
        np.testing.assert_allclose(losses.priorities, reference.update(batch, weights), rtol=1e-3, atol=1e-3)
        state = xqc.state()
        for name, expected in reference.state().items():
            torch.testing.assert_close(state[name], expected, rtol=1e-2, atol=2e-3)


def test_targets_project_the_distribution_of_the_critic_with_the_smaller_mean() -> None:
    xqc = make_xqc(atoms=3)
    # Values -5, 0 and 5 in their unit. The first critic is certain of 5, the second one of 0.
    certain = torch.tensor([[[-99.0, -99.0, 99.0]], [[-99.0, 99.0, -99.0]]])
    targets = xqc.targets(certain, torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([4.0]))
    # 1 + 1/2 (0 - 4) = -1: a fifth of the way from 0 to -5.
    torch.testing.assert_close(targets, torch.tensor([[0.2, 0.8, 0.0]]))
    swapped = xqc.targets(certain.flip(0), torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([4.0]))
    torch.testing.assert_close(swapped, targets)
    # Past a terminal state neither value nor entropy counts.
    ended = xqc.targets(certain, torch.tensor([2.5]), torch.tensor([0.0]), torch.tensor([4.0]))
    torch.testing.assert_close(ended, torch.tensor([[0.0, 0.5, 0.5]]))
    # Values beyond the range are clipped to it.
    beyond = xqc.targets(certain, torch.tensor([99.0]), torch.tensor([0.5]), torch.tensor([4.0]))
    torch.testing.assert_close(beyond, torch.tensor([[0.0, 0.0, 1.0]]))


def test_all_rows_of_hidden_weights_have_norm_one_after_updates() -> None:
    xqc = make_xqc()
    xqc.update(random_batch(np.random.default_rng(0), CONTINUOUS, 3 * BATCH), ones(3 * BATCH))
    for mlp in (xqc._pi.network.body, *xqc._z.network.both):
        for layer in mlp.layers:
            torch.testing.assert_close(layer.weight.detach().norm(dim=1), torch.ones(len(layer.weight)))


def test_the_published_policy_is_the_folded_policy_after_each_update() -> None:
    xqc, rng = make_xqc(), np.random.default_rng(0)
    names = {name for name in snapshot_parameters(xqc.policy) if "torso" in name or "head" in name}
    assert names == {f"{layer}.{kind}" for layer in ("torso.0", "torso.2", "head") for kind in ("weight", "bias")}
    for _ in range(3):
        before = snapshot_parameters(xqc.policy)
        xqc.update(random_batch(rng, CONTINUOUS, BATCH), ones())
        after = snapshot_parameters(xqc.policy)
        assert all(not np.array_equal(before[name], after[name]) for name in names)
        own, mlp = torch.randn(64, 3), xqc._pi.network.body
        reference = ReferenceMLP(dict(mlp.named_parameters()))
        sizes = [len(mean) for mean in reference.means]
        reference.means, reference.variances = (list(part.double().split(sizes)) for part in mlp.statistics)
        expected = reference(own.double(), training=False).detach()
        with torch.no_grad():
            torch.testing.assert_close(xqc.policy.computed(own).double(), expected, rtol=1e-4, atol=1e-4)


def test_the_policy_is_updated_in_every_second_update_with_a_delay_of_two() -> None:
    xqc, rng = make_xqc(policy_delay=2), np.random.default_rng(0)
    states = [xqc.state()]
    for _ in range(2):
        xqc.update(random_batch(rng, CONTINUOUS, BATCH), ones())
        states.append(xqc.state())
    for name in ("policy.parameters", "policy.statistics"):
        assert torch.equal(states[0][name], states[1][name])
        assert not torch.equal(states[1][name], states[2][name])
    assert not torch.equal(states[0]["critic.parameters"], states[1]["critic.parameters"])


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalized"])
def test_a_resumed_run_continues_bit_for_bit(normalize: bool) -> None:
    rng = np.random.default_rng(0)
    run: Any = {"normalize_observations": normalize}
    changes: Any = {"policy_delay": 2, "learning_rate_end": 1e-4, "learning_rate_updates": 8}
    original = make_xqc(run=run, **changes)
    original.normalize(np.full(3, 0.5), np.full(3, 2.0))
    # An odd number, so that a policy update is due at once.
    original.update(random_batch(rng, CONTINUOUS, 5 * BATCH), ones(5 * BATCH))
    state = {key: value.numpy().copy() for key, value in original.state().items()}
    resumed = [make_xqc(seed=seed, run=run, **changes) for seed in (7, 8)]
    resumed[1].update(random_batch(rng, CONTINUOUS, 2 * BATCH), ones(2 * BATCH))
    further = random_batch(rng, CONTINUOUS, 4 * BATCH)
    for algorithm in resumed:
        algorithm.load_state({key: torch.from_numpy(value.copy()) for key, value in state.items()})
        for name, value in snapshot_parameters(original.policy).items():
            np.testing.assert_array_equal(snapshot_parameters(algorithm.policy)[name], value)
    expected = original.update(further, ones(4 * BATCH))
    for algorithm in resumed:
        losses = algorithm.update(further, ones(4 * BATCH))
        assert losses.loss == expected.loss
        np.testing.assert_array_equal(losses.priorities, expected.priorities)
        assert_equal_states(algorithm, original)


def test_the_step_size_falls_to_its_final_value_and_stays_there() -> None:
    xqc, rng = make_xqc(learning_rate_end=0.0, learning_rate_updates=2), np.random.default_rng(0)
    states = []
    for _ in range(4):
        states.append({name: value.clone() for name, value in xqc.state().items()})
        xqc.update(random_batch(rng, CONTINUOUS, BATCH), ones())
    for name in ("policy.parameters", "critic.parameters"):
        # Divided by its norm again, a row may change in its last digits.
        assert not torch.allclose(states[0][name], states[2][name], atol=1e-4)
        torch.testing.assert_close(states[2][name], states[3][name], rtol=0, atol=1e-6)


def test_a_state_is_a_copy_and_other_networks_are_refused() -> None:
    xqc, rng = make_xqc(), np.random.default_rng(0)
    state = xqc.state()
    kept = {name: value.clone() for name, value in state.items()}
    xqc.update(random_batch(rng, CONTINUOUS, BATCH), ones())
    assert all(torch.equal(state[name], value) for name, value in kept.items())
    others: tuple[dict[str, Any], ...] = ({"policy_sizes": (4,)}, {"critic_sizes": (4,)}, {"atoms": 5})
    for sizes in others:
        with pytest.raises((KeyError, RuntimeError)):
            make_xqc(**sizes).load_state(state)
    with pytest.raises(KeyError):
        make_xqc().load_state({name: value for name, value in state.items() if name != "policy.statistics"})


def test_a_new_run_begins_with_networks_and_statistics_of_another() -> None:
    original = make_xqc()
    original.update(random_batch(np.random.default_rng(0), CONTINUOUS, 3 * BATCH), ones(3 * BATCH))
    begun = make_xqc(seed=2)
    begun.begin_from(original.state())
    state, expected = begun.state(), original.state()
    for name in ("policy.parameters", "policy.statistics", "critic.parameters", "critic.statistics"):
        assert torch.equal(state[name], expected[name])
    assert torch.equal(state["target_critic"], expected["critic.parameters"])
    for name, value in snapshot_parameters(original.policy).items():
        np.testing.assert_array_equal(snapshot_parameters(begun.policy)[name], value)


@pytest.mark.parametrize("n_step", [1, 3])
def test_recorded_updates_equal_updates_with_autograd(n_step: int, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    batch = random_batch(rng, CONTINUOUS, 4 * BATCH)
    batch = batch if n_step == 1 else with_windows(rng, batch, n_step)
    recorded, plain = make_xqc(n_step=n_step), make_xqc(n_step=n_step)
    assert recorded.can_record
    plain.__dict__["can_record"] = False
    for _ in range(2):
        recorded.update(batch, ones(4 * BATCH))
        plain.update(batch, ones(4 * BATCH))
    assert_equal_states(recorded, plain)
    assert not caplog.records


def test_importance_weights_scale_the_loss_of_their_transition() -> None:
    batch = random_batch(np.random.default_rng(0), CONTINUOUS, BATCH)
    weights = np.random.default_rng(1).random(BATCH, np.float32)

    def loss(weights: NDArray[np.float32]) -> float:
        return make_xqc().update(batch, weights).loss

    assert loss(0.25 * ones()) == pytest.approx(0.25 * loss(ones()), rel=1e-5)
    assert loss(weights) + loss(1 - weights) == pytest.approx(loss(ones()), rel=1e-5)


def test_bounds_of_actions_only_name_them() -> None:
    low, high = BOUNDED.actions.bounds()
    batch = random_batch(np.random.default_rng(0), CONTINUOUS, 2 * BATCH)
    renamed = batch.with_columns(actions=(low + (high - low) * (batch.actions + 1) / 2).astype(np.float32))
    expected = make_xqc().update(batch, ones(2 * BATCH)).priorities
    actual = make_xqc(BOUNDED).update(renamed, ones(2 * BATCH)).priorities
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


def test_all_numbers_stay_finite_with_the_largest_observations_and_returns() -> None:
    xqc, rng = make_xqc(), np.random.default_rng(0)
    for _ in range(20):
        batch = random_batch(rng, CONTINUOUS, BATCH)
        for column in (batch.observations, batch.bootstrap_observations, batch.returns):
            spoil(rng, column)
        losses = xqc.update(batch, ones())
        assert np.isfinite([losses.loss, *losses.priorities]).all()
    assert all(bool(value.isfinite().all()) for value in xqc.state().values() if value.is_floating_point())
    assert all(np.isfinite(value).all() for value in snapshot_parameters(xqc.policy).values())


def test_a_constant_temperature_stays_and_an_adjusted_one_begins_small() -> None:
    batch = random_batch(np.random.default_rng(0), CONTINUOUS, 4 * BATCH)
    constant, adjusted = make_xqc(temperature=0.25), make_xqc()
    assert float(adjusted.temperature.alpha) == pytest.approx(0.01)
    for algorithm in (constant, adjusted):
        algorithm.update(batch, ones(4 * BATCH))
    assert float(constant.temperature.alpha) == pytest.approx(0.25)
    assert float(adjusted.temperature.alpha) != pytest.approx(0.01, rel=1e-3)


def test_unsupported_settings_are_refused_in_one_line() -> None:
    images = replace(CONTINUOUS, observations=ArraySpec((40, 40), "uint8"), frame_stack=2)
    with pytest.raises(UserError, match="algorithm xqc supports observations that are vectors"):
        make_xqc(images)
    with pytest.raises(UserError, match=r"sparsity.method: algorithm xqc supports dense, got rigl"):
        make_xqc(run={"sparsity": {"method": "rigl"}})
    with pytest.raises(UserError, match=r"xqc.target_entropy must be below A log 2 = 1.386"):
        make_xqc(target_entropy=1.4)


def test_the_replay_scales_rewards_unless_bounds_are_given() -> None:
    scaled = make_xqc(value_min=None, value_max=None)
    assert scaled.reward_bound == 5.0
    torch.testing.assert_close(scaled._support.values, torch.linspace(-5, 5, ATOMS))
    fixed = make_xqc(value_min=-30.0, value_max=10.0)
    assert fixed.reward_bound is None
    # A unit of 4.
    torch.testing.assert_close(fixed._support.values, torch.linspace(-7.5, 2.5, ATOMS))
    with pytest.raises(ValueError, match=r"xqc.batch_size must be at least 8, because .*statistics of a batch, got 7"):
        make_xqc(batch_size=7)
    with pytest.raises(ValueError, match=r"xqc.value_min and xqc.value_max must be given together"):
        make_xqc(value_min=None)
    with pytest.raises(ValueError, match=r"xqc.value_min must be below xqc.value_max \(1\), got 2"):
        make_xqc(value_min=2.0, value_max=1.0)


def test_flops_count_the_joint_batch_and_the_delayed_policy() -> None:
    xqc = make_xqc(policy_delay=2)
    actor = sum((2 * inputs - 1) * units for inputs, units in ((3, 12), (12, 8), (8, 4)))
    critics = 2 * sum((2 * inputs - 1) * units for inputs, units in ((5, 16), (16, 8), (8, ATOMS)))
    assert xqc.flops.action.now == actor
    # Next actions, target critics, critics with their gradients; half of the policy with its gradient and the critics.
    expected = BATCH * (actor + 2 * critics + 6 * critics + 0.5 * (3 * actor + critics))
    assert xqc.flops.update.now == pytest.approx(expected)
