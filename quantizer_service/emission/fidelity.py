"""Measures the fidelity of an emitted policy: compares its outputs with the FP32 policy's."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from actorq.arithmetic import arithmetic
from actorq.domain import limits
from actorq.domain.policy import SIGNED, FidelityReport, GroupError, LayerReport, OutputError
from actorq.domain.signature import Signature
from actorq.quantization.calibration import Batch, rows_of
from actorq.quantization.schemes.base import Emission
from actorq.weightencoding import with_weight_encoding
from quantizer_service.emission import action_errors
from quantizer_service.emission.divergence import divergence, tells_distribution
from quantizer_service.emission.inference import open_session, run_session
from quantizer_service.emission.reference import Outputs, ReferenceRun
from quantizer_service.emission.row_groups import Rows, rows_by_group

# Measures of a report. For all but the agreement, larger values are worse.
_AGREEMENT = "argmax_agreement"
_ERRORS = (
    *("mean_error", "max_error", "relative_mean_error", "relative_max_error"),
    *("mean_kl", "max_kl", "value_loss"),
)


def measure_all(emission: Emission, run: ReferenceRun, signature: Signature, call_rows: int = 0) -> FidelityReport:
    """`measure` an emitted model on the observations of a run, and over its stored sequences."""
    session, masks = open_emitted(emission), signature.is_discrete
    report = measure(emission, run.outputs, run.batch, signature, call_rows, session)

    def step(inputs: Batch) -> Outputs:
        return in_calls(session, run.outputs, inputs, call_rows or rows_of(inputs), masks)

    return replace(report, sequences=run.judge_sequences(step))


def open_emitted(emission: Emission) -> ort.InferenceSession:
    """A session of an emitted model on this processor. Raises InvalidInputError when ONNX Runtime refuses the model."""
    encoding = arithmetic().weight_encoding
    # Emissions have signed weights. If this processor computes them wrongly, the same numbers are measured unsigned.
    model = emission.model if encoding == SIGNED else with_weight_encoding(emission.model, encoding)
    return open_session(model, "emitted policy")


def measure(
    emission: Emission,
    expected: Outputs,
    calibration: Batch,
    signature: Signature,
    call_rows: int = 0,
    session: ort.InferenceSession | None = None,
) -> FidelityReport:
    """Compare an emitted model's outputs with the FP32 policy's outputs, `expected`, on the same batch.

    Relative errors are errors divided by the spans of actions. Without spans the divisors are `observed_spans`: each
    component's own range over the batch. In that case masked actions are left out, and the mean leaves out constant
    components. An error above the limit of messages counts as infinite. Raises InvalidInputError when the model does
    not run or its outputs are not finite.

    Agreement compares the index of the largest component of the first output. For several discrete parts, the lowest
    agreement and the largest loss of value count. An output that is the action itself (see `are_actions`) is compared
    row by row for equality, without a loss of value. Divergences come from `divergence`.

    With groups, each group is compared on its own rows, and the errors are the worst ones of all groups. A group
    without rows is left out.

    call_rows: see FidelityGate. session: of the emission, if it is open.
    """
    session = session or open_emitted(emission)
    outputs = in_calls(session, expected, calibration, call_rows or rows_of(calibration), signature.is_discrete)
    kind = next(value.type for value in session.get_outputs() if value.name == next(iter(expected)))
    is_integer = "int" in kind or "bool" in kind

    def compared(rows: Rows | slice) -> FidelityReport:
        own, others = ({name: values[rows] for name, values in each.items()} for each in (expected, outputs))
        return _compared(own, others, signature, emission.layers, is_integer)

    found = {name: compared(rows) for name, rows in rows_by_group(calibration, signature).items()}
    return worst_of(found) if found else compared(slice(None))


def worst_of(reports: Mapping[str, FidelityReport]) -> FidelityReport:
    """The report on a policy from the reports on its groups, by name: for each measure the worst value."""
    each = list(reports.values())

    def worst(name: str, choose: Callable[[Iterable[float]], float] = max) -> Any:
        values = [getattr(report, name) for report in each]
        return None if any(value is None for value in values) else choose(values)

    errors = {name: worst(name) for name in _ERRORS} | {_AGREEMENT: worst(_AGREEMENT, min)}
    groups = [
        GroupError(name, report.observations, **{field: getattr(report, field) for field in errors})
        for name, report in reports.items()
    ]
    outputs = tuple(
        OutputError(
            ports[0].name,
            tuple(map(max, zip(*(port.mean_errors for port in ports), strict=True))),
            tuple(map(max, zip(*(port.max_errors for port in ports), strict=True))),
        )
        for ports in zip(*(report.outputs for report in each), strict=True)
    )
    observations = sum(report.observations for report in each)
    changed = {**errors, "observations": observations, "outputs": outputs, "groups": tuple(groups)}
    return replace(each[0], **changed)


def _compared(
    expected: Outputs, outputs: Outputs, signature: Signature, layers: tuple[LayerReport, ...], is_integer: bool
) -> FidelityReport:
    """`measure` on rows of one policy. is_integer: whether the emitted model's first output has integers."""
    errors = {name: np.abs(outputs[name] - values) for name, values in expected.items()}
    first = next(iter(expected))
    action, emitted = expected[first], outputs[first]
    spans, counted = np.array(signature.acting.spans), np.ones(action.shape, np.bool_)
    varies, legal = np.ones(action.shape[1], np.bool_), counted
    if not signature.acting.spans:
        legal = action_errors.legal_actions(action)
        spans, varies = action_errors.observed_spans(action, legal, signature.is_discrete)
        # A mask that the emitted policy lacks is an error.
        counted = legal | (emitted > action_errors.HIGHEST_MASK)
        errors[first] = np.where(counted, errors[first], 0.0)
    relative = errors[first] / spans
    are_actions = action_errors.are_actions(action, signature.is_discrete)
    chosen = is_integer or (not signature.acting.spans and are_actions)
    parts = action_errors.parts_of(action, signature.acting.sizes)
    divergences = divergence(expected, outputs, signature, parts)
    has_values = signature.is_discrete and not chosen and divergences is None
    taken = [(emitted[:, part].argmax(1), part) for part in parts]
    losses = [action_errors.value_loss(action[:, part], legal[:, part], own) for own, part in taken if has_values]
    agreements = [(own == action[:, part].argmax(1)).mean() for own, part in taken]
    # The lowest agreement of all parts counts.
    agreement = float((emitted == action).all(1).mean() if chosen else min(agreements))
    return FidelityReport(
        observations=len(action),
        mean_error=float(_bounded(errors[first][counted].mean())),
        max_error=float(_bounded(errors[first].max())),
        relative_mean_error=float(_bounded(relative[counted & varies].mean())),
        relative_max_error=float(_bounded(relative.max())),
        argmax_agreement=agreement if signature.is_discrete or chosen else None,
        layers=layers,
        outputs=tuple(_output_error(name, error) for name, error in errors.items()),
        mean_kl=None if divergences is None else float(divergences.mean()),
        max_kl=None if divergences is None else float(divergences.max()),
        value_loss=max(losses, default=None),
    )


