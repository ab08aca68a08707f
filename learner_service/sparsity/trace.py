"""How the layers of a network are connected, seen in forward passes."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# One output for each input, at its place, that depends on nothing else.
_ELEMENTWISE = (nn.ReLU, nn.ELU, nn.Tanh, nn.SiLU, nn.GELU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus, nn.Identity)
# How far units are moved to see who reads them, in standard deviations of normal noise.
_NOISE = 10.0


@dataclass(frozen=True)
class Traced:
    """What a forward pass did with a layer.

    positions: how often its weights were multiplied for each row, as a convolution's are at each place of its output.
    source: the linear layer whose units, through functions of single ones, are its inputs, and are nobody's else but
        of layers that have the same source; None if there is none.
    """

    positions: int
    source: str | None


def trace(network: nn.Module, *inputs: Tensor) -> dict[str, Traced]:
    """Run a copy of a network on a batch, [B, ...] each, and return what became of its layers, by name.

    Layers that were not called are left out. The network stays as it is, and so do torch's generators.
    """
    copied = copy.deepcopy(network).eval()
    seen = _forward(copied, inputs)
    sources = {traced.source for traced in seen.layers.values() if traced.source is not None}
    alone = {source for source in sources if _is_read_by_layers_alone(copied, inputs, source, seen)}
    return {
        name: traced if traced.source in alone else replace(traced, source=None) for name, traced in seen.layers.items()
    }


@dataclass
class _Seen:
    """What a forward pass showed: its layers, their inputs, and what came of it."""

    layers: dict[str, Traced] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: tuple[Tensor, ...] = ()


def _forward(network: nn.Module, inputs: tuple[Tensor, ...]) -> _Seen:
    seen = _Seen()
    # Tensors are told apart by identity, so that none may be freed meanwhile.
    alive: list[Tensor] = []
    sources: dict[int, str] = {}

    def note(name: str, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        # A layer that is given its input by name is of a user's own, and not followed.
        source = sources.get(id(given[0])) if given else None
        alive.extend((*given[:1], output))
        if isinstance(module, _ELEMENTWISE):
            if source is not None:
                sources[id(output)] = source
            return
        linear = isinstance(module, nn.Linear)
        units = module.out_features if isinstance(module, nn.Linear) else module.out_channels
        positions = output.numel() // cast(int, units) // len(inputs[0])
        if name in seen.layers:
            # Called again: its units are those of two places, and so are its inputs.
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

                def hook(module: nn.Module, given: tuple[Any, ...], output: Tensor, name: str = name) -> None:
                    note(name, module, given, output)

                hooks.callback(module.register_forward_hook(hook).remove)
        seen.outputs = _run(network, inputs)
    return seen


def _is_read_by_layers_alone(network: nn.Module, inputs: tuple[Tensor, ...], source: str, seen: _Seen) -> bool:
    """Whether nothing changes when a layer's units do, but what the layers that it is the source of read does not."""
    readers = [name for name, traced in seen.layers.items() if traced.source == source]
    generator = torch.Generator().manual_seed(0)

    def disturb(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        return output + _NOISE * torch.randn(output.shape, generator=generator).to(output)

    with ExitStack() as hooks:
        hooks.callback(network.get_submodule(source).register_forward_hook(disturb).remove)
        for name in readers:

            def as_before(module: nn.Module, given: tuple[Any, ...], name: str = name) -> tuple[Any, ...]:
                return (seen.inputs[name], *given[1:])

            hooks.callback(network.get_submodule(name).register_forward_pre_hook(as_before).remove)
        outputs = _run(network, inputs)
    return all(map(torch.equal, outputs, seen.outputs))


def _run(network: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    with torch.no_grad(), torch.random.fork_rng(devices=()):
        # Networks that draw numbers draw the same in each pass.
        torch.default_generator.manual_seed(0)
        return tuple(_tensors(network(*inputs)))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
