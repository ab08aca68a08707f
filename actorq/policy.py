"""Policies as values: the graph a learner publishes, its checkpoints, and what a quantizer emits from them."""

import hashlib
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

# A calibration batch travels with the parameters, under the name of the graph input that it feeds.
CALIBRATION_PREFIX = "calibration:"


@dataclass(frozen=True)
class PolicyGraph:
    """An ONNX model without weights: its graph inputs are the data inputs, then every parameter by name.

    inputs: names of the data inputs, each batch first.
    discrete_actions: the first output has one value per action, of which the largest is taken.
    """

    model: bytes
    inputs: tuple[str, ...]
    discrete_actions: bool

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
class FidelityReport:
    """How far the emitted policy's outputs are from the FP32 policy's on one calibration batch.

    Errors are |emitted - fp32| over all rows and outputs, in units of the output; relative ones are divided by the
    range of the FP32 outputs over the batch. `argmax_agreement` is the share of rows with the same largest output,
    None for continuous actions.
    """

    observations: int
    mean_error: float
    max_error: float
    relative_mean_error: float
    relative_max_error: float
    argmax_agreement: float | None
    float_layers: tuple[str, ...]


@dataclass(frozen=True)
class PolicyDescriptor:
    """Everything about an emitted policy but its bytes; sizes in bytes, `snapshot_at` in unix seconds."""

    run_id: str
    version: int
    learner_step: int
    scheme: str
    sha256: bytes
    size_bytes: int
    fp32_size_bytes: int
    snapshot_at: float
    fidelity: FidelityReport


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
