"""Policies as values: the graph that a learner publishes, its checkpoints, and the quantizer's emitted policies."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray

from actorq.domain.signature import Signature

FP32 = "fp32"
# Scheme of an actor whose processor computes the requested scheme wrongly. It computes in float32.
FALLBACK = "int8-weights"
# The built-in schemes, named as in the settings of actors. actorq.quantization.schemes explains each. Packages add
# others: see actorq.config.schemes.
SCHEMES = (FP32, FALLBACK, "int8", "int8-static", "int4")
# Schemes that compute in float32. The results of other schemes depend on the processor's instructions.
FLOAT_SCHEMES = (FP32, FALLBACK)
# Each actor measures the schemes on its own processor and uses the fastest.
AUTO = "auto"

# Encodings of int8 weights. Both represent the same numbers: unsigned weights have the zero point 128 and are 128
# higher. Without an int8 dot product, an x86-64 processor adds pairs of signed products in 16 bits, which may saturate.
# The unsigned encoding is exact there. With a dot product both are exact, and the signed encoding is faster.
SIGNED, UNSIGNED = "signed", "unsigned"
WEIGHT_ENCODINGS = (SIGNED, UNSIGNED)
# Built-in schemes without int8 products. Their policies have a single encoding, which counts as signed.
_ONE_ENCODING = (FP32, FALLBACK, "int4")

# Names of versions: the highest mean return in its newest evaluation, and the highest number.
BEST, NEWEST = "best", "newest"

# Formats of a layer's weights.
FLOAT32 = "float32"
INT8_PER_TENSOR = "int8 per tensor"
INT8_PER_CHANNEL = "int8 per channel"
INT4_PER_BLOCK = "int4 per block"

# The reason why a layer stays in float although its scheme quantizes such layers.
FIDELITY_GATE = "fidelity gate"

# Bound on the distance from the highest version to a publisher's next version. No run publishes this many versions.
# A single message therefore cannot use up all numbers.
MAX_VERSION_STEP = 2**32

# The parameters carry a calibration batch for each graph input. The batch's name is this prefix and the input's name.
CALIBRATION_PREFIX = "calibration:"
# For a graph with a state, they may carry stored sequences of steps: a tensor for each input, and their lengths.
SEQUENCES_PREFIX = "sequences:"
SEQUENCE_LENGTHS = "lengths"


@dataclass(frozen=True)
class PolicyGraph:
    """An ONNX model without weights. Its graph inputs are the data inputs, then every parameter by name.

    signature: signature of the data inputs and the outputs; the model's metadata contains it, too.
    """

    model: bytes
    signature: Signature

    @property
    def digest(self) -> bytes:
        """SHA-256 of the model. Policies of graphs with the same digest differ only in their weights."""
        return hashlib.sha256(self.model).digest()


class Variant(NamedTuple):
    """A form of a version's policy: its scheme and the encoding of its int8 weights. See `variant_of`.

    Its text is SCHEME for signed weights and SCHEME.unsigned for others. File names contain this text.
    """

    scheme: str
    weight_encoding: str = SIGNED

    @property
    def siblings(self) -> "tuple[Variant, ...]":
        """The variants with the same numbers in another encoding."""
        return tuple(found for each in WEIGHT_ENCODINGS if (found := variant_of(self.scheme, each)) != self)

    def __str__(self) -> str:
        return self.scheme if self.weight_encoding == SIGNED else f"{self.scheme}.{self.weight_encoding}"


def variant_of(scheme: str, weight_encoding: str) -> Variant:
    """The variant of a scheme for a processor that needs this encoding: signed for schemes with a single form."""
    return Variant(scheme, SIGNED if scheme in _ONE_ENCODING else weight_encoding)


def parse_variant(text: str) -> Variant:
    """The variant of a text that `str` made."""
    scheme, _, weight_encoding = text.rpartition(".")
    return Variant(scheme, weight_encoding) if scheme and weight_encoding in WEIGHT_ENCODINGS else Variant(text)


class SealedBytes(NamedTuple):
    """Bytes with their SHA-256."""

    data: bytes
    sha256: bytes


@dataclass(frozen=True)
class Checkpoint:
    """One version of a policy's FP32 parameters, with the calibration data of the quantizer.

    parameters: every parameter of the graph under its name.
    calibration: for each data input a batch of recent observations, [B, *observation].
    snapshot_at: unix seconds by the learner's clock.
    received: the bytes that parameters and calibration were parsed from; None if there are none.
    sequences: for a graph with a state, stored sequences of steps, as `CheckpointHeader` in
        protos/actorq/v1/quantizer.proto describes; empty without.
    """

    version: int
    learner_step: int
    graph_digest: bytes
    parameters: dict[str, NDArray[Any]]
    calibration: dict[str, NDArray[Any]]
    snapshot_at: float
    received: SealedBytes | None = field(default=None, repr=False, compare=False)
    sequences: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerReport:
    """The format of one layer's weights: `LayerReport` in protos/actorq/v1/policy.proto."""

    name: str
    weights: str
    reason: str = ""
    published_units: int = 0
    units: int = 0

    @property
    def in_float(self) -> bool:
        """Whether the weights are in float32, unchanged."""
        return self.weights == FLOAT32


