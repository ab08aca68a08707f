"""Layers from a user's function: for a whole observation (--network), or for one array of it (--encoders)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from actorq.errors import UserError
from actorq.plugins import load
from learner_service.kernels.linear import Linear, keep_fp32


class ByName(nn.Module):
    """A user's module whose argument is a dict of an observation's arrays by name."""

    def __init__(self, layers: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.layers = layers
        self._names = names

    def forward(self, arrays: Tensor | Sequence[Tensor]) -> Tensor:
        """arrays: in the order of the names. Returns float32[B, features]."""
        each = (arrays,) if isinstance(arrays, Tensor) else arrays
        features: Tensor = self.layers(dict(zip(self._names, each, strict=True)))
        return features


@dataclass(frozen=True)
class Example:
    """The input of a user's module.

    shapes: of each array, without the batch, by name; "" for a module whose input is a single array.
    categories: whether there are categories, which are int32[B].
    """

    shapes: Mapping[str, tuple[int, ...]]
    categories: bool = False

    def rows(self, count: int) -> Any:
        """A batch of numbers from 0 to 1, or a dict of them."""
        found: dict[str, Tensor] = {}
        for name, shape in self.shapes.items():
            if self.categories and not shape:
                found[name] = torch.arange(count, dtype=torch.int32) % 2
            else:
                found[name] = torch.linspace(0, 1, count * math.prod(shape)).reshape(count, *shape)
        return found.get("", found)

    def __str__(self) -> str:
        words = [
            f"{name and f'{name}: '}{'float32' if shape or not self.categories else 'int32'}"
            f"[{', '.join(map(str, ('B', *shape)))}]"
            for name, shape in self.shapes.items()
        ]
        return words[0] if "" in self.shapes else f"a dict of {', '.join(words)}"


def own_layers(what: str, path: str, given: Any, example: Example) -> tuple[nn.Module, int]:
    """The module that the function at MODULE:FUNCTION makes, and the number of its features.

    what: the setting, for errors. given: the function's argument. example: the module's input.

    Raises UserError when the function fails, or when its module does not return float32[B, features], shares parameters
    with another module, changes its buffers, or draws random numbers.
    """
    make = load(path, what)
    if not callable(make):
        raise UserError(f"{what}: {path} is not a function: got {type(make).__name__}")
    try:
        layers, others = make(given), make(given)
    except Exception as error:
        raise UserError(f"{what}: {path} has failed: {type(error).__name__}: {error}") from error
    if not isinstance(layers, nn.Module):
        raise UserError(f"{what}: {path} must return a torch.nn.Module, got a {type(layers).__name__}")
    _require_own_parameters(what, path, layers, others)
    try:
        buffers = {name: buffer.clone() for name, buffer in layers.named_buffers()}
        features = _features(layers, example)
    except Exception as error:
        raise UserError(
            f"{what}: the module of {path} must turn {example} into float32[B, features]: "
            f"{' '.join(str(error).split())}"
        ) from error
    _require_constant_buffers(what, path, layers, buffers)
    _require_equal_outputs(what, path, layers, example)
    first = next((part for part in layers.modules() if any(True for _ in part.parameters(recurse=False))), None)
    if isinstance(first, Linear):
        keep_fp32(first)
    return layers, features


def _require_own_parameters(what: str, path: str, layers: nn.Module, others: nn.Module) -> None:
    """Raise UserError when two networks share parameters: both would train them, and a target network would follow at
    once.
    """
    if not {*layers.parameters()}.isdisjoint(others.parameters()):
        raise UserError(
            f"{what}: {path} must make a new module with each call: the policy, the critics and the target networks "
            f"need their own layers"
        )


def _require_constant_buffers(what: str, path: str, layers: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Raise UserError when use has changed the module's buffers, because targets and checkpoints do not have them."""
    # A network that was made only for its shapes has no values to compare.
    named = ((name, buffer) for name, buffer in layers.named_buffers() if not buffer.is_meta)
    changed = [name for name, buffer in named if not torch.equal(buffer, before[name])]
    if changed:
        raise UserError(
            f"{what}: {path}: the module changes {', '.join(changed)} when it is used; only parameters may change, "
            f"so use LayerNorm instead of BatchNorm"
        )


def _require_equal_outputs(what: str, path: str, layers: nn.Module, example: Example) -> None:
    """Raise UserError when the outputs for one batch differ: checkpoints do not have torch's global generator."""
    with torch.no_grad():
        first, second = (layers(example.rows(32)) for _ in range(2))
    if not first.is_meta and not torch.allclose(first, second, rtol=0, atol=0, equal_nan=True):
        raise UserError(
            f"{what}: {path}: the module's outputs for one batch differ from call to call; it must not draw random "
            f"numbers, so remove Dropout"
        )


def _features(layers: nn.Module, example: Example) -> int:
    with torch.no_grad():
        features = layers(example.rows(2))
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        got = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"it turned 2 rows into {got}")
    return features.shape[1]
