"""The FP32 policy of one version, run once: emitted policies are made from it and compared with it."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.policy import Checkpoint
from actorq.quantization.calibration import Observed, Statistic, Statistics
from quantizer_service.emission.reference import Batch, Outputs, Reference, rows_of

# Weights times rows that are run in FP32 to measure one version: a little more than 256 rows of a policy with three
# layers of 2048 units, about 25 ms on one core. Fewer rows are taken of larger policies, but never fewer than 64, of
# which one is 1.6% of agreement.
MAX_WEIGHT_ROWS = 2_400_000_000
MIN_ROWS = 64


@dataclass(frozen=True)
class ReferenceRun:
    """A validated checkpoint with what its FP32 policy does.

    parameters: those that plans are filled with: of the checkpoint, or of its compact form.
    reference: runs the graph of these parameters, for its statistics.
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
        published: Reference,
        compact: Reference,
        parameters: Mapping[str, NDArray[Any]],
        observed: Set[Observed] = frozenset(),
        all_rows: bool = False,
    ) -> "ReferenceRun":
        """Run the FP32 policy; raises InvalidInputError when it does not run or its outputs are not finite.

        published: runs the graph as it was published.
        compact, parameters: runs the graph without dead units, with these; `published` where all units are alive.
        observed: statistics that will be asked for; the same run measures them.
        all_rows: compare policies on the whole calibration batch, also a large policy.
        """
        weights = sum(array.size for array in checkpoint.parameters.values())
        batch = checkpoint.calibration if all_rows else measured_batch(checkpoint.calibration, weights)
        now = {each for each in observed if batch is checkpoint.calibration or not _of_all_rows(each)}
        # The hidden tensors of a compact graph are others: it is run when they are asked for.
        outputs, statistics = published.observe(checkpoint.parameters, batch, now if compact is published else ())
        return cls(run_id, checkpoint, parameters, compact, batch, outputs, statistics)

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


def measured_batch(calibration: Batch, weights: int) -> Batch:
    """The rows on which a policy with so many weights is compared: all, or of a large policy evenly spaced ones."""
    rows = rows_of(calibration)
    count = min(rows, max(MIN_ROWS, MAX_WEIGHT_ROWS // max(1, weights)))
    if count == rows:
        return calibration
    # The first and the last one are among them: observations are in the order in which they were seen, or in none.
    chosen = np.linspace(0, rows - 1, count).round().astype(np.intp)
    return {name: array[chosen] for name, array in calibration.items()}


def _of_all_rows(observed: Observed) -> bool:
    return observed.statistic is Statistic.RANGE
