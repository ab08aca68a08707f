"""What the benchmarks of policies measure, for their tables and their plots."""

from dataclasses import dataclass, field

from actorq.domain.policy import FP32
from benchmarks.policy.inference_timing import Timing

# The scheme in which sparse policies are smallest.
SMALLEST = "int8-weights"


@dataclass(frozen=True)
class Cell:
    """One network at one batch size.

    timings: by scheme, and of TORCH.
    auto: the scheme that an actor takes.
    regret: share by which `auto` is slower than the fastest scheme in which a layer is quantized, or fp32.
    cold: timings with cold caches; empty where they were not measured.
    """

    network: str
    batch: int
    timings: dict[str, Timing]
    auto: str = ""
    regret: float = 0.0
    cold: dict[str, Timing] = field(default_factory=dict)

    def speedup(self, name: str, over: str = FP32) -> float:
        """How many times faster than ONNX Runtime fp32."""
        return self.timings[over].median / self.timings[name].median


@dataclass(frozen=True)
class Bytes:
    """A policy's updates on the wire, in bytes.

    widths: units of the hidden layers that are left.
    dense, watched: messages of WatchPolicies, of the dense fp32 policy and of the sparse one by scheme.
    errors: mean error by scheme, relative to the range of actions.
    dense_published, published: messages of PublishCheckpoints for a checkpoint; calibration: bytes of its observations.
    written: the model in SMALLEST and the checkpoint, in each form.
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
        """How many times fewer bytes than the dense fp32 policy."""
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
    """Over observations and action components, relative to the range of each action; None where there is none.

    lost_value: the most that FP32 values its best action above the one taken; small where the best ones are near ties.
    """

    mean_error: float
    max_error: float
    agreement: float | None
    lost_value: float | None = None


@dataclass(frozen=True)
class Figures:
    """One policy in one variant of a scheme.

    errors: by batch size. returns: of episodes that begin alike in all variants. quantized: layers not in float.
    """

    size_bytes: int
    quantized: dict[str, str]
    errors: dict[int, Errors]
    returns: list[float]
