"""Recorded operations repeat a function exactly, with any number of rows; what cannot be recorded is called."""

import logging
import subprocess
import sys
from bisect import bisect_right
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from actorq.config.run_config import RunConfig
from learner_service.algorithms import GradientAlgorithm
from learner_service.algorithms.base import Minibatch
from learner_service.algorithms.ppo import PPO
from learner_service.algorithms.td3 import TD3
from learner_service.kernels.recorded import Recorded, is_recording, record
from tests.learner_service.algorithms import on_policy_parts
from tests.learner_service.algorithms.algorithm_parts import (
    ALGORITHMS,
    CONTINUOUS,
    DISCRETE,
    assert_equal_states,
    make,
    random_batch,
    spec_of,
    with_windows,
)

LAYER = torch.nn.Linear(3, 2)


def gradient(x: Tensor, share: Tensor) -> tuple[Tensor, ...]:
    """Operations of a layer and of its backward pass, a list of tensors, and a change in place."""
    y = torch.tanh(LAYER(x))
    to_weight, to_bias = torch.autograd.grad(y, tuple(LAYER.parameters()), torch.ones_like(y) * share)
    return torch.cat([to_weight.flatten(), to_bias]), y.detach().mul_(2.0)


def all_alike(rows: int) -> int:
    """For a function that makes the same operations with any number of rows."""
    return 0


