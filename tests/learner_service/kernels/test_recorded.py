"""Recorded operations repeat a function exactly, with any number of rows; what cannot be recorded is called."""

import logging
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from learner_service.algorithms import GradientAlgorithm
from learner_service.algorithms.ppo import PPO
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
)

LAYER = torch.nn.Linear(3, 2)


def gradient(x: Tensor, share: Tensor) -> tuple[Tensor, ...]:
    """Operations of a layer and of its backward pass, a list of tensors, and a change in place."""
    y = torch.tanh(LAYER(x))
    to_weight, to_bias = torch.autograd.grad(y, tuple(LAYER.parameters()), torch.ones_like(y) * share)
    return torch.cat([to_weight.flatten(), to_bias]), y.detach().mul_(2.0)


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

    recorded = Recorded(counted, any_rows=True)
    for rows in (8, 6, 7, 8):
        inputs = torch.randn(rows, 3), torch.rand(())
        assert same(recorded(*inputs), gradient(*inputs))
    assert calls == [8, 8, 5]


def test_with_a_fixed_number_of_rows_other_inputs_are_not_computed_with_the_recording() -> None:
    calls = []

    def counted(x: Tensor) -> tuple[Tensor, ...]:
        calls.append(len(x))
        return fixed_share(x)

    recorded = Recorded(counted)
    for rows in (4, 4, 3, 1, 4):
        x = torch.randn(rows, 2)
        assert same(recorded(x), fixed_share(x))
    # Once to record it, twice to try the recording out.
    assert calls == [4, 4, 4, 3, 1]


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


@pytest.mark.parametrize(
    ("function", "reason"),
    [(fixed_shape, "RuntimeError"), (fixed_share, "its numbers differ"), (reads_a_number, "a number is read out of")],
)
def test_what_cannot_be_recorded_is_called_and_logged_once(
    function: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = Recorded(function, any_rows=True)
    for rows in (4, 4, 3, 2):
        x = torch.randn(rows, 3)
        assert same(recorded(x), function(x))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert reason in caplog.text


def test_an_input_that_comes_twice_is_not_recorded() -> None:
    x = torch.ones(3)
    with pytest.raises(ValueError, match="two inputs are one tensor"):
        record(lambda one, other: (one + other,), (x, x))


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "normalized": {"normalize_observations": True},
    "n-step": {"n_step": 3},
    "wide": {"hidden": 256, "batch_size": 160},
    "bf16": {"hidden": 256, "batch_size": 160, "learner": {"precision": "bf16"}},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_recorded_updates_are_those_of_autograd(name: str, case: str, caplog: pytest.LogCaptureFixture) -> None:
    changes = dict(CASES[case])
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
    for updates in range(4):
        batch, weights = random_batch(rng, spec, size), rng.random(size, np.float32)
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
        {"hidden_sizes": (4096, 4096)},
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
    spec: Any, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Quantization-aware training may begin in any update, so nothing is recorded.
    by_autograd = on_policy_parts.make("ppo", spec, learner={"quantization_aware_after": 1.0}, **settings)
    recorded = on_policy_parts.make("ppo", spec, **settings)
    assert isinstance(recorded, PPO)
    assert recorded.can_record
    assert not by_autograd.can_record
    for rollout in range(3):
        steps = on_policy_parts.random_rollout(np.random.default_rng(rollout), spec)
        mean = np.full(spec.observations.shape, 0.1 * rollout)
        for algorithm in (recorded, by_autograd):
            algorithm.normalize(mean, np.ones_like(mean))
            algorithm.learn(steps, rollout / 3)
        for name, value in by_autograd.state().items():
            torch.testing.assert_close(recorded.state()[name], value, rtol=0, atol=0, msg=name)
    assert not caplog.records


def test_too_few_rows_to_try_a_recording_out_are_not_recorded() -> None:
    def flattened(x: Tensor) -> tuple[Tensor, ...]:
        """Its shapes are constants in a recording."""
        return (x.flatten(1) * 2.0,)

    recorded = Recorded(flattened, any_rows=True)
    for rows in (2, 1, 5, 64):
        x = torch.randn(rows, 2, 3)
        assert same(recorded(x), flattened(x))
