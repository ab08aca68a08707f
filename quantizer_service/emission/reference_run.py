"""One version's FP32 run: the source of calibration statistics and the reference for emitted policies."""

from collections.abc import Set

from actorq.domain.policy import Checkpoint
from actorq.quantization.calibration import Batch, Observed, Statistic, Statistics, evenly_spaced
from actorq.quantization.graph import Parameters
from quantizer_service.emission.reference import Reference

# Limit of weights times rows in the FP32 run of one version: about 25 ms on one core. It allows 256 rows for three
# layers of 2048 units. Larger policies get fewer rows, but at least 64.
MAX_WEIGHT_ROWS = 2_400_000_000
MIN_ROWS = 64


class ReferenceRun:
    """A validated checkpoint with the outputs of its FP32 policy.

    published: runs the published graph.
    compact, parameters: runs the graph without dead units, with these parameters; `published` if all are live.
    observed: statistics that will be needed. The same run measures them.
    all_rows: compare on the whole calibration batch, even for a large policy.

    batch: the observations for the comparison.
    outputs: the published FP32 policy's outputs on them.

    Raises InvalidInputError when the policy does not run or its outputs are not finite.
    """

    def __init__(
        self,
        run_id: str,
        checkpoint: Checkpoint,
        published: Reference,
        compact: Reference,
        parameters: Parameters,
        observed: Set[Observed] = frozenset(),
        all_rows: bool = False,
    ) -> None:
        self.run_id, self.checkpoint, self.parameters = run_id, checkpoint, parameters
        self._compact = compact
        weights = sum(array.size for array in checkpoint.parameters.values())
        self.batch = checkpoint.calibration if all_rows else measured_batch(checkpoint.calibration, weights)
        whole = self.batch is checkpoint.calibration
        now = {each for each in observed if whole or each.statistic is not Statistic.RANGE}
        # A compact graph has other hidden tensors. `statistics` runs it when they are needed.
        now = now if compact is published else set()
        self.outputs, self._known = published.observe(checkpoint.parameters, self.batch, now)

    def statistics(self, observed: Set[Observed]) -> Statistics:
        """The given statistics, each measured once: ranges over the whole calibration batch, others over `batch`.

        For a large policy `batch` is only a part, which suffices for a mean but not for a maximum.
        """
        missing = observed - self._known.keys()
        ranges = {each for each in missing if each.statistic is Statistic.RANGE}
        for rows, part in ((self.checkpoint.calibration, ranges), (self.batch, missing - ranges)):
            if part:
                self._known.update(self._compact.observe(self.parameters, rows, part)[1])
        return {each: self._known[each] for each in observed}


def measured_batch(calibration: Batch, weights: int) -> Batch:
    """The rows for comparing a policy with this number of weights: all, or evenly spaced ones for a large policy."""
    return evenly_spaced(calibration, max(MIN_ROWS, MAX_WEIGHT_ROWS // max(1, weights)))
