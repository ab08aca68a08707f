"""Measures which operations the processor computes fast in this process, because instructions may be hidden. A target
may need a feature (`benchmarks.harness.Target.needs`). Results record the features of their processor.
"""

import functools

from actorq.arithmetic import arithmetic
from actorq.domain.policy import SIGNED
from benchmarks.hidden import HIDDEN, is_hidden

DOT_PRODUCT, NO_DOT_PRODUCT, BFLOAT16 = "an int8 dot product", "no int8 dot product", "bfloat16 products"
# VNNI on x86-64, the dot product on ARM. Only with it int8 products with signed weights are exact.
_BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")

# The reason why a target with this need has no verdict on other processors.
_REASONS = {
    DOT_PRODUCT: f"needs {DOT_PRODUCT}, which this processor lacks",
    NO_DOT_PRODUCT: f"for processors with {NO_DOT_PRODUCT}; this one has it",
    BFLOAT16: f"needs {BFLOAT16}, which this processor lacks",
}


@functools.cache
def features() -> tuple[str, ...]:
    """The features of this process: of DOT_PRODUCT, NO_DOT_PRODUCT and BFLOAT16. Measured once in a process."""
    found = (DOT_PRODUCT if SIGNED in arithmetic().weight_encodings else NO_DOT_PRODUCT,)
    return (*found, BFLOAT16) if _has_bfloat16() else found


def has(need: str) -> bool:
    """Whether this process has the feature that a target needs. An empty need is always fulfilled."""
    return not need or need in features()


def absent(need: str) -> str:
    """The reason why a target has no verdict on a processor without this feature."""
    return _REASONS[need]


def told(cpu: str) -> str:
    """The processor's name, with a note when instructions are hidden."""
    return f"{cpu} ({HIDDEN})" if is_hidden() else cpu


def _has_bfloat16() -> bool:
    # Deferred: torch takes a second to import. It asks the processor itself, unlike /proc/cpuinfo.
    import torch

    found = torch.cpu.get_capabilities()
    return any(found.get(name) for name in _BFLOAT16_INSTRUCTIONS)
