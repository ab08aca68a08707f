"""What this processor computes, for tests of whole runs and of exact numbers."""

import pytest

from actorq.domain.policy import FALLBACK
from actorq.machine import processor_flags, saturating_schemes

SATURATING = saturating_schemes(processor_flags())
# What the actors of an int8 run act in here.
INT8_HERE = FALLBACK if "int8" in SATURATING else "int8"


def skip_if_saturating(scheme: str) -> None:
    """Skip a test of exact numbers where ONNX Runtime adds pairs of int8 products in 16 bits, which may saturate."""
    if scheme in SATURATING:
        pytest.skip(f"this processor has no int8 dot product: {scheme} is not exact")
