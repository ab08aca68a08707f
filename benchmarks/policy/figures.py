"""The figures that the policy benchmarks measure, for their tables and plots."""

from dataclasses import dataclass, field

from actorq.domain.policy import FP32
from benchmarks.policy.inference_timing import Timing

# The scheme with the smallest sparse policies.
SMALLEST = "int8-weights"


@dataclass(frozen=True)
class Cell:
    """One network at one batch size.

    timings: by scheme, and for TORCH.
    auto: the scheme that an actor chooses.
    regret: relative slowness of `auto` against the fastest candidate: fp32, or a scheme with a quantized layer.
    cold: timings with cold caches; empty where not measured.
    """

    network: str
    batch: int
    timings: dict[str, Timing]
    auto: str = ""
    regret: float = 0.0
    cold: dict[str, Timing] = field(default_factory=dict)

    def speedup(self, name: str, over: str = FP32) -> float:
        """Speed relative to ONNX Runtime fp32."""
        return self.timings[over].median / self.timings[name].median


@dataclass(frozen=True)
class Bytes:
    """Sizes of a policy's updates on the wire, in bytes.

    widths: live units of the hidden layers.
    dense, watched: messages of WatchPolicies, for the dense fp32 policy and by scheme for the sparse one.
    errors: mean error by scheme, relative to the action range.
    dense_published, published: messages of PublishCheckpoints for a checkpoint; calibration: bytes of its observations.
    written: the model in scheme SMALLEST and the checkpoint, in each form.
    """

    task: str
    masks: str
    sparsity: float
    widths: tuple[int, ...]
    dense: int
    watched: dict[str, int]
    errors: dict[str, float]
    dense_published: int
    published: int
    calibration: int
    written: dict[str, dict[str, float]]

    def saved(self, scheme: str = SMALLEST) -> float:
        """Bytes of the dense fp32 policy divided by this policy's bytes."""
        return self.dense / self.watched[scheme]


@dataclass(frozen=True)
class Calls:
    """Microseconds per call at one batch size of one kind of masks, by scheme; `masks` is dense for none."""

    masks: str
    sparsity: float
    batch: int
    widths: tuple[int, ...]
    timings: dict[str, Timing]


@dataclass(frozen=True)
class Errors:
    """Errors over observations and action components, relative to the range of each action; None if not applicable.

    lost_value: largest difference in FP32's values between its best action and the chosen one; small for near ties.
    """

    mean_error: float
    max_error: float
    agreement: float | None
    lost_value: float | None = None


@dataclass(frozen=True)
class Figures:
    """One policy in one variant of a scheme.

    errors: by batch size. returns: of episodes with the same initial states in all variants. quantized: layers not in
    float.
    """

    size_bytes: int
    quantized: dict[str, str]
    errors: dict[int, Errors]
    returns: list[float]
