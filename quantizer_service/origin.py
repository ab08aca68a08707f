"""The FP32 policy of one version: what emitted policies are made of, and what they are compared with."""

from collections.abc import Set
from dataclasses import dataclass, field

from actorq.policy import Checkpoint
from quantizer_service.fidelity import Batch, measured_batch
from quantizer_service.reference import Outputs, Reference
from quantizer_service.schemes.base import Range


@dataclass(frozen=True)
class Origin:
    """A checked checkpoint with what its FP32 policy does.

    batch: the observations on which policies are compared.
    outputs: every output of the FP32 policy on them.
    """

    run_id: str
    checkpoint: Checkpoint
    reference: Reference
    batch: Batch
    outputs: Outputs
    _ranges: dict[str, Range] = field(default_factory=dict)

    @classmethod
    def of(cls, run_id: str, checkpoint: Checkpoint, reference: Reference) -> "Origin":
        """Run the FP32 policy; raises InvalidInputError when it does not run or its outputs are not finite."""
        weights = sum(array.size for array in checkpoint.parameters.values())
        batch = measured_batch(checkpoint.calibration, weights)
        return cls(run_id, checkpoint, reference, batch, reference.run(checkpoint.parameters, batch))

    def ranges(self, names: Set[str]) -> dict[str, Range]:
        """Lowest and highest value of each of these tensors over the whole calibration batch; measured once."""
        if not names <= self._ranges.keys():
            checkpoint = self.checkpoint
            self._ranges.update(self.reference.ranges(checkpoint.parameters, checkpoint.calibration, names))
        return {name: self._ranges[name] for name in names}
