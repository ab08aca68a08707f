"""How the layers of a network are connected, seen in a forward pass."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# One output for each input, at its place, that depends on nothing else.
_ELEMENTWISE = (nn.ReLU, nn.ELU, nn.Tanh, nn.SiLU, nn.GELU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus, nn.Identity)


@dataclass(frozen=True)
class Traced:
    """What a forward pass did with a layer.

    positions: how often its weights were multiplied for each row, as a convolution's are at each place of its output.
    source: the linear layer whose units, through functions of single ones, are its inputs; None if there is none.
    """

    positions: int
    source: str | None


def trace(network: nn.Module, *inputs: Tensor) -> dict[str, Traced]:
    """Run a copy of a network on a batch, [B, ...] each, and return what became of its layers, by name.

    Layers that were not called are left out. The network stays as it is, and so do torch's generators.
    """
    copied = copy.deepcopy(network).eval()
    traced: dict[str, Traced] = {}
    # Tensors are told apart by identity, so that none may be freed meanwhile.
    seen: list[Tensor] = []
    sources: dict[int, str] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def hook(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
            # A layer that is given its input by name is of a user's own, and not followed.
            source = sources.get(id(given[0])) if given else None
            seen.extend((*given[:1], output))
            if isinstance(module, _ELEMENTWISE):
                if source is not None:
                    sources[id(output)] = source
                return
            linear = isinstance(module, nn.Linear)
            units = module.out_features if isinstance(module, nn.Linear) else module.out_channels
            traced[name] = Traced(output.numel() // cast(int, units) // len(inputs[0]), source if linear else None)
            if linear:
                sources[id(output)] = name

        return hook

    for name, module in copied.named_modules():
        if isinstance(module, (*_LAYERS, *_ELEMENTWISE)):
            module.register_forward_hook(note(name))
    with torch.no_grad(), torch.random.fork_rng(devices=()):
        copied(*inputs)
    return traced
