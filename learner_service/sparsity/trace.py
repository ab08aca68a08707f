"""Finds the connections between a network's layers with forward passes."""

import copy
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Modules whose outputs each depend only on the input at the same position.
_ELEMENTWISE = (nn.ReLU, nn.ELU, nn.Tanh, nn.SiLU, nn.GELU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus, nn.Identity)
# Standard deviation of the noise that is added to units to find the layers that read them.
_NOISE = 10.0


@dataclass(frozen=True)
class Traced:
    """A layer in a forward pass.

    positions: multiplications of its weights per row; for a convolution, the positions of its output.
    source: the linear layer whose units are its inputs, possibly after elementwise functions. Only layers with this
        source read these units. None if there is no such layer.
    """

    positions: int
    source: str | None


def trace(network: nn.Module, *inputs: Tensor) -> dict[str, Traced]:
    """Run a copy of a network on a batch, [B, ...] each. Returns the called layers by name. Changes no generator."""
    copied = copy.deepcopy(network).eval()
    seen = _forward(copied, inputs)
    sources = {traced.source for traced in seen.layers.values() if traced.source is not None}
    alone = {source for source in sources if _is_read_by_layers_alone(copied, inputs, source, seen)}
    return {
        name: traced if traced.source in alone else replace(traced, source=None) for name, traced in seen.layers.items()
    }


@dataclass
class _Seen:
    """The layers of a forward pass, their inputs, and the outputs of the network."""

    layers: dict[str, Traced] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: tuple[Tensor, ...] = ()


def _forward(network: nn.Module, inputs: tuple[Tensor, ...]) -> _Seen:
    seen = _Seen()
    # Tensors are identified by `id`, so none may be freed meanwhile.
    alive: list[Tensor] = []
    sources: dict[int, str] = {}

    def record(name: str, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        # A user's layer that gets its input as a keyword is not traced.
        source = sources.get(id(given[0])) if given else None
        alive.extend((*given[:1], output))
        if isinstance(module, _ELEMENTWISE):
            if source is not None:
                sources[id(output)] = source
            return
        linear = isinstance(module, nn.Linear)
        positions = output.numel() // len(cast(Tensor, module.weight)) // len(inputs[0])
        if name in seen.layers:
            # In a second call of the layer, its units and inputs no longer have a single position.
            seen.layers[name] = Traced(positions + seen.layers[name].positions, None)
            for reader, traced in seen.layers.items():
                if traced.source == name:
                    seen.layers[reader] = replace(traced, source=None)
            return
        seen.layers[name] = Traced(positions, source if linear else None)
        if linear:
            sources[id(output)] = name
        if source is not None:
            seen.inputs[name] = given[0]

    with ExitStack() as hooks:
        for name, module in network.named_modules():
            if isinstance(module, (*_LAYERS, *_ELEMENTWISE)):
                hooks.callback(module.register_forward_hook(partial(record, name)).remove)
        seen.outputs = _run(network, inputs)
    return seen


def _is_read_by_layers_alone(network: nn.Module, inputs: tuple[Tensor, ...], source: str, seen: _Seen) -> bool:
    """Whether only the layers with this source read its units.

    With their inputs fixed, noise must not change an output.
    """
    generator = torch.Generator().manual_seed(0)

    def disturb(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        return output + _NOISE * torch.randn(output.shape, generator=generator).to(output)

    def as_before(name: str, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (seen.inputs[name], *given[1:])

    with ExitStack() as hooks:
        hooks.callback(network.get_submodule(source).register_forward_hook(disturb).remove)
        for name in (name for name, traced in seen.layers.items() if traced.source == source):
            hooks.callback(network.get_submodule(name).register_forward_pre_hook(partial(as_before, name)).remove)
        outputs = _run(network, inputs)
    return all(map(torch.equal, outputs, seen.outputs))


def _run(network: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    with torch.no_grad(), torch.random.fork_rng(devices=()):
        # A network that draws random numbers draws the same numbers in each pass.
        torch.default_generator.manual_seed(0)
        return tuple(each for each in tree_leaves(network(*inputs)) if isinstance(each, Tensor))
