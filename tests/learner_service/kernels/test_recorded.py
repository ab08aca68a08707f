"""Recorded operations repeat a function exactly. The function itself is called where they cannot be recorded."""

import logging
import subprocess
import sys
from bisect import bisect_right
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from learner_service.batch import Batch
from learner_service.kernels.recorded import Recorded, is_recording, record

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


def test_a_function_is_called_only_to_record_it_and_to_test_the_recording() -> None:
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


def test_inputs_may_be_batches_and_none() -> None:
    def weighted(batch: Batch, more: Tensor | None, share: Tensor) -> tuple[Tensor, ...]:
        assert more is None
        return (batch.weights * LAYER(batch.x).sum(1) * share,)

    recorded = Recorded(weighted)
    for _ in range(3):
        batch, share = Batch(x=torch.randn(4, 3), weights=torch.rand(4)), torch.rand(())
        with torch.no_grad():
            assert same(recorded(batch, None, share), weighted(batch, None, share))


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
    """TorchScript would make two operations of a layer. Some gradients of a normalization are not needed."""
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


def test_arguments_and_results_of_every_kind_are_repeated() -> None:
    rows = torch.tensor([2, 0])

    def function(x: Tensor) -> tuple[Tensor, ...]:
        first, rest = torch.split(x, [1, 3], dim=1)
        kept = [each.clone(memory_format=torch.contiguous_format) for each in (first, rest)]
        bounded = torch.cat(kept, 1).clamp(max=0.5).to(torch.float64)
        zeros = torch.zeros_like(x, memory_format=torch.preserve_format)
        new = torch.full((3, 1), -torch.inf, dtype=torch.float32, device="cpu")
        values, places = x.max(dim=1, keepdim=True)
        return bounded[rows], bounded[:, rows], zeros, new, values, places, x.sum(), x.sum([]), x.gt(0)

    repeat = record(function, (torch.randn(3, 4),))
    for _ in range(3):
        x = torch.randn(3, 4)
        assert same(repeat(x), function(x))


def test_other_functions_of_torchscript_are_compiled_as_usual() -> None:
    usual = torch._C._jit_set_fusion_strategy([("STATIC", 3)])
    try:
        record(lambda x: (2 * x,), (torch.ones(4),))
        assert torch._C._jit_set_fusion_strategy(usual) == [("STATIC", 3)]
    finally:
        torch._C._jit_set_fusion_strategy(usual)


def test_recording_does_not_import_torchs_compiler() -> None:
    """The import lasts most of a second, in which the learner makes no updates."""
    code = (
        "import sys, torch; from learner_service.kernels.recorded import record; "
        "record(lambda x: (2 * x,), (torch.ones(4),)); assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_is_recording_is_true_only_during_a_recording() -> None:
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
        (fixed_share, "numbers differ"),
        (reads_a_number, "number is read"),
        (compares, "number is read"),
    ],
)
def test_a_function_that_cannot_be_recorded_is_called_and_logged_once(
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
    with pytest.raises(ValueError, match="two inputs"):
        record(lambda one, other: (one + other,), (x, x))


def test_too_few_rows_to_test_a_recording_are_not_recorded() -> None:
    def flattened(x: Tensor) -> tuple[Tensor, ...]:
        """Its shapes are constants in a recording."""
        return (x.flatten(1) * 2.0,)

    recorded = Recorded(flattened, kind=all_alike)
    for rows in (2, 1, 5, 64):
        x = torch.randn(rows, 2, 3)
        assert same(recorded(x), flattened(x))
