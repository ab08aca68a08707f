"""Fake quantization of a policy: its layers compute what actors compute with them, and can be trained so.

A fidelity report names the quantized layers. What each of them computes is asked of the scheme that emitted them
(actorq.quantization), on the same graph: so it is right also when the fidelity gate left more layers in float, or units
were taken out of a sparse policy.
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
from actorq.quantization.training import Place, TrainingForm
from learner_service.quantization.remaining_units import Remaining, remaining_units
from learner_service.quantization.straight_through import Layer, StraightThrough

_log = logging.getLogger(__name__)


class FakeQuantization:
    """Replaces what a policy's layers compute, inside of `applied` only; the policy may be any module.

    graph: of the policy, as it was exported.

    Layers are found by name, and must be of torch.nn: linear or convolutions. Neither names nor places of parameters
    change, and outside of `applied` nothing else does, so that checkpoints, snapshots and exported graphs are those of
    the float policy. Not for several threads.
    """

    def __init__(self, policy: nn.Module, graph: PolicyGraph) -> None:
        self._policy = policy
        self._source = graph
        self._layers: dict[str, StraightThrough] = {}
        self._scheme = ""
        # How the weights of the quantized layers are held, by name.
        self._held: dict[str, str] = {}
        # Names what was left of the policy when its forms were asked for; None for all of it.
        self._left: bytes | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that are replaced."""
        return tuple(self._layers)

    def follow(self, scheme: str, layers: Sequence[LayerReport]) -> None:
        """From now on quantize these layers of the policy, as an emitted policy in `scheme` does.

        Layers that cannot be followed stay in float, which the log says. The next call must be `calibrate`.
        """
        self._scheme, self._held = scheme, {layer.name: layer.weights for layer in layers if not layer.in_float}
        forms, modules = self._forms(None), dict(self._policy.named_modules())
        self._layers, self._left = {}, None
        for name, held in self._held.items():
            module, form = modules.get(name), forms.get(name)
            known = form is not None and all(place.layer in modules for place in form.places)
            if form is not None and known and isinstance(module, Layer):
                self._layers[name] = StraightThrough(module, form)
            else:
                _log.warning(
                    "layer %s is trained in float: it is %s of scheme %s in the policy that actors run, but %s here",
                    *(name, held, scheme, type(module).__name__ if module is not None else "no module"),
                )

    def calibrate(self, observations: Tensor) -> None:
        """Take from the policy as it is which of its units are left, and the ranges of activations that are calibrated.

        observations: a batch of them, on any device. Not inside of `applied`.
        """
        device = next(self._policy.parameters()).device
        observations = observations.to(device)
        if not self._layers:
            return
        parameters = {name: tensor.detach().cpu().numpy() for name, tensor in self._policy.state_dict().items()}
        live = self._compactor.live_units(parameters)
        if (left := None if live is None else live.key) != self._left:
            self._left, forms = left, self._forms(live)
            for name, layer in self._layers.items():
                # A layer that has become too narrow for its scheme keeps its form, until a report has it in float.
                layer.form = forms.get(name, layer.form)
        remaining = remaining_units(live, device)
        for name, layer in self._layers.items():
            layer.remaining = remaining.get(name, Remaining())
        ranges = self._ranges(observations, remaining)
        for layer in self._layers.values():
            layer.calibrate(ranges)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While it lasts the policy's layers are quantized, and its weights may be changed by gradients only."""
        # An instance's own attribute hides its class's method, for this instance only and until it is deleted.
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
        # Not before a layer is quantized: most runs have none.
        return Compactor(Graph.parse(self._source))

    def _forms(self, live: LiveUnits | None) -> Mapping[str, TrainingForm]:
        """What the quantized layers compute when this is left of the policy."""
        if not self._held:
            return {}
        graph = self._compactor.whole if live is None else self._compactor.graph(live)
        return training_forms(self._scheme, graph, self._held)

    def _ranges(self, observations: Tensor, remaining: Mapping[str, Remaining]) -> dict[Place, Tensor]:
        """Lowest and highest activation at the places that layers ask for, of the units that are left there."""
        found: dict[Place, Tensor] = {}
        places = {place for layer in self._layers.values() for place in layer.form.places}
        if not places:
            return found
        with ExitStack() as hooks, torch.no_grad():
            for place in places:

                def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, place: Place = place) -> None:
                    own = remaining.get(place.layer, Remaining())
                    values, units = (output, own.outputs) if place.output else (inputs[0], own.inputs)
                    values = values if units is None else values.index_select(-1, units.kept)
                    found[place] = torch.stack(torch.aminmax(values))

                hooks.callback(self._policy.get_submodule(place.layer).register_forward_hook(note).remove)
            self._policy(observations)
        return found
