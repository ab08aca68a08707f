"""The schemes in which policies can be emitted (docs/how-to/scheme.md): built-in schemes, and schemes of packages."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from actorq.config.schemes import is_scheme, load_scheme
from actorq.domain.policy import INT8_PER_TENSOR
from actorq.quantization.graph import Graph
from actorq.quantization.schemes.base import Emission, Options, Scheme
from actorq.quantization.schemes.fp32 import FP32
from actorq.quantization.schemes.int4 import INT4
from actorq.quantization.schemes.int8 import INT8
from actorq.quantization.schemes.int8_static import INT8_STATIC
from actorq.quantization.schemes.int8_weights import INT8_WEIGHTS
from actorq.quantization.training import TrainingForm

__all__ = ["SCHEMES", "Emission", "Options", "Scheme", "scheme_named", "training_forms"]

SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {scheme.name: scheme for scheme in (FP32, INT8_WEIGHTS, INT8, INT8_STATIC, INT4)}
)


def scheme_named(name: str) -> Scheme:
    """The built-in or installed scheme with this name. Raises NotFoundError if it is unknown or unusable."""
    if name in SCHEMES:
        return SCHEMES[name]
    scheme: Scheme = load_scheme(name)
    return scheme


def training_forms(scheme: str, graph: Graph, layers: Mapping[str, str]) -> dict[str, TrainingForm]:
    """The computations of an emitted policy's quantized layers, by name; empty for a scheme that is not installed.

    graph: the compact graph of this version's policy.
    layers: the format of each quantized layer's weights, by name, as in the policy's fidelity report.
    """
    if not is_scheme(scheme):
        return {}
    in_float = frozenset(layer.name for layer in graph.layers) - layers.keys()
    plan = scheme_named(scheme).plan(graph, Options(ends=True, keep_float=in_float))
    return {
        name: replace(form, per_channel=layers[name] != INT8_PER_TENSOR)
        for name, form in plan.training().items()
        if name in layers
    }
