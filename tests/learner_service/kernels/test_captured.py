"""Captured operations repeat a function on a GPU. The function itself is called where they cannot be captured."""

import logging

import pytest
import torch
from torch import Tensor

from learner_service.kernels.captured import capture, is_capturing
from learner_service.kernels.recorded import Recorded

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda")


class Layer:
    """A layer whose gradient is written to its own memory, like that of `FlatParameters`."""

    def __init__(self) -> None:
        self.layer = torch.nn.Linear(3, 2, device=GPU)
        self.gradient = torch.zeros(2, 3, device=GPU)

    def __call__(self, x: Tensor, share: Tensor) -> tuple[Tensor, ...]:
        y = torch.tanh(self.layer(x)) * share
        (slope,) = torch.autograd.grad(y.sum(), (self.layer.weight,))
        self.gradient.copy_(slope)
        return self.gradient, y.detach()


def test_a_capture_repeats_the_function_with_new_inputs_and_parameters() -> None:
    function = Layer()
    repeat = capture(function, (torch.randn(8, 3, device=GPU), torch.tensor(0.125, device=GPU)))
    kept = []
    for _ in range(4):
        x, share = torch.randn(8, 3, device=GPU), torch.rand((), device=GPU)
        gradient, y = repeat(x, share)
        assert gradient is function.gradient
        found = gradient.clone()
        expected = function(x, share)
        torch.testing.assert_close(found, expected[0])
        torch.testing.assert_close(y, expected[1])
        kept.append((y, expected[1].clone()))
        with torch.no_grad():
            function.layer.weight.add_(0.1)
    # Results are not overwritten by later repetitions.
    for y, wanted in kept:
        torch.testing.assert_close(y, wanted)


def test_each_shape_has_a_capture_of_its_own() -> None:
    calls = []

    def counted(x: Tensor) -> tuple[Tensor, ...]:
        calls.append(is_capturing())
        return (2 * x,)

    recorded = Recorded(counted, device=GPU)
    for rows in (4, 3, 4, 3):
        x = torch.randn(rows, 2, device=GPU)
        torch.testing.assert_close(recorded(x)[0], 2 * x)
    assert calls.count(True) == 2


def test_a_function_that_reads_a_number_is_called_each_time(caplog: pytest.LogCaptureFixture) -> None:
    def scaled(x: Tensor) -> tuple[Tensor, ...]:
        return (x * float(x.sum()),)

    recorded = Recorded(scaled, device=GPU)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            x = torch.randn(4, device=GPU)
            torch.testing.assert_close(recorded(x)[0], x * float(x.sum()))
    assert caplog.text.count("not recorded") == 1
