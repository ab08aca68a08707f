"""Recorded updates of each algorithm are those of autograd to the last bit. Some updates are never recorded."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec
from learner_service.algorithms import GradientAlgorithm
from learner_service.algorithms.ppo import PPO
from learner_service.algorithms.td3 import TD3
from learner_service.batch import Batch
from tests.learner_service.algorithms import on_policy_parts
from tests.learner_service.algorithms.algorithm_parts import (
    ALL_ALGORITHMS,
    CONTINUOUS,
    DISCRETE,
    assert_equal_states,
    hidden,
    make,
    of_the_cpu,
    random_batch,
    spec_of,
    with_windows,
)

# What the case "other settings" changes.
OTHER: dict[str, dict[str, Any]] = {
    "dqn": {"double": False, "dueling": False, "learning_rate_end": 1e-4, "target_update_period": 2},
    "d4pg": {"target_update_period": 2, "n_step": 3, "policy_delay": 2},
    # Of three updates the first two have their targets together, then the third one, in turn.
    "td3": {"policy_delay": 2, "target_noise": 0.0},
    "sac": {"temperature": None, "layer_norm": True},
    "td3bc": {"policy_delay": 2, "alpha": 1.0},
    "iql": {"expectile": 0.9, "max_weight": 2.0},
    "xqc": {"temperature": 0.1, "policy_delay": 1, "unit_rows": False},
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "normalized": {"normalize_observations": True},
    "windows": {"n_step": 3},
    "other settings": {},
    "wide": {"units": 256, "batch_size": 160},
    "bf16": {"units": 256, "batch_size": 160, "learner": {"precision": "bf16"}},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ALL_ALGORITHMS)
def test_recorded_updates_are_those_of_autograd(
    name: str, case: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = dict(OTHER[name] if case == "other settings" else CASES[case])
    if units := changes.pop("units", None):
        changes |= hidden(name, units, units)
    recorded, by_autograd = (make(name, **changes) for _ in range(2))
    assert isinstance(recorded, GradientAlgorithm)
    assert isinstance(by_autograd, GradientAlgorithm)
    assert recorded.can_record
    assert recorded.precision == ("bf16" if case == "bf16" else "fp32")
    by_autograd.can_record = False
    rng, spec, size = np.random.default_rng(0), spec_of(name), 3 * recorded.batch_size
    # Training continues from a loaded state.
    states = [recorded.state() for _ in range(2)]
    for updates in range(6):
        batch, weights = random_batch(rng, spec, size), rng.random(size, np.float32)
        if name in ("sac", "xqc") and case == "windows":
            batch = with_windows(rng, batch, 3)
        if updates == 4:
            # From here on nothing is differentiated.
            for network in recorded.networks.values():
                monkeypatch.setattr(network, "differentiate", None)
        if updates == 2:
            states = [each.state() for each in (recorded, by_autograd)]
        if updates == 3:
            for each, state in zip((recorded, by_autograd), states, strict=True):
                each.load_state(state)
        found = []
        for each in (recorded, by_autograd):
            each.normalize(np.full(spec.observations.shape, 0.1 * updates), np.ones(spec.observations.shape))
            found.append(each.update(batch, weights))
        assert found[0].loss == found[1].loss
        np.testing.assert_array_equal(found[0].priorities, found[1].priorities)
        assert_equal_states(recorded, by_autograd)
    assert [record.getMessage() for record in caplog.records if "not recorded" in record.getMessage()] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"learner": {"compile": True}},
        {"learner": {"quantization_aware_after": 0.5}},
        {"network": "own_algorithms:random_features"},
        {"sparsity": {"method": "static", "actor": 0.5, "critic": 0.5}},
        {"hidden_sizes": (4500, 4500)},
    ],
    ids=["compiled", "quantization-aware", "own layers", "sparse", "large"],
)
def test_varying_or_large_updates_are_not_recorded(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: function)
    algorithm = make("dqn", **changes)
    assert isinstance(algorithm, GradientAlgorithm)
    assert not algorithm.can_record


@of_the_cpu
@pytest.mark.parametrize("shape", [(40, 40, 3), (4, 2)], ids=["images", "matrices"])
def test_updates_of_ppo_that_flatten_rows_are_not_recorded_without_a_warning(
    shape: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    spec = replace(DISCRETE, observations=ArraySpec(shape, "uint8" if len(shape) == 3 else "float32"))
    algorithm = on_policy_parts.make("ppo", spec)
    algorithm.learn(on_policy_parts.random_rollout(np.random.default_rng(0), spec), 0.0)
    assert not caplog.records


@of_the_cpu
@pytest.mark.parametrize(
    "settings", [{}, {"entropy_cost": 0.01, "value_clip": 0.2, "clip_end": 0.0}, {"normalize_observations": True}]
)
@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_recorded_updates_of_ppo_are_those_of_autograd(
    spec: Any, settings: dict[str, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Quantization-aware training may begin in any update, so nothing is recorded.
    by_autograd = on_policy_parts.make("ppo", spec, learner={"quantization_aware_after": 1.0}, **settings)
    recorded = on_policy_parts.make("ppo", spec, **settings)
    assert isinstance(recorded, PPO)
    assert recorded.can_record
    assert not by_autograd.can_record
    for rollout in range(4):
        if rollout == 3:
            monkeypatch.setattr(recorded, "differentiate", None)
        steps = on_policy_parts.random_rollout(np.random.default_rng(rollout), spec)
        mean = np.full(spec.observations.shape, 0.1 * rollout)
        for algorithm in (recorded, by_autograd):
            algorithm.normalize(mean, np.ones_like(mean))
            algorithm.learn(steps, rollout / 3)
        for name, value in by_autograd.state().items():
            torch.testing.assert_close(recorded.state()[name], value, rtol=0, atol=0, msg=name)
    assert not caplog.records


@of_the_cpu
@pytest.mark.parametrize("hidden", [64, 256])
def test_ppos_recorded_updates_are_the_same_where_products_change_with_the_number_of_rows(
    hidden: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With 64 units large products begin at 257 rows, with 256 units at 17."""
    sizes: dict[str, Any] = {
        "hidden_sizes": (hidden, hidden),
        "value_sizes": (hidden, hidden),
        "batch_size": 1000,
        "epochs": 1,
    }
    recorded, by_autograd = (on_policy_parts.make("ppo", DISCRETE, **sizes) for _ in range(2))
    by_autograd.can_record = False
    rng = np.random.default_rng(0)
    for rows in (400, 250, 260, 256, 257, 383, 512, 10, 250):
        steps = [on_policy_parts.random_trajectories(rng, DISCRETE, rows, 1)]
        valid = steps[0].with_columns(valid=np.ones((rows, 1), np.bool_))
        for algorithm in (recorded, by_autograd):
            algorithm.learn([valid], 0.0)
        on_policy_parts.assert_equal_states(recorded, by_autograd)
    assert not caplog.records


def test_an_algorithm_of_another_package_is_not_recorded() -> None:
    """Its loss may have numbers that change."""

    class Warming(TD3):
        """TD3 with a share of the loss that grows."""

        share = 0.0

        def _critic_loss(self, batch: Batch, targets: Tensor) -> tuple[Tensor, Tensor]:
            loss, errors = super()._critic_loss(batch, targets)
            self.share += 1.0
            return self.share * loss, errors

    config = RunConfig.model_validate({"algorithm": "td3", "td3": {"batch_size": 32, "hidden_sizes": (8, 8)}})
    algorithm = Warming(config, CONTINUOUS, torch.device("cpu"))
    assert not algorithm.can_record
    for _ in range(3):
        algorithm.update(random_batch(np.random.default_rng(0), CONTINUOUS, 32), np.ones(32, np.float32))
    assert algorithm.share == 3