def in_calls(session: ort.InferenceSession, names: Iterable[str], batch: Batch, rows: int, masks: bool) -> Outputs:
    """The outputs on a batch, in calls of at most `rows` rows."""
    calls = []
    for start in range(0, rows_of(batch), rows):
        part = {name: array[start : start + rows] for name, array in batch.items()}
        calls.append(run_session(session, part, rows_of(part), "emitted policy", names, masks=masks))
    return {name: np.concatenate([call[name] for call in calls]) for name in names}


def _output_error(name: str, errors: NDArray[np.float64]) -> OutputError:
    """Mean and maximum over the batch of an output's errors, for each component."""
    return OutputError(
        name, tuple(_bounded(errors.mean(axis=0)).tolist()), tuple(_bounded(errors.max(axis=0)).tolist())
    )


def _bounded(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(errors <= limits.MAX_MAGNITUDE, errors, np.inf)


def unfit(
    layers: tuple[LayerReport, ...], expected: Outputs, calibration: Batch, signature: Signature
) -> FidelityReport:
    """The report on an emitted policy that does not run on the batch, or whose outputs are not finite."""
    kl = math.inf if tells_distribution(expected, signature) else None
    return FidelityReport(
        observations=rows_of(calibration),
        mean_error=math.inf,
        max_error=math.inf,
        relative_mean_error=math.inf,
        relative_max_error=math.inf,
        argmax_agreement=0.0 if signature.is_discrete else None,
        layers=layers,
        passed=False,
        mean_kl=kl,
        max_kl=kl,
    )
