"""XQC: its update against its equations, its state, and the policy that it publishes."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actorq.domain.spaces import ArraySpec
from actorq.errors import UserError
from learner_service.kernels.linear import Linear
from learner_service.policy.policy_graph import snapshot_parameters
from tests.learner_service.algorithms.algorithm_parts import (
    BATCH,
    BOUNDED,
    CONTINUOUS,
    of_the_cpu,
    ones,
    random_batch,
    spoil,
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


def test_all_rows_of_hidden_weights_keep_norm_one_unless_it_is_off() -> None:
    unit, free = make_xqc(), make_xqc(unit_rows=False)
    for xqc in (unit, free):
        xqc.update(random_batch(np.random.default_rng(0), CONTINUOUS, 3 * BATCH), ones(3 * BATCH))
        for mlp in (xqc._pi.network.body, *xqc._z.network.both):
            for layer in mlp.layers:
                norms = layer.weight.detach().norm(dim=1)
                assert torch.allclose(norms, torch.ones(len(norms)), atol=1e-5) == (xqc is unit)


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


def test_one_line_says_that_the_run_exceeds_its_planned_updates(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    planned: dict[str, Any] = {"learning_rate_end": 1e-4, "learning_rate_updates": 2}
    xqc, constant = make_xqc(**planned), make_xqc(**{**planned, "learning_rate_end": None})
    for algorithm in (xqc, constant):
        algorithm.update(random_batch(rng, CONTINUOUS, 2 * BATCH), ones(2 * BATCH))
    assert not caplog.records
    for algorithm in (xqc, constant):
        algorithm.update(random_batch(rng, CONTINUOUS, 2 * BATCH), ones(2 * BATCH))
    (line,) = [record.getMessage() for record in caplog.records]
    assert re.search(r"xqc.learning_rate_updates: .* planned 2 updates; .* 0.0001; plan more updates", line)


def test_the_size_of_flash_sac_on_a_gpu_is_a_setting() -> None:
    # Two blocks of 128 and 256 units with an inner width four times as large, and its batch (arXiv 2604.04539).
    sizes: dict[str, Any] = {"policy_sizes": (128, 512, 128, 512, 128), "critic_sizes": (256, 1024, 256, 1024, 256)}
    xqc = make_xqc(**sizes, batch_size=2048, atoms=101)
    # Recording would repeat the update several times.
    xqc.__dict__["can_record"] = False
    losses = xqc.update(random_batch(np.random.default_rng(0), CONTINUOUS, 2048), ones(2048))
    assert np.isfinite([losses.loss, *losses.priorities]).all()
    published = snapshot_parameters(xqc.policy)
    assert [published[f"torso.{2 * layer}.weight"].shape[0] for layer in range(5)] == [128, 512, 128, 512, 128]


def test_a_state_of_other_critics_or_without_statistics_is_refused() -> None:
    state = make_xqc().state()
    others: tuple[dict[str, Any], ...] = ({"critic_sizes": (4,)}, {"atoms": 5})
    for sizes in others:
        with pytest.raises((KeyError, RuntimeError)):
            make_xqc(**sizes).load_state(state)
    with pytest.raises(KeyError):
        make_xqc().load_state({name: value for name, value in state.items() if name != "policy.statistics"})


def test_a_new_run_begins_with_the_statistics_of_another() -> None:
    original = make_xqc()
    original.update(random_batch(np.random.default_rng(0), CONTINUOUS, 3 * BATCH), ones(3 * BATCH))
    begun = make_xqc(seed=2)
    begun.begin_from(original.state())
    state, expected = begun.state(), original.state()
    for name in ("policy.statistics", "critic.statistics"):
        assert torch.equal(state[name], expected[name])


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


def test_folded_critics_have_the_precision_of_the_run() -> None:
    batch, losses = random_batch(np.random.default_rng(0), CONTINUOUS, 160), []
    for precision in ("fp32", "bf16"):
        run = {"learner": {"precision": precision}}
        xqc = make_xqc(run=run, critic_sizes=(256, 256), batch_size=160)
        losses.append(xqc.update(batch, ones(160)).figures["policy_loss"])
        wide = [layer for layer in xqc._folded_z.modules() if isinstance(layer, Linear) and layer.wide_weights()]
        assert len(wide) == 2
        assert all((layer.bf16_weight is not None) == (precision == "bf16") for layer in wide)
    assert losses[0] != losses[1] == pytest.approx(losses[0], abs=0.02)


def test_flops_count_the_joint_batch_and_the_delayed_policy() -> None:
    xqc = make_xqc(policy_delay=2)
    actor = sum((2 * inputs - 1) * units for inputs, units in ((3, 12), (12, 8), (8, 4)))
    critics = 2 * sum((2 * inputs - 1) * units for inputs, units in ((5, 16), (16, 8), (8, ATOMS)))
    assert xqc.flops.action.now == actor
    heads = 2 * (2 * 8 - 1) * ATOMS
    # Next actions; target critics, and critics with their gradients, all with heads for half of the rows; half of the
    # policy with its gradient and the critics.
    joint = 8 * (critics - heads) + 4 * heads
    expected = BATCH * (actor + joint + 0.5 * (3 * actor + critics))
    assert xqc.flops.update.now == pytest.approx(expected)
