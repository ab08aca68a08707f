"""The schemes in which policies can be emitted. A new one is a module beside this file and an entry in SCHEMES."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from actorq.domain.policy import INT8_PER_TENSOR
from actorq.errors import NotFoundError
from actorq.quantization.graph import Graph
from actorq.quantization.layers import find_layers
from actorq.quantization.schemes.base import Emission, Options, Scheme, SchemePlan
from actorq.quantization.schemes.fp32 import Fp32
from actorq.quantization.schemes.int4 import Int4
from actorq.quantization.schemes.int8 import Int8
from actorq.quantization.schemes.int8_static import Int8Static
from actorq.quantization.schemes.int8_weights import Int8Weights
from actorq.quantization.training import TrainingForm

__all__ = ["SCHEMES", "Emission", "Options", "Scheme", "SchemePlan", "scheme_named", "training_forms"]

SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {scheme.name: scheme for scheme in (Fp32(), Int8Weights(), Int8(), Int8Static(), Int4())}
)


def scheme_named(name: str) -> Scheme:
    """The scheme of that name; raises NotFoundError that lists what there is."""
    if name not in SCHEMES:
        raise NotFoundError(f"scheme: expected one of {', '.join(SCHEMES)}, got {name!r}")
    return SCHEMES[name]


def training_forms(scheme: str, graph: Graph, layers: Mapping[str, str]) -> dict[str, TrainingForm]:
    """What the quantized layers of an emitted policy compute, by name; empty for a scheme that is not installed here.

    graph: what is left of the policy in that version.
    layers: how the weights of the quantized layers are held, by name, as the policy's fidelity report tells it.
    """
    if scheme not in SCHEMES:
        return {}
    in_float = frozenset(layer.name for layer in find_layers(graph)) - layers.keys()
    plan = SCHEMES[scheme].plan(graph, Options(ends=True, keep_float=in_float))
    return {name: replace(form, per_channel=layers[name] != INT8_PER_TENSOR) for name, form in plan.training().items()}