def same(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    """Whether the tensors are equal to the last bit."""
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_a_recording_repeats_the_function_for_any_number_of_rows_and_new_parameters(rows: int) -> None:
    repeat = record(gradient, (torch.randn(8, 3), torch.tensor(0.125)))
    for _ in range(4):
        x, share = torch.randn(rows, 3), torch.rand(())
        assert same(repeat(x, share), gradient(x, share))
        with torch.no_grad():
            LAYER.weight.add_(0.1)


def test_a_function_is_called_only_to_record_it_and_to_try_the_recording_out() -> None:
    calls = []

    def counted(x: Tensor, share: Tensor) -> tuple[Tensor, ...]:
        calls.append(len(x))
        return gradient(x, share)

    recorded = Recorded(counted, kind=all_alike)
    for rows in (8, 6, 7, 8):
        inputs = torch.randn(rows, 3), torch.rand(())
        assert same(recorded(*inputs), gradient(*inputs))
    assert calls == [8, 8, 7]


def test_numbers_of_rows_of_another_kind_have_a_recording_of_their_own() -> None:
    calls = []

    def counted(x: Tensor) -> tuple[Tensor, ...]:
        calls.append(len(x))
        return (x * 2 if len(x) < 10 else x.sqrt() + 1,)

    recorded = Recorded(counted, kind=partial(bisect_right, [10]))
    for rows in (8, 12, 7, 14, 9, 11):
        x = torch.rand(rows, 2)
        assert same(recorded(x), counted(x))
        calls.pop()
    # The smallest number of its kind has no smaller one to try the recording out with.
    assert calls == [8, 8, 7, 12, 12, 11]
    recorded = Recorded(counted, kind=partial(bisect_right, [10]))
    calls.clear()
    for rows in (10, 10, 11):
        recorded(torch.rand(rows, 2))
    assert calls == [10, 10, 11, 11, 10]


def test_by_default_each_shape_has_a_recording_of_its_own_up_to_a_limit() -> None:
    calls = []

    def counted(x: Tensor) -> tuple[Tensor, ...]:
        calls.append(len(x))
        return fixed_share(x)

    recorded = Recorded(counted)
    for rows in (4, 4, 3, 4, 3, 1, 2, 5, 4, 5, 1):
        x = torch.randn(rows, 2)
        assert same(recorded(x), fixed_share(x))
    # Once to record it, twice to try the recording out; the fifth shape is computed by the function.
    assert calls == [4, 4, 4, 3, 3, 3, 1, 1, 1, 2, 2, 2, 5, 5]


def test_other_inputs_are_not_computed_with_the_same_recording() -> None:
    def scaled(x: Tensor | None, y: Tensor | None) -> tuple[Tensor, ...]:
        if y is not None:
            return (2 * y,)
        assert x is not None
        return (3 * x,)

    recorded, one = Recorded(scaled), torch.ones(4)
    for inputs in ((one, None), (None, one), (one.double(), None), (None, one)):
        assert same(recorded(*inputs), scaled(*inputs))


class Columns(NamedTuple):
    """Inputs that belong together."""

    x: Tensor
    weights: Tensor
    more: Tensor | None = None


def test_inputs_may_be_named_tuples_and_none() -> None:
    def weighted(columns: Columns, more: Tensor | None, share: Tensor) -> tuple[Tensor, ...]:
        assert columns.more is more is None
        return (columns.weights * LAYER(columns.x).sum(1) * share,)

    recorded = Recorded(weighted)
    for _ in range(3):
        columns, share = Columns(torch.randn(4, 3), torch.rand(4)), torch.rand(())
        with torch.no_grad():
            assert same(recorded(columns, None, share), weighted(columns, None, share))


def test_memory_that_is_written_and_views_of_it_are_written_by_the_recording() -> None:
    weight, memory = torch.randn(2, 3, 4), torch.zeros(2, 3)

    def written(x: Tensor) -> tuple[Tensor, ...]:
        for number in range(2):
            memory[number] = weight.detach()[number].t().mv(x[number]).narrow(0, 0, 3)
            torch.sum(weight[number], 1, out=memory[1])
        return (memory,)

    repeat = record(written, (torch.randn(2, 3),))
    for _ in range(4):
        x = torch.randn(2, 3)
        weight.normal_()
        expected = written(x)[0].clone()
        memory.fill_(7.0)
        assert torch.equal(repeat(x)[0], expected)
        assert torch.equal(memory, expected)


@pytest.mark.parametrize("outputs", [1, 6, 12, 16])
def test_a_layer_and_a_normalization_have_the_same_numbers_in_a_recording(outputs: int) -> None:
    """TorchScript would make two operations of a layer, and its tracer refuses gradients that nobody asked for."""
    torch.manual_seed(0)
    head, norm = torch.nn.Linear(256, outputs), torch.nn.LayerNorm(256).requires_grad_(False)

    def gradients(x: Tensor) -> tuple[Tensor, ...]:
        x = x.detach().requires_grad_()
        y = head(norm(x))
        return y.detach(), *torch.autograd.grad(y.square().sum(), (x, head.weight, head.bias))

    repeat = record(gradients, (torch.randn(64, 256),))
    for _ in range(4):
        x = torch.randn(64, 256)
        assert same(repeat(x), gradients(x))


def test_recording_does_not_import_torchs_compiler() -> None:
    """It takes most of a second, in which the learner makes no updates."""
    code = (
        "import sys, torch; from learner_service.kernels.recorded import record; "
        "record(lambda x: (2 * x,), (torch.ones(4),)); assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_it_is_known_whether_operations_are_recorded() -> None:
    seen = []

    def asking(x: Tensor) -> tuple[Tensor, ...]:
        seen.append(is_recording())
        return (x + 1,)

    record(asking, (torch.ones(3),))
    asking(torch.ones(3))
    assert seen == [True, False]


def fixed_shape(x: Tensor) -> tuple[Tensor, ...]:
    """The shape of the result is a constant of the recorded operation."""
    return (x.sum(1).expand(2, len(x)),)


def fixed_share(x: Tensor) -> tuple[Tensor, ...]:
    """The number of rows is a constant of the recorded operation."""
    return (x.sum(0) * (1 / len(x)),)


def reads_a_number(x: Tensor) -> tuple[Tensor, ...]:
    """The recorded operations depend on a value."""
    return (x * 2 if x[0, 0] > 0 else x,)


def compares(x: Tensor) -> tuple[Tensor, ...]:
    """The recorded operations depend on a comparison of all values."""
    return (x * 2 if torch.equal(x, x.flip(0)) else x,)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (fixed_shape, "RuntimeError"),
        (fixed_share, "its numbers differ"),
        (reads_a_number, "a number is read out of"),
        (compares, "a number is read out of"),
    ],
)
def test_what_cannot_be_recorded_is_called_and_logged_once(
    function: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = Recorded(function, kind=all_alike)
    for rows in (4, 4, 3, 2):
        x = torch.randn(rows, 3)
        assert same(recorded(x), function(x))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert reason in caplog.text


def test_an_input_that_comes_twice_is_not_recorded() -> None:
    x = torch.ones(3)
    with pytest.raises(ValueError, match="two inputs are one tensor"):
        record(lambda one, other: (one + other,), (x, x))


# What the case "other settings" changes.
OTHER: dict[str, dict[str, Any]] = {
    "dqn": {"double": False, "dueling": False, "learning_rate_end": 1e-4, "target_update_period": 2},
    "d4pg": {"target_update_period": 2, "n_step": 3},
    # Of three updates the first two have their targets together, then the third one, in turn.
    "td3": {"policy_delay": 2, "target_noise": 0.0},
    "sac": {"temperature": None},
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "normalized": {"normalize_observations": True},
    "windows": {"n_step": 3},
    "other settings": {},
    "wide": {"hidden": 256, "batch_size": 160},
    "bf16": {"hidden": 256, "batch_size": 160, "learner": {"precision": "bf16"}},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_recorded_updates_are_those_of_autograd(
    name: str, case: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = dict(OTHER[name] if case == "other settings" else CASES[case])
    if hidden := changes.pop("hidden", None):
        sizes = ("policy_sizes", "critic_sizes") if name == "d4pg" else ("hidden_sizes",)
        changes |= dict.fromkeys(sizes, (hidden, hidden))
    recorded, by_autograd = (make(name, **changes) for _ in range(2))
    assert isinstance(recorded, GradientAlgorithm)
    assert isinstance(by_autograd, GradientAlgorithm)
    assert recorded.can_record
    assert recorded.precision == ("bf16" if case == "bf16" else "fp32")
    by_autograd.can_record = False
    rng, spec, size = np.random.default_rng(0), spec_of(name), 3 * recorded.batch_size
    # A state that is loaded is gone on from.
    states = [recorded.state() for _ in range(2)]
    for updates in range(6):
        batch, weights = random_batch(rng, spec, size), rng.random(size, np.float32)
        if name == "sac" and case == "windows":
            batch = with_windows(rng, batch, 3)
        if updates == 4:
            # From here on nothing is differentiated any more.
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
def test_what_changes_from_update_to_update_or_is_large_is_not_recorded(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: function)
    algorithm = make("dqn", **changes)
    assert isinstance(algorithm, GradientAlgorithm)
    assert not algorithm.can_record


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
        valid = replace(steps[0], valid=np.ones((rows, 1), np.bool_))
        for algorithm in (recorded, by_autograd):
            algorithm.learn([valid], 0.0)
        on_policy_parts.assert_equal_states(recorded, by_autograd)
    assert not caplog.records


def test_an_algorithm_of_another_package_is_not_recorded() -> None:
    """Its loss may have numbers that change."""

    class Warming(TD3):
        """TD3 with a share of the loss that grows."""

        share = 0.0

        def _critic_loss(self, batch: Minibatch, targets: Tensor) -> tuple[Tensor, Tensor]:
            loss, errors = super()._critic_loss(batch, targets)
            self.share += 1.0
            return self.share * loss, errors

    config = RunConfig.model_validate({"algorithm": "td3", "td3": {"batch_size": 32, "hidden_sizes": (8, 8)}})
    algorithm = Warming(config, CONTINUOUS, torch.device("cpu"))
    assert not algorithm.can_record
    for _ in range(3):
        algorithm.update(random_batch(np.random.default_rng(0), CONTINUOUS, 32), np.ones(32, np.float32))
    assert algorithm.share == 3


def test_too_few_rows_to_try_a_recording_out_are_not_recorded() -> None:
    def flattened(x: Tensor) -> tuple[Tensor, ...]:
        """Its shapes are constants in a recording."""
        return (x.flatten(1) * 2.0,)

    recorded = Recorded(flattened, kind=all_alike)
    for rows in (2, 1, 5, 64):
        x = torch.randn(rows, 2, 3)
        assert same(recorded(x), flattened(x))
