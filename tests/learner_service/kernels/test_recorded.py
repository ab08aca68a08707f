"""Recorded operations repeat a function exactly, with any number of rows; what cannot be recorded is called."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from learner_service.algorithms.ppo import PPO
from learner_service.kernels.recorded import Recorded, record
from tests.learner_service.algorithms import on_policy_parts
from tests.learner_service.algorithms.algorithm_parts import CONTINUOUS, DISCRETE

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

    recorded = Recorded(counted)
    for rows in (8, 6, 7, 8):
        inputs = torch.randn(rows, 3), torch.rand(())
        assert same(recorded(*inputs), gradient(*inputs))
    assert calls == [8, 8, 5, 8, 5]


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
    recorded = Recorded(function)
    for rows in (4, 4, 3, 2):
        x = torch.randn(rows, 3)
        assert same(recorded(x), function(x))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert reason in caplog.text


def test_an_input_that_comes_twice_is_not_recorded() -> None:
    x = torch.ones(3)
    with pytest.raises(ValueError, match="two inputs are one tensor"):
        record(lambda one, other: (one + other,), (x, x))


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

    recorded = Recorded(flattened)
    for rows in (2, 1, 5, 64):
        x = torch.randn(rows, 2, 3)
        assert same(recorded(x), flattened(x))
