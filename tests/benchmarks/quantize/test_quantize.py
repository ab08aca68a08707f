"""The benchmark of quantize measures policies independently, and tells a wrong printed figure."""

import numpy as np
import torch
from torch import nn

from benchmarks.policy.foreign.models import SIZE, Foreign, Values
from benchmarks.quantize.__main__ import ROUNDING, compared, relative_errors, targets
from benchmarks.quantize.models import Model


def test_the_printed_errors_are_the_measured_ones() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(SIZE, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    figures = compared(Model(Foreign("own", "mlp", Values(network, lambda module, x: module(x))), False))

    assert 0 < figures["difference"] <= ROUNDING


def test_errors_are_relative_to_each_components_own_range() -> None:
    expected = np.array([[0.0, 400.0], [1.0, 404.0]])

    assert relative_errors(expected, expected + 1, discrete=False).tolist() == [[1.0, 0.25], [1.0, 0.25]]
    assert relative_errors(expected, expected + 1, discrete=True).max() == 1 / 404


def test_refusals_and_slower_policies_are_missed_targets() -> None:
    row = {"library": "a", "policy": "b", "difference": 0.02, "bytes": 0.9, "time_1": 1.2, "time_32": 1.0, "error": 2.0}
    found = targets([row, {"library": "b", "policy": "c", "refused": "why"}])

    assert [target.met for target in found] == [False, False, False, False, False, True, True, False]
