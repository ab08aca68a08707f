"""Fake quantization of a policy: its layers compute what actors compute with them, and can be trained so.

Which layers are quantized, and how, is read off a fidelity report instead of repeating the quantizer's rules: so it is
right also when the fidelity gate left more layers in float.

    scheme        weights                                  inputs of a quantized layer
    int8          int8, per tensor or channel              uint8 over their own range, the whole batch's
    int8-static   int8, per tensor or channel              uint8 over a calibrated range; see rounding_sites
    int8-weights  int8, per channel                        float32
    int4          4 bits in blocks                         int8 in blocks of each row

Units that the quantizer takes out of a sparse policy are left out here too (surviving_units.py).
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from actorq.domain.policy import INT4_PER_BLOCK, INT8_PER_CHANNEL, INT8_PER_TENSOR, LayerReport, PolicyGraph
from learner_service.quantization.rounding_sites import Fixed, RangeOf, Site, Sites, rounding_sites
from learner_service.quantization.straight_through import (
    Convolution,
    Grid,
    Layer,
    LinearProduct,
    Product,
    RoundedActivations,
    RoundedParameter,
    RoundedWeight,
    Weights,
    int4_weight,
    int8_blocks,
    quantized_product,
)
from learner_service.quantization.surviving_units import Left, surviving_units
from learner_service.sparsity.trace import Traced, trace

_log = logging.getLogger(__name__)

# Of actorq.quantization.schemes.int4: a layer has the largest of these blocks that it fills.
_BLOCKS = (128, 64, 32, 16)
# Of actorq.quantization.schemes.int8_static: how much further than on the calibration batch activations may go before
# they are clipped, and the highest number for a bias.
_MARGIN = 1.5
_LARGEST_BIAS = 2.0**30
# What is left of a layer that loses nothing.
_ALL = Left()


class FakeQuantization:
    """Replaces what a policy's layers compute, inside of `applied` only; the policy may be any module.

    graph: of the policy, as it was exported.

    Layers are found by name, and must be of torch.nn: linear or convolutions. Neither names nor places of parameters
    change, and outside of `applied` nothing else does, so that checkpoints, snapshots and exported graphs are those of
    the float policy. Not for several threads.
    """

    def __init__(self, policy: nn.Module, graph: PolicyGraph) -> None:
        self._policy = policy
        self._graph = graph
        self._layers: dict[str, _FakeLayer] = {}
        self._sites: dict[str, Sites] = {}
        self._traced: dict[str, Traced] | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that are replaced."""
        return tuple(self._layers)

    def follow(self, scheme: str, layers: Sequence[LayerReport]) -> None:
        """From now on quantize these layers of the policy, as an emitted policy in `scheme` does.

        Layers that cannot be followed stay in float, which the log says. The next call must be `calibrate`.
        """
        quantized = [layer for layer in layers if not layer.in_float]
        modules = dict(self._policy.named_modules())
        self._layers = {}
        for layer in quantized:
            module, make = modules.get(layer.name), _FORMS.get((scheme, layer.weights))
            if make is not None and isinstance(module, Layer):
                self._layers[layer.name] = make(module)
            else:
                _log.warning(
                    "layer %s is trained in float: it is %s of scheme %s in the policy that actors run, but %s here",
                    *(layer.name, layer.weights, scheme, type(module).__name__ if module is not None else "no module"),
                )
        static = any(isinstance(layer, _Static) for layer in self._layers.values())
        self._sites = rounding_sites(self._graph, {layer.name for layer in quantized}) if static else {}

    def calibrate(self, observations: Tensor) -> None:
        """Take from the policy as it is which of its units are left, and the ranges of activations that are calibrated.

        observations: a batch of them, on any device. Not inside of `applied`.
        """
        observations = observations.to(next(self._policy.parameters()).device)
        if self._traced is None:
            self._traced = trace(self._policy, observations[:2])
        left = surviving_units(self._policy, self._traced)
        for name, layer in self._layers.items():
            layer.left = left.get(name, _ALL)
        wanted = {site for sites in self._sites.values() for site in (sites.input, sites.output) if site is not None}
        if not wanted:
            return
        grids: dict[Site, Grid] = {site: Grid(site.scale, 0.0) for site in wanted if isinstance(site, Fixed)}
        with self._observing(grids, {site for site in wanted if isinstance(site, RangeOf)}, left), torch.no_grad():
            self._policy(observations)
        for name, layer in self._layers.items():
            if isinstance(layer, _Static):
                sites = self._sites[name]
                layer.grid, layer.outputs = grids[sites.input], grids[sites.output] if sites.output else None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While it lasts the policy's layers are quantized, and its weights may be changed by gradients only."""
        # An instance's own attribute hides its class's method, for this instance only and until it is deleted.
        for layer in self._layers.values():
            layer.source.forget()
            layer.module.forward = layer.forward  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            for layer in self._layers.values():
                del layer.module.forward

    @contextmanager
    def _observing(self, grids: dict[Site, Grid], wanted: set[RangeOf], left: Mapping[str, Left]) -> Iterator[None]:
        """While it lasts forward passes note the grids over these ranges, of what is left of the layers."""

        def note(site: RangeOf) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
            def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                own = left.get(site.layer, _ALL)
                values, survivors = (output, own.outputs) if site.output else (inputs[0], own.inputs)
                if survivors is not None:
                    values = values.index_select(-1, survivors.kept)
                low, high = (float(value) for value in torch.aminmax(values))
                # What saturates, as tanh does, is not given a margin beyond.
                lowest, highest = max(_MARGIN * low, site.bounds[0]), min(_MARGIN * high, site.bounds[1])
                grids[site] = Grid.calibrated(0.0 if site.relu else lowest, highest)

            return hook

        handles = [self._policy.get_submodule(site.layer).register_forward_hook(note(site)) for site in wanted]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class _FakeLayer:
    """A layer of the policy, and what to compute in its place.

    left: of a linear layer, when units were taken out.
    """

    def __init__(self, module: Layer, round_weight: Callable[[Tensor], Weights]) -> None:
        self.module = module
        self.left = _ALL
        self.source = RoundedWeight(module, lambda weight: round_weight(self.left.weight(weight)))

    def forward(self, x: Tensor) -> Tensor:
        """In place of the module's method."""
        return self.left.around(self.compute, x, self.module.weight, self.module.bias)

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What the layer makes of an input with what is left of its parameters."""
        raise NotImplementedError


class _WeightsOnly(_FakeLayer):
    """Rounded weights in a float layer."""

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rounded: Tensor = RoundedParameter.apply(weight, self.source)  # type: ignore[no-untyped-call]
        if isinstance(self.module, nn.Linear):
            return functional.linear(x, rounded, bias)
        y: Tensor = self.module._conv_forward(x, rounded, bias)
        return y


class _Blocks(_WeightsOnly):
    """Blocks of 4-bit weights and of int8 inputs, multiplied in float32: their scales differ from block to block."""

    def __init__(self, module: Layer) -> None:
        super().__init__(module, lambda weight: int4_weight(weight, _block(weight)))

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rounded: Tensor = RoundedActivations.apply(x, int8_blocks(x.detach(), _block(weight)))  # type: ignore[no-untyped-call]
        return super().compute(rounded, weight, bias)


def _block(weight: Tensor) -> int:
    # With fewer inputs than the smallest the quantizer leaves a layer in float, which its next report says.
    return next((block for block in _BLOCKS if block <= weight.shape[1]), _BLOCKS[-1])


class _Dynamic(_FakeLayer):
    """A product of integers; the inputs' range is their own."""

    def __init__(self, module: Layer, per_channel: bool) -> None:
        super().__init__(module, lambda weight: Weights.of(weight, per_channel, self._least()))
        self.grid: Grid | None = None
        self.outputs: Grid | None = None
        self._bias: Tensor | None = None
        self._product: Product = LinearProduct()
        self._padding: tuple[list[int], str] | None = None
        if not isinstance(module, nn.Linear):
            padding = module.padding
            if module.padding_mode != "zeros" or isinstance(padding, str):
                # What is no number of zeros for each dimension is padded before.
                padding = (0,) * len(module.stride)
                mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
                self._padding = (module._reversed_padding_repeated_twice, mode)
            self._product = Convolution(module.stride, padding, module.dilation, module.groups)

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # The weight's scale may depend on it.
        self._bias = None if bias is None else bias.detach()
        x = x if self._padding is None else functional.pad(x, *self._padding)
        return quantized_product(x, weight, bias, self.source, self.grid, self.outputs, self._product)

    def _least(self) -> Tensor | None:
        return None


