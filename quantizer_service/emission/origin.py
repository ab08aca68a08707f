"""The FP32 policy of one version: what emitted policies are made of, and what they are compared with."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.policy import Checkpoint
from actorq.quantization.statistics import Observed, Statistic, Statistics
from quantizer_service.emission.fidelity import Batch, measured_batch
from quantizer_service.emission.reference import Outputs, Reference


@dataclass(frozen=True)
class Left:
    """What is left of a policy without units that do not count: its parameters, and what runs it with them."""

    reference: Reference
    parameters: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Origin:
    """A checked checkpoint with what its FP32 policy does.

    parameters: what plans are filled with: the checkpoint's, or what is left of them in a form with fewer units.
    reference: runs that form, for its statistics.
    batch: the observations on which policies are compared.
    outputs: every output of the FP32 policy on them, as it was published.
    """

    run_id: str
    checkpoint: Checkpoint
    parameters: Mapping[str, NDArray[Any]]
    reference: Reference
    batch: Batch
    outputs: Outputs
    _known: dict[Observed, NDArray[np.float64]]

    @classmethod
    def of(
        cls,
        run_id: str,
        checkpoint: Checkpoint,
        reference: Reference,
        observed: Set[Observed] = frozenset(),
        left: Left | None = None,
    ) -> "Origin":
        """Run the FP32 policy; raises InvalidInputError when it does not run or its outputs are not finite.

        reference: runs the graph as it was published.
        observed: statistics that will be asked for; the same run gives them.
        left: where units that do not count were taken out.
        """
        weights = sum(array.size for array in checkpoint.parameters.values())
        batch = measured_batch(checkpoint.calibration, weights)
        if left is not None:
            # Its hidden tensors are not those of the published graph: it is run when they are asked for.
            outputs = reference.run(checkpoint.parameters, batch)
            return cls(run_id, checkpoint, left.parameters, left.reference, batch, outputs, {})
        now = {each for each in observed if batch is checkpoint.calibration or not _of_all_rows(each)}
        outputs, statistics = reference.observe(checkpoint.parameters, batch, now)
        return cls(run_id, checkpoint, checkpoint.parameters, reference, batch, outputs, statistics)

    def statistics(self, observed: Set[Observed]) -> Statistics:
        """These statistics, each measured once: ranges over the whole calibration batch, others over `batch`.

        Of a large policy `batch` is a part of it. That tells a mean well enough, but not what is highest.
        """
        missing = observed - self._known.keys()
        ranges = {each for each in missing if _of_all_rows(each)}
        for rows, part in ((self.checkpoint.calibration, ranges), (self.batch, missing - ranges)):
            if part:
                self._known.update(self.reference.observe(self.parameters, rows, part)[1])
        return {each: self._known[each] for each in observed}


def _of_all_rows(observed: Observed) -> bool:
    return observed.statistic is Statistic.RANGE
