"""Fake quantization of a policy: its layers compute what actors compute with them, and can be trained so.

A fidelity report names the quantized layers. What each of them computes is asked of the scheme that emitted them
(actorq.quantization), on the same graph: so it is right also when the fidelity gate left more layers in float, or units
were taken out of a sparse policy.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from actorq.domain.policy import LayerReport, PolicyGraph
from actorq.quantization.compaction import Compactor, LiveUnits
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import training_forms
from actorq.quantization.training import Place, TrainingForm
from learner_service.quantization.remaining_units import Remaining, remaining_units
from learner_service.quantization.straight_through import Grid, Layer, StraightThrough

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
        self._compactor_once: Compactor | None = None
        self._layers: dict[str, StraightThrough] = {}
        self._scheme = ""
        # How the weights of the quantized layers are held, by name.
        self._held: dict[str, str] = {}
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
        forms, self._left = self._forms(None), None
        modules = dict(self._policy.named_modules())
        self._layers = {}
        for name, held in self._held.items():
            module, form = modules.get(name), forms.get(name)
            if (
                form is not None
                and isinstance(module, Layer)
                and {place.layer for place in _places(form)} <= set(modules)
            ):
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
        remaining = remaining_units(live, device)
        if (left := None if live is None else live.key) != self._left:
            for name, form in self._forms(live).items():
                if name in self._layers:
                    self._layers[name].form = form
            self._left = left
        grids = self._ranges(observations, remaining)
        for name, layer in self._layers.items():
            layer.remaining = remaining.get(name, Remaining())
            inputs, outputs = layer.form.inputs, layer.form.outputs
            if inputs is not None and inputs.place is not None:
                layer.inputs = Grid.over(grids[inputs.place], inputs)
            if outputs is not None and outputs.place is not None:
                layer.outputs = Grid.over(grids[outputs.place], outputs)

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

    @property
    def _compactor(self) -> Compactor:
        if self._compactor_once is None:
            self._compactor_once = Compactor(Graph.parse(self._source))
        return self._compactor_once

    def _forms(self, live: LiveUnits | None) -> Mapping[str, TrainingForm]:
        """What the quantized layers compute when this is left of the policy."""
        if not self._held:
            return {}
        graph = self._compactor.whole if live is None else self._compactor.graph(live)
        return training_forms(self._scheme, graph, self._held)

    def _ranges(self, observations: Tensor, remaining: Mapping[str, Remaining]) -> dict[Place, Tensor]:
        """Lowest and highest values at the places that layers ask for, of what is left of the layers there."""
        found: dict[Place, Tensor] = {}

        def note(place: Place) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
            def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                own = remaining.get(place.layer, Remaining())
                values, units = (output, own.outputs) if place.output else (inputs[0], own.inputs)
                found[place] = torch.stack(
                    torch.aminmax(values if units is None else values.index_select(-1, units.kept))
                )

            return hook

        wanted = {place for layer in self._layers.values() for place in _places(layer.form)}
        if wanted:
            with ExitStack() as hooks, torch.no_grad():
                for place in wanted:
                    module = self._policy.get_submodule(place.layer)
                    hooks.callback(module.register_forward_hook(note(place)).remove)
                self._policy(observations)
        return found


def _places(form: TrainingForm) -> tuple[Place, ...]:
    """Where the ranges of a layer's calibrated activations come from."""
    return tuple(each.place for each in (form.inputs, form.outputs) if each is not None and each.place is not None)
