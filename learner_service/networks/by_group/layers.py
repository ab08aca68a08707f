"""Hidden layers, heads and parameters of each group of agents.

A row has a bit for each group; see `EnvironmentSpec.groups`. Every group's layers compute all rows, and the bits select
the outputs. Graphs therefore accept any number of rows in any order. The layers do not see the bits. For rows of other
groups they see zeros, so that only a group's own rows decide the ranges of its activations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from actorq.domain.spaces import EnvironmentSpec
from learner_service.kernels.linear import Linear, keep_fp32, mlp


@dataclass(frozen=True)
class OfGroups:
    """Values of each group, float32[B, N] each, and the bits of the groups, float32[B, 1] each."""

    values: tuple[Tensor, ...]
    bits: tuple[Tensor, ...]

    @property
    def selected(self) -> Tensor:
        """The values of each row's group, float32[B, N]. Values of other groups must be finite."""
        return reduce(add, (value * bit for value, bit in zip(self.values, self.bits, strict=True)))


class Bits:
    """Separates the bits of groups from the other numbers of an observation.

    inputs: the other numbers.
    """

    def __init__(self, spec: EnvironmentSpec, inputs: int) -> None:
        """inputs: all numbers of an observation."""
        count, start = len(spec.groups), spec.first_bit
        self.inputs, self._first, self._count = inputs - count, int(start > 0), count
        self._sizes = [size for size in (start, *[1] * count, inputs - start - count) if size]

    def separated(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Observations float32[B, inputs + groups] -> the other numbers [B, inputs], and the bits [B, 1] each."""
        parts = torch.split(x, self._sizes, 1)
        stop = self._first + self._count
        others = (*parts[: self._first], *parts[stop:])
        return others[0] if len(others) == 1 else torch.cat(others, 1), tuple(parts[self._first : stop])


class Members(nn.Module):
    """A module for each group.

    names: of the modules, and a part of their parameters' names, such as "group_red.0.weight".
    """

    def __init__(self, spec: EnvironmentSpec, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.names = _names(spec)
        for name in self.names:
            self.add_module(name, make())

    def each(self) -> list[nn.Module]:
        """The modules, in the order of the groups."""
        return [self.get_submodule(name) for name in self.names]


class HiddenByGroup(Members):
    """An MLP for each group. forward: observations float32[B, inputs], with bits -> the features of each group."""

    def __init__(
        self, spec: EnvironmentSpec, inputs: int, hidden_sizes: Sequence[int], activation: type[nn.Module]
    ) -> None:
        bits = Bits(spec, inputs)
        super().__init__(spec, lambda: mlp((bits.inputs, *hidden_sizes), activation))
        self._bits = bits

    def forward(self, x: Tensor) -> OfGroups:
        """Return the features."""
        seen, bits = self._bits.separated(x)
        return OfGroups(tuple(layers(seen * bit) for layers, bit in zip(self.each(), bits, strict=True)), bits)


class HeadByGroup(Members):
    """A last layer for each group. forward: the features of each group -> outputs float32[B, outputs] of each row."""

    def __init__(self, spec: EnvironmentSpec, features: int, outputs: int) -> None:
        super().__init__(spec, lambda: keep_fp32(Linear(features, outputs)))

    def forward(self, seen: OfGroups) -> Tensor:
        """Return the outputs."""
        return OfGroups(
            tuple(head(each) for head, each in zip(self.each(), seen.values, strict=True)), seen.bits
        ).selected


class VectorByGroup(nn.Module):
    """A vector of parameters for each group. forward: the features of each group -> float32[B, numbers]."""

    def __init__(self, spec: EnvironmentSpec, values: Tensor) -> None:
        super().__init__()
        self._names = _names(spec)
        for name in self._names:
            self.register_parameter(name, nn.Parameter(values.clone()))

    def forward(self, seen: OfGroups) -> Tensor:
        """Return the vector of each row's group."""
        return OfGroups(tuple(self.get_parameter(name) for name in self._names), seen.bits).selected


def _names(spec: EnvironmentSpec) -> list[str]:
    # A group's name alone, such as "half", may be a method of a module.
    return [f"group_{group.name}" for group in spec.groups]


def head_of(spec: EnvironmentSpec, features: int, outputs: int) -> Any:
    """The last layer of a network: a `Linear` for all rows, or a `HeadByGroup`."""
    return HeadByGroup(spec, features, outputs) if spec.groups else keep_fp32(Linear(features, outputs))
