"""Policies as values: the graph a learner publishes, its checkpoints, and what a quantizer emits from them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

FP32 = "fp32"
# What an actor takes where its processor computes another scheme wrongly: it multiplies float32 numbers.
FALLBACK = "int8-weights"
# Ours, as actors ask for them; what each one does is told in actorq.quantization.schemes. Packages add others: see
# actorq.config.schemes.
SCHEMES = (FP32, FALLBACK, "int8", "int8-static", "int4")
# Schemes that multiply float32 numbers. What others compute depends on the instructions of the actor's processor.
FLOAT_SCHEMES = (FP32, FALLBACK)
# Each actor measures the schemes on its own processor and takes the fastest.
AUTO = "auto"

# Names of versions besides numbers: the highest mean return in its newest evaluation, and the highest number.
BEST, NEWEST = "best", "newest"

# How a layer's weights are held.
FLOAT32 = "float32"
INT8_PER_TENSOR = "int8 per tensor"
INT8_PER_CHANNEL = "int8 per channel"
INT4_PER_BLOCK = "int4 per block"

# Why a layer is in float that its scheme would have quantized.
FIDELITY_GATE = "fidelity gate"

# The data inputs of a policy graph: observations, and for a stochastic policy standard normal noise float32[B, actions]
# that it turns into exploration. Who wants the deterministic policy gives zeros.
OBSERVATIONS_INPUT, NOISE_INPUT = "observations", "noise"
# A second output of a stochastic policy, where the run asks for it: its actions without the noise that it was given.
GREEDY_OUTPUT = "greedy_actions"

# A publisher's next version may be so far above the highest one: no run publishes as many, and no single message uses
# up all numbers.
MAX_VERSION_STEP = 2**32

# A calibration batch travels with the parameters, under the name of the graph input that it feeds.
CALIBRATION_PREFIX = "calibration:"


@dataclass(frozen=True)
class PolicyGraph:
    """An ONNX model without weights: its graph inputs are the data inputs, then every parameter by name.

    inputs: names of the data inputs, each batch first.
    discrete_actions: the first output has one value per action, of which the largest is taken; or it is the action's
        index, as an integer or as a single component.
    action_spans: highest minus lowest action of each component of the first output; empty for discrete actions.
    """

    model: bytes
    inputs: tuple[str, ...]
    discrete_actions: bool
    action_spans: tuple[float, ...] = ()

    @property
    def topology(self) -> bytes:
        """SHA-256 of the model: two policies with the same topology differ in their weights only."""
        return hashlib.sha256(self.model).digest()


@dataclass(frozen=True)
class Checkpoint:
    """One version of a policy's FP32 parameters, with what the quantizer needs to measure and calibrate.

    parameters: every parameter of the graph under its name.
    calibration: for each data input a batch of recent observations, [B, *observation].
    snapshot_at: unix seconds by the learner's clock.
    """

    version: int
    learner_step: int
    topology: bytes
    parameters: dict[str, NDArray[Any]]
    calibration: dict[str, NDArray[Any]]
    snapshot_at: float


@dataclass(frozen=True)
class LayerReport:
    """How the weights of one layer are held: `weights` is FLOAT32 or names the quantized form.

    reason: why it is in float, empty for quantized ones.
    published_units, units: outputs of the layer before and after units that do not count were taken out; 0 where none
        were.
    """

    name: str
    weights: str
    reason: str = ""
    published_units: int = 0
    units: int = 0

    @property
    def in_float(self) -> bool:
        """Whether the weights are as the learner has them."""
        return self.weights == FLOAT32


@dataclass(frozen=True)
class OutputError:
    """|emitted - fp32| of each component of one output, mean and maximum over the rows, in units of the output."""

    name: str
    mean_errors: tuple[float, ...]
    max_errors: tuple[float, ...]


@dataclass(frozen=True)
class RefusedRung:
    """What the fidelity gate did not let through: the layers in float there, and the errors all the same."""

    float_layers: tuple[str, ...]
    relative_mean_error: float
    relative_max_error: float
    argmax_agreement: float | None


@dataclass(frozen=True)
class FidelityReport:
    """How far the emitted policy's outputs are from the FP32 policy's on one calibration batch.

    Errors are |emitted - fp32| over all rows and components of the first output, in units of the output; relative ones
    are divided by the range of each action, or where there is none by the range of the FP32 outputs over the batch.
    `argmax_agreement` is the share of rows with the same action, None for continuous actions.

    layers: all layers in the order of the graph.
    outputs: every output, the first one included.
    passed: the errors keep to the run's thresholds.
    refused: what was tried before and did not.
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

    @property
    def float_layers(self) -> tuple[str, ...]:
        """Names of the layers whose weights are in float."""
        return tuple(layer.name for layer in self.layers if layer.in_float)

    @property
    def gated_layers(self) -> tuple[str, ...]:
        """Names of the layers that the fidelity gate has put in float."""
        return tuple(layer.name for layer in self.layers if layer.reason == FIDELITY_GATE)


@dataclass(frozen=True)
class PolicyDescriptor:
    """Everything about an emitted policy but its bytes; sizes in bytes, `snapshot_at` in unix seconds.

    scheme: as it was asked for; `effective_scheme` tells what it came to.
    topology: SHA-256 of its graph; empty when not known.
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
    topology: bytes = b""

    @property
    def effective_scheme(self) -> str:
        """What acts: "fp32" where no layer was fit to be quantized, or none passed the fidelity gate."""
        layers = self.fidelity.layers
        return FP32 if layers and all(layer.in_float for layer in layers) else self.scheme


@dataclass(frozen=True)
class Policy:
    """An emitted policy: a complete ONNX model and its description."""

    descriptor: PolicyDescriptor
    model: bytes


@dataclass(frozen=True)
class RetainedPolicy:
    """A version in a quantizer's store, the schemes already emitted for it, and its newest evaluation if any."""

    version: int
    learner_step: int
    schemes: tuple[str, ...]
    mean_return: float | None


def chosen_version(choice: str, retained: Sequence[RetainedPolicy]) -> RetainedPolicy | None:
    """The version that "best", "newest" or a number names; None when there is none.

    Of equally good versions the newest one is the best.
    """
    if choice == BEST:
        evaluated = [each for each in retained if each.mean_return is not None]
        return max(evaluated, key=lambda each: (each.mean_return or 0.0, each.version), default=None)
    if choice == NEWEST:
        return max(retained, key=lambda each: each.version, default=None)
    return next((each for each in retained if str(each.version) == choice), None)
