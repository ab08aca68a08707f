"""The schemes in which policies can be emitted. A new one is a module beside this file and an entry in SCHEMES."""

from collections.abc import Mapping
from types import MappingProxyType

from actorq.errors import NotFoundError
from actorq.quantization.schemes.base import Emission, Options, Scheme, SchemePlan
from actorq.quantization.schemes.fp32 import Fp32
from actorq.quantization.schemes.int4 import Int4
from actorq.quantization.schemes.int8 import Int8
from actorq.quantization.schemes.int8_static import Int8Static
from actorq.quantization.schemes.int8_weights import Int8Weights

__all__ = ["SCHEMES", "Emission", "Options", "Scheme", "SchemePlan", "scheme_named"]

SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {scheme.name: scheme for scheme in (Fp32(), Int8Weights(), Int8(), Int8Static(), Int4())}
)


def scheme_named(name: str) -> Scheme:
    """The scheme of that name; raises NotFoundError that lists what there is."""
    if name not in SCHEMES:
        raise NotFoundError(f"scheme: expected one of {', '.join(SCHEMES)}, got {name!r}")
    return SCHEMES[name]
