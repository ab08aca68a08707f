"""One version's FP32 run: the source of calibration statistics and the reference for emitted policies."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.policy import Checkpoint
from actorq.quantization.calibration import Observed, Statistic, Statistics
from quantizer_service.emission.reference import Batch, Outputs, Reference, rows_of

# Limit of weights times rows in the FP32 run of one version: about 25 ms on one core. It allows 256 rows for three
# layers of 2048 units. Larger policies get fewer rows, but at least 64.
MAX_WEIGHT_ROWS = 2_400_000_000
MIN_ROWS = 64


@dataclass(frozen=True)
class ReferenceRun:
    """A validated checkpoint with the outputs of its FP32 policy.

    parameters: the parameters for the plans, from the checkpoint or its compact form.
    reference: runs the graph of these parameters, for statistics.
    batch: the observations for the comparison.
    outputs: the published FP32 policy's outputs on them.
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
        """Run the FP32 policy. Raises InvalidInputError when it does not run or its outputs are not finite.

        published: runs the published graph.
        compact, parameters: runs the graph without dead units, with these parameters; `published` if all are live.
        observed: statistics that will be needed. The same run measures them.
        all_rows: compare on the whole calibration batch, even for a large policy.
        """
        weights = sum(array.size for array in checkpoint.parameters.values())
        batch = checkpoint.calibration if all_rows else measured_batch(checkpoint.calibration, weights)
        now = {each for each in observed if batch is checkpoint.calibration or not _of_all_rows(each)}
        # A compact graph has other hidden tensors. `statistics` runs it when they are needed.
        outputs, statistics = published.observe(checkpoint.parameters, batch, now if compact is published else ())
        return cls(run_id, checkpoint, parameters, compact, batch, outputs, statistics)

    def statistics(self, observed: Set[Observed]) -> Statistics:
        """The given statistics, each measured once: ranges over the whole calibration batch, others over `batch`.

        For a large policy `batch` is only a part, which suffices for a mean but not for a maximum.
        """
        missing = observed - self._known.keys()
        ranges = {each for each in missing if _of_all_rows(each)}
        for rows, part in ((self.checkpoint.calibration, ranges), (self.batch, missing - ranges)):
            if part:
                self._known.update(self.reference.observe(self.parameters, rows, part)[1])
        return {each: self._known[each] for each in observed}


def measured_batch(calibration: Batch, weights: int) -> Batch:
    """The rows for comparing a policy with this number of weights: all, or evenly spaced ones for a large policy."""
    rows = rows_of(calibration)
    count = min(rows, max(MIN_ROWS, MAX_WEIGHT_ROWS // max(1, weights)))
    if count == rows:
        return calibration
    # Evenly spaced from the first to the last, because observations may be in order of time.
    chosen = np.linspace(0, rows - 1, count).round().astype(np.intp)
    return {name: array[chosen] for name, array in calibration.items()}


def _of_all_rows(observed: Observed) -> bool:
    return observed.statistic is Statistic.RANGE
