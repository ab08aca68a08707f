"""What this processor computes, for tests of exact numbers and of whole runs on any machine."""

from actorq.arithmetic import arithmetic
from actorq.domain.policy import variant_of
from actorq.weightencoding import with_weight_encoding

# What the actors of an int8 run act with here.
INT8_HERE = variant_of("int8", arithmetic().weight_encoding)


def exact_here(model: bytes) -> bytes:
    """An emitted model in a weight encoding that this processor computes exactly. The numbers are the same."""
    return with_weight_encoding(model, arithmetic().weight_encoding)