class _Static(_Dynamic):
    """A product of integers; the ranges of inputs and outputs are calibrated."""

    def _least(self) -> Tensor | None:
        """The bias is an int32 in units of the input's and the weight's scales, which must not be too fine for it."""
        if self._bias is None or self.grid is None:
            return None
        least = self._bias.abs().div(self.grid.scale * _LARGEST_BIAS)
        return least.view(-1, *(1,) * (self.module.weight.ndim - 1))


_FORMS: dict[tuple[str, str], Callable[[Layer], _FakeLayer]] = {
    ("int8", INT8_PER_TENSOR): lambda module: _Dynamic(module, per_channel=False),
    ("int8", INT8_PER_CHANNEL): lambda module: _Dynamic(module, per_channel=True),
    ("int8-static", INT8_PER_TENSOR): lambda module: _Static(module, per_channel=False),
    ("int8-static", INT8_PER_CHANNEL): lambda module: _Static(module, per_channel=True),
    ("int8-weights", INT8_PER_TENSOR): lambda module: _WeightsOnly(module, lambda w: Weights.of(w, per_channel=False)),
    ("int8-weights", INT8_PER_CHANNEL): lambda module: _WeightsOnly(module, lambda w: Weights.of(w, per_channel=True)),
    ("int4", INT4_PER_BLOCK): _Blocks,
}