@dataclass(frozen=True)
class OutputError:
    """|emitted - fp32| of each component of one output, mean and maximum over the rows, in units of the output."""

    name: str
    mean_errors: tuple[float, ...]
    max_errors: tuple[float, ...]


@dataclass(frozen=True)
class SequenceError:
    """Differences over stored sequences: `SequenceError` in protos/actorq/v1/policy.proto."""

    steps: int
    sequences: int
    mean_state_error: float
    max_state_error: float
    state_drift: float
    mean_output_error: float
    max_output_error: float


@dataclass(frozen=True)
class RefusedRung:
    """A ladder rung that the fidelity gate refused: its layers in float, and its errors."""

    float_layers: tuple[str, ...]
    relative_mean_error: float
    relative_max_error: float
    argmax_agreement: float | None
    mean_kl: float | None = None
    max_kl: float | None = None
    state_drift: float | None = None


@dataclass(frozen=True)
class GroupError:
    """Differences on the rows of one group of agents: `GroupError` in protos/actorq/v1/policy.proto."""

    name: str
    observations: int
    mean_error: float
    max_error: float
    relative_mean_error: float
    relative_max_error: float
    argmax_agreement: float | None = None
    mean_kl: float | None = None
    max_kl: float | None = None
    value_loss: float | None = None


@dataclass(frozen=True)
class FidelityReport:
    """Differences between the outputs of the emitted policy and of the FP32 policy on one calibration batch.

    The message of the same name in protos/actorq/v1/policy.proto explains the fields, with their units.
    """

    observations: int
    mean_error: float
    max_error: float
    relative_mean_error: float
    relative_max_error: float
    argmax_agreement: float | None
    layers: tuple[LayerReport, ...]
    outputs: tuple[OutputError, ...] = ()
    passed: bool = True
    refused: tuple[RefusedRung, ...] = ()
    mean_kl: float | None = None
    max_kl: float | None = None
    value_loss: float | None = None
    sequences: tuple[SequenceError, ...] = ()
    groups: tuple[GroupError, ...] = ()

    @property
    def state_drift(self) -> float | None:
        """The largest drift of the state over stored sequences; None without sequences."""
        return max((each.state_drift for each in self.sequences), default=None)

    def to_json(self) -> dict[str, Any]:
        """JSON values of the report. Errors may be infinite."""
        values = asdict(self)
        if not self.groups:
            # Earlier versions do not know this value.
            del values["groups"]
        return values

    @property
    def float_layers(self) -> tuple[str, ...]:
        """Names of the layers with weights in float."""
        return tuple(layer.name for layer in self.layers if layer.in_float)

    @property
    def gated_layers(self) -> tuple[str, ...]:
        """Names of the layers that the fidelity gate put in float."""
        return tuple(layer.name for layer in self.layers if layer.reason == FIDELITY_GATE)


@dataclass(frozen=True)
class PolicyDescriptor:
    """Everything about an emitted policy except its bytes: `PolicyDescriptor` in protos/actorq/v1/policy.proto.

    Sizes in bytes, `snapshot_at` in unix seconds. All weight encodings have the same numbers, so one fidelity.
    """

    run_id: str
    version: int
    learner_step: int
    scheme: str
    sha256: bytes
    size_bytes: int
    fp32_size_bytes: int
    snapshot_at: float
    fidelity: FidelityReport
    graph_digest: bytes = b""
    weight_encoding: str = SIGNED

    @property
    def variant(self) -> Variant:
        """Scheme and encoding."""
        return Variant(self.scheme, self.weight_encoding)

    @property
    def effective_scheme(self) -> str:
        """The scheme of the computation: "fp32" if no layer could be quantized, or none passed the fidelity gate."""
        layers = self.fidelity.layers
        return FP32 if layers and all(layer.in_float for layer in layers) else self.scheme


@dataclass(frozen=True)
class Policy:
    """An emitted policy: a complete ONNX model and its descriptor."""

    descriptor: PolicyDescriptor
    model: bytes


@dataclass(frozen=True)
class RetainedPolicy:
    """A version in a quantizer's store: the variants emitted for it so far, and its newest evaluation if any."""

    version: int
    learner_step: int
    variants: tuple[Variant, ...]
    mean_return: float | None

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes emitted so far."""
        return tuple(dict.fromkeys(variant.scheme for variant in self.variants))


def chosen_version(choice: str, retained: Sequence[RetainedPolicy]) -> RetainedPolicy | None:
    """The version that "best", "newest" or a number names; None if there is no such version.

    Of equally good versions, the newest is the best.
    """
    if choice == BEST:
        evaluated = [each for each in retained if each.mean_return is not None]
        return max(evaluated, key=lambda each: (each.mean_return or 0.0, each.version), default=None)
    if choice == NEWEST:
        return max(retained, key=lambda each: each.version, default=None)
    return next((each for each in retained if str(each.version) == choice), None)
