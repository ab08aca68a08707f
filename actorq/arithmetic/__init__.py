"""Finds out which integer products ONNX Runtime computes exactly on this processor.

Without an int8 dot product, x86-64 processors add pairs of products in 16 bits, which may saturate. The processor's
flags are not reliable: containers may hide them, and ONNX Runtime chooses its own instructions. This module therefore
runs each scheme's products on extreme integers and compares them with float32. It takes milliseconds, once per process.
"""

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actorq.domain.policy import SIGNED, WEIGHT_ENCODINGS
from actorq.errors import UserError
from actorq.weightencoding import with_weight_encoding

PROBES = Path(__file__).with_name("probes")
"""Folder of the models. actorq.quantization.emission.probes makes them."""
INT8_INPUTS, INT4_INPUTS, PIXELS = 64, 128, (16, 4, 4)
_INT4 = "int4"
# Kernels for one row and for several rows may differ.
_BATCHES = (1, 8)


@dataclass(frozen=True)
class Arithmetic:
    """Exact arithmetic of a processor: encodings of int8 weights, the fastest first, and products of int4 weights."""

    weight_encodings: tuple[str, ...] = WEIGHT_ENCODINGS
    int4: bool = True

    @property
    def weight_encoding(self) -> str:
        """The encoding of int8 weights to use. Signed if none is exact; see `inexact_schemes`."""
        return self.weight_encodings[0] if self.weight_encodings else SIGNED

    def only(self, weight_encoding: str) -> "Arithmetic":
        """This arithmetic with a single encoding. Raises UserError when the processor does not compute it exactly."""
        if weight_encoding not in self.weight_encodings:
            others = ", ".join(("auto", *self.weight_encodings))
            raise UserError(
                f"--weight-encoding: this processor computes products of {weight_encoding} int8 weights wrongly (their "
                f"sums saturate); expected one of {others}"
            )
        return replace(self, weight_encodings=(weight_encoding,))

    @property
    def inexact_schemes(self) -> tuple[str, ...]:
        """The schemes that this processor computes wrongly in every encoding."""
        return (*(() if self.weight_encodings else ("int8", "int8-static")), *(() if self.int4 else (_INT4,)))


@functools.cache
def arithmetic() -> Arithmetic:
    """The arithmetic of this processor, measured once per process."""
    signed = (PROBES / f"{SIGNED}.onnx").read_bytes()
    return Arithmetic(
        tuple(each for each in WEIGHT_ENCODINGS if is_exact(with_weight_encoding(signed, each))),
        is_exact((PROBES / f"{_INT4}.onnx").read_bytes()),
    )


def is_exact(probe: bytes) -> bool:
    """Whether ONNX Runtime can load and compute this probe exactly. Raises ImportError without ONNX Runtime."""
    # Imported here, because commands without policies do not need ONNX Runtime.
    from actorq.arithmetic.sessions import open_session

    try:
        session = open_session(probe, arena=False)
        names = [source.name for source in session.get_inputs()]
        feeds = (_int8_feeds if "pixels" in names else int4_feeds)()
        batches = [{name: array[:batch] for name, array in feeds.items()} for batch in _BATCHES]
        return not any(np.any(output) for batch in batches for output in session.run(None, batch))
    except ImportError:
        raise
    except Exception:  # ONNX Runtime's exceptions share no base class.
        return False


def _int8_feeds() -> dict[str, NDArray[np.generic]]:
    """Rows of integers from 0 to 255, and pixels. The first row and image hold the largest values."""
    rng, most = np.random.default_rng(0), max(_BATCHES)
    rows = rng.choice([0, 1, 128, 254, 255, 255], (most, INT8_INPUTS)).astype(np.float32)
    rows[0], rows[0, 0] = 255, 0
    pixels = rng.choice([0, 128, 255, 255], (most, *PIXELS)).astype(np.uint8)
    pixels[0] = 255
    return {"rows": rows, "pixels": pixels}


def int4_feeds() -> dict[str, NDArray[np.float32]]:
    """Rows that contain both 0 and 127. They need no rounding, however a processor quantizes rows.

    x86-64 quantizes around zero. ARM with a dot product quantizes from the lowest to the highest value.
    """
    rows = np.random.default_rng(0).choice([0, 127, 127], (max(_BATCHES), INT4_INPUTS))
    rows[:, :2] = (0, 127)
    return {"rows": rows.astype(np.float32)}
