"""The schemes in which policies can be emitted: ours, and those of installed packages.

A package adds one by an entry point of the group "actorq.schemes", a class whose objects are schemes (base.Scheme). One
of ours is a module beside this file, an entry in SCHEMES, and its name in actorq.domain.policy.SCHEMES.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import MappingProxyType

from actorq.config.schemes import installed_schemes, is_scheme, scheme_names
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
    """The scheme of that name, of ours or of an installed package.

    Raises NotFoundError that lists what there is, or says why an installed one cannot be used.
    """
    if name in SCHEMES:
        return SCHEMES[name]
    if name not in installed_schemes():
        raise NotFoundError(f"scheme: expected one of {', '.join(scheme_names())}, got {name!r}")
    return _loaded(installed_schemes()[name])


@functools.cache
def _loaded(point: EntryPoint) -> Scheme:
    """What an entry point names: a class without arguments, whose objects are schemes."""
    try:
        scheme: Scheme = point.load()()
    except Exception as error:
        # A package of a user's own may raise anything.
        text = " ".join(str(error).split())
        raise NotFoundError(
            f"scheme {point.name}: {point.value} cannot be used: {type(error).__name__}: {text}"
        ) from error
    if getattr(scheme, "name", None) != point.name or not callable(getattr(scheme, "plan", None)):
        raise NotFoundError(
            f"scheme {point.name}: {point.value} is no scheme: expected name {point.name!r} and a method plan; "
            "actorq.quantization.schemes.base.Scheme says what one has"
        )
    return scheme


def training_forms(scheme: str, graph: Graph, layers: Mapping[str, str]) -> dict[str, TrainingForm]:
    """What the quantized layers of an emitted policy compute, by name; empty for a scheme that is not installed here.

    graph: what is left of the policy in that version.
    layers: how the weights of the quantized layers are held, by name, as the policy's fidelity report tells it.
    """
    if not is_scheme(scheme):
        return {}
    in_float = frozenset(layer.name for layer in find_layers(graph)) - layers.keys()
    plan = scheme_named(scheme).plan(graph, Options(ends=True, keep_float=in_float))
    return {
        name: replace(form, per_channel=layers[name] != INT8_PER_TENSOR)
        for name, form in plan.training().items()
        if name in layers
    }
