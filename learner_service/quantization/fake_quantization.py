"""Fake quantization: the layers of a policy in training compute the same rounded results as in the actors.

A fidelity report names the quantized layers. Their scheme (actorq.quantization) defines the computation of each layer,
on the same graph. Training therefore also reproduces the layers that the fidelity gate keeps in float, and the removal
of dead units.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property

import torch
from torch import Tensor, nn

from actorq.domain.policy import LayerReport, PolicyGraph
from actorq.quantization.compaction import Compactor, LiveUnits
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import training_forms
from actorq.quantization.training import Place, TrainingForm, with_bits
from learner_service.networks.by_group.layers import HiddenByGroup, OfGroups
from learner_service.quantization.remaining_units import Remaining, remaining_units
from learner_service.quantization.straight_through import Layer, StraightThrough

_log = logging.getLogger(__name__)


def is_fake_quantized(policy: nn.Module) -> bool:
    """Whether a layer of a policy computes rounded results now, within `FakeQuantization.applied`."""
    return any("forward" in vars(module) for module in policy.modules())


class FakeQuantization:
    """Replaces the computation of a policy's layers within `applied`. Not thread-safe.

    policy: any module. graph: its exported graph.
    bits: bits of weights and inputs, for schemes that support it (actorq.quantization.training.with_bits); None for the
        scheme's own.

    Layers are found by name. They must be linear layers or convolutions of torch.nn. Parameters stay unchanged, and
    nothing changes outside of `applied`. Checkpoints, snapshots and exported graphs therefore contain the float policy.
    """

    def __init__(self, policy: nn.Module, graph: PolicyGraph, bits: int | None = None) -> None:
        self._policy = policy
        self._bits = bits
        self._source = graph
        self._layers: dict[str, StraightThrough] = {}
        self._scheme = ""
        # Storage of the quantized layers' weights, by layer name.
        self._held: dict[str, str] = {}
        # Key of the live units for the present forms; None for all units.
        self._left: bytes | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the quantized layers."""
        return tuple(self._layers)

    def follow(self, scheme: str, layers: Sequence[LayerReport]) -> None:
        """Quantize these layers as in an emitted policy of `scheme`. Call `calibrate` next.

        Layers that cannot be quantized here stay in float. The log names them.
        """
        self._scheme, self._held = scheme, {layer.name: layer.weights for layer in layers if not layer.in_float}
        forms, modules = self._forms(None), dict(self._policy.named_modules())
        self._layers, self._left = {}, None
        for name, held in self._held.items():
            module, form = modules.get(name), forms.get(name)
            if form and isinstance(module, Layer) and all(place.layer in modules for place in form.places):
                self._layers[name] = StraightThrough(module, form)
            else:
                _log.warning(
                    "layer %s is trained in float: it is %s of scheme %s in the actors' policy, but %s here",
                    *(name, held, scheme, type(module).__name__ if module is not None else "no module"),
                )

    def calibrate(self, *inputs: Tensor) -> None:
        """Find the policy's present live units, and calibrate the ranges of activations.

        inputs: a batch of observations, and of states for a policy with memory, on any device. Do not call within
            `applied`.
        """
        device = next(self._policy.parameters()).device
        inputs = tuple(each.to(device) for each in inputs)
        if not self._layers:
            return
        parameters = {name: tensor.detach().cpu().numpy() for name, tensor in self._policy.state_dict().items()}
        live = self._compactor.live_units(parameters)
        if (left := None if live is None else live.key) != self._left:
            self._left, forms = left, self._forms(live)
            for name, layer in self._layers.items():
                # A layer that is now too narrow for its scheme keeps its form until a report names it as a float layer.
                layer.form = forms.get(name, layer.form)
        remaining = remaining_units(live, device)
        for name, layer in self._layers.items():
            layer.remaining = remaining.get(name, Remaining())
        ranges = self._ranges(inputs, remaining)
        for layer in self._layers.values():
            layer.calibrate(ranges)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Quantize the policy's layers within this context. Only gradients may change the weights meanwhile."""
        # An attribute of the instance hides the method of its class until the attribute is deleted.
        for layer in self._layers.values():
            layer.forget()
            layer.module.forward = layer.forward  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            for layer in self._layers.values():
                del layer.module.forward

    @cached_property
    def _compactor(self) -> Compactor:
        # Made with the first quantized layer, because most runs have none.
        return Compactor(Graph.parse(self._source))

    def _forms(self, live: LiveUnits | None) -> Mapping[str, TrainingForm]:
        """The training forms of the quantized layers, for a policy with these live units; None for all units."""
        if not self._held:
            return {}
        graph = self._compactor.whole if live is None else self._compactor.graph(live)
        forms, bits = training_forms(self._scheme, graph, self._held), self._bits
        return forms if bits is None else {name: with_bits(form, bits) for name, form in forms.items()}

    def _ranges(self, inputs: tuple[Tensor, ...], remaining: Mapping[str, Remaining]) -> dict[Place, Tensor]:
        """Lowest and highest activation of the remaining units at each place that a training form needs."""
        found: dict[Place, Tensor] = {}
        hidden: list[tuple[HiddenByGroup, OfGroups]] = []
        places = {place for layer in self._layers.values() for place in layer.form.places}
        if not places:
            return {}
        with ExitStack() as hooks, torch.no_grad():
            for module in self._policy.modules():
                if isinstance(module, HiddenByGroup):
                    hooks.callback(module.register_forward_hook(lambda of, _, made: hidden.append((of, made))).remove)
            for place in places:

                def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, place: Place = place) -> None:
                    own = remaining.get(place.layer, Remaining())
                    values, units = (output, own.outputs) if place.output else (inputs[0], own.inputs)
                    found[place] = values if units is None else values.index_select(-1, units.remaining)

                hooks.callback(self._policy.get_submodule(place.layer).register_forward_hook(record).remove)
            self._policy(*inputs)
        return {place: torch.stack(torch.aminmax(_own_rows(place, values, hidden))) for place, values in found.items()}


def _own_rows(place: Place, values: Tensor, hidden: Sequence[tuple[HiddenByGroup, OfGroups]]) -> Tensor:
    """The rows of the group that a layer belongs to, as the quantizer calibrates it; all rows if there are none."""
    for module, made in hidden:
        for name, bit in zip(module.names, made.bits, strict=True):
            rows = bit.squeeze(1) > 0
            if name in place.layer.split(".") and rows.any():
                return values[rows]
    return values
