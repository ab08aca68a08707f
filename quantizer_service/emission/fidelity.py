"""Measures the fidelity of an emitted policy: compares its outputs with the FP32 policy's."""

import math

import numpy as np
from numpy.typing import NDArray

from actorq.arithmetic import arithmetic
from actorq.domain.policy import SIGNED, FidelityReport, LayerReport, OutputError, PolicyGraph
from actorq.quantization.calibration import Batch, rows_of
from actorq.quantization.schemes.base import Emission
from actorq.weightencoding import with_weight_encoding
from actorq.wire import bounds
from quantizer_service.emission.divergence import divergence, tells_distribution
from quantizer_service.emission.inference import open_session, run_session
from quantizer_service.emission.reference import Outputs


def measure(emission: Emission, expected: Outputs, calibration: Batch, source: PolicyGraph) -> FidelityReport:
    """Compare an emitted model's outputs with the FP32 policy's outputs, `expected`, on the same batch.

    Relative errors are errors divided by the graph's action spans. Without spans the divisor is the range of the first
    expected output, or 1 if all its values are equal. An error above the bound of messages counts as infinite. Raises
    InvalidInputError when the model does not run or its outputs are not finite.

    Agreement compares the index of the largest component of the first output. An output with one component or of
    integers is the chosen action itself, and is compared for equality, without a loss of value. Divergences are those
    of `divergence`.
    """
    encoding = arithmetic().weight_encoding
    # Emissions have signed weights. Where this processor computes them wrongly, the same numbers are measured unsigned.
    model = emission.model if encoding == SIGNED else with_weight_encoding(emission.model, encoding)
    session = open_session(model, "emitted policy")
    outputs = run_session(session, calibration, rows_of(calibration), "emitted policy")
    errors = {name: np.abs(outputs[name] - values) for name, values in expected.items()}
    first = next(iter(expected))
    action = expected[first]
    span = np.array(source.action_spans) if source.action_spans else float(action.max() - action.min()) or 1.0
    relative = errors[first] / span
    kind = session.get_outputs()[0].type
    chosen = action.shape[1] == 1 or "int" in kind or "bool" in kind
    divergences = divergence(expected, outputs, source.discrete_actions)
    values = source.discrete_actions and not chosen and divergences is None
    agree = (outputs[first] == action).all(1) if chosen else outputs[first].argmax(1) == action.argmax(1)
    return FidelityReport(
        observations=len(action),
        mean_error=float(_bounded(errors[first].mean())),
        max_error=float(_bounded(errors[first].max())),
        relative_mean_error=float(_bounded(relative.mean())),
        relative_max_error=float(_bounded(relative.max())),
        argmax_agreement=float(agree.mean()) if source.discrete_actions else None,
        layers=emission.layers,
        outputs=tuple(
            OutputError(name, tuple(_bounded(error.mean(axis=0)).tolist()), tuple(_bounded(error.max(axis=0)).tolist()))
            for name, error in errors.items()
        ),
        mean_kl=None if divergences is None else float(divergences.mean()),
        max_kl=None if divergences is None else float(divergences.max()),
        value_loss=_value_loss(action, outputs[first].argmax(1)) if values else None,
    )


def _bounded(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(errors <= bounds.MAX_MAGNITUDE, errors, np.inf)


def _value_loss(values: NDArray[np.float64], actions: NDArray[np.int64]) -> float:
    """What `actions` lose against the best of `values`, relative to the worst; 0 where all actions are equally good.

    The mean of a policy's losses of value is its loss of return per step, to first order (Kakade and Langford 2002,
    lemma 6.1).
    """
    best = values.max(axis=1)
    lost = float((best - np.take_along_axis(values, actions[:, None], axis=1)[:, 0]).mean())
    return lost / most if (most := float((best - values.min(axis=1)).mean())) else 0.0


def unfit(
    layers: tuple[LayerReport, ...], expected: Outputs, calibration: Batch, source: PolicyGraph
) -> FidelityReport:
    """The report on an emitted policy that does not run on the batch, or has outputs that are not finite."""
    kl = math.inf if tells_distribution(expected, source.discrete_actions) else None
    return FidelityReport(
        observations=rows_of(calibration),
        mean_error=math.inf,
        max_error=math.inf,
        relative_mean_error=math.inf,
        relative_max_error=math.inf,
        argmax_agreement=0.0 if source.discrete_actions else None,
        layers=layers,
        passed=False,
        mean_kl=kl,
        max_kl=kl,
    )
