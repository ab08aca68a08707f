"""How far an emitted policy is from its FP32 origin, measured by running both."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.policy import FidelityReport, LayerReport, OutputError, PolicyGraph
from actorq.quantization.schemes.base import Emission
from quantizer_service.emission.inference import open_session, run_session
from quantizer_service.emission.reference import Outputs, rows_of

# Observations of each data input by name, batch first.
Batch = Mapping[str, NDArray[Any]]

# Weights times rows that are run in FP32 to measure one version: a little more than 256 rows of a policy with three
# layers of 2048 units, about 25 ms on one core. Fewer rows are taken of larger policies, but never fewer than 64, of
# which one is 1.6% of agreement.
MAX_WEIGHT_ROWS = 2_400_000_000
MIN_ROWS = 64


def measured_batch(calibration: Batch, weights: int) -> Batch:
    """The rows on which a policy with so many weights is compared: all, or of a large policy evenly spaced ones."""
    rows = rows_of(calibration)
    count = min(rows, max(MIN_ROWS, MAX_WEIGHT_ROWS // max(1, weights)))
    if count == rows:
        return calibration
    # The first and the last one are among them: observations are in the order in which they were seen, or in none.
    chosen = np.linspace(0, rows - 1, count).round().astype(np.intp)
    return {name: array[chosen] for name, array in calibration.items()}


def measure(emission: Emission, expected: Outputs, calibration: Batch, source: PolicyGraph) -> FidelityReport:
    """Compare an emitted model's outputs with those of the FP32 policy, `expected`, on the same batch.

    Relative errors are divided by the graph's action spans; where it has none by the range of the first expected
    output, or by 1 where all its values are equal. Raises InvalidInputError when the model cannot run or its outputs
    are not finite.
    """
    session = open_session(emission.model, "emitted policy")
    outputs = run_session(session, calibration, rows_of(calibration), "emitted policy")
    errors = {name: np.abs(outputs[name] - values) for name, values in expected.items()}
    first = next(iter(expected))
    action = expected[first]
    span = np.array(source.action_spans) if source.action_spans else float(action.max() - action.min()) or 1.0
    relative = errors[first] / span
    agreement = float((outputs[first].argmax(1) == action.argmax(1)).mean()) if source.discrete_actions else None
    return FidelityReport(
        observations=len(action),
        mean_error=float(errors[first].mean()),
        max_error=float(errors[first].max()),
        relative_mean_error=float(relative.mean()),
        relative_max_error=float(relative.max()),
        argmax_agreement=agreement,
        layers=emission.layers,
        outputs=tuple(
            OutputError(name, tuple(error.mean(axis=0).tolist()), tuple(error.max(axis=0).tolist()))
            for name, error in errors.items()
        ),
    )


def unfit(layers: tuple[LayerReport, ...], calibration: Batch, source: PolicyGraph) -> FidelityReport:
    """The report on an emitted policy that cannot be run on the batch, or whose outputs are not finite there."""
    return FidelityReport(
        observations=rows_of(calibration),
        mean_error=math.inf,
        max_error=math.inf,
        relative_mean_error=math.inf,
        relative_max_error=math.inf,
        argmax_agreement=0.0 if source.discrete_actions else None,
        layers=layers,
        passed=False,
    )
