"""Compares one policy in every scheme: size, speed, errors, and the fidelity gate's verdict."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort

from actorq.config.schemes import scheme_names
from actorq.config.sections import GateConfig
from actorq.domain.policy import FP32, SCHEMES, SIGNED, Checkpoint, FidelityReport
from actorq.errors import InvalidInputError, UserError
from actorq.quantization.calibration import Batch, evenly_spaced, rows_of
from actorq.quantization.foreign.conversion import set_ir_version
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.schemes import Emission, Options
from actorq.text import reason_of
from actorq.timing import fastest, time_calls
from actorq.weightencoding import with_weight_encoding
from quantizer_service.emission.emitter import quantize_and_check
from quantizer_service.emission.fidelity import measure
from quantizer_service.emission.inference import open_session, run_session
from quantizer_service.emission.ladder import Ladder
from quantizer_service.emission.prepared_graph import CompactVersion, PreparedGraph

RUN_ID = "quantize"
# A gain needs fewer than this share of fp32's bytes or time. Timings vary by about 5% from call to call.
LEAST_GAIN = 0.95
# The model's weights were read wrongly if more than this share of the rows differs by more than the tolerance. Rounding
# may change single actions.
_CHECKED_ROWS, _WRONG_ROWS = 32, 0.25
_RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE = 1e-2, 1e-5
# Wall-clock time for each batch.
_TIMING_S = 0.5


@dataclass(frozen=True)
class Emitted:
    """A policy in one scheme, as a quantizer would serve it. seconds: time of one call, by batch."""

    scheme: str
    model: bytes
    report: FidelityReport
    seconds: dict[int, float]

    @property
    def is_float(self) -> bool:
        """Whether no layer is quantized."""
        return bool(self.report.layers) and all(layer.in_float for layer in self.report.layers)

    @property
    def refused(self) -> bool:
        """Whether the gate put all layers in float."""
        return not self.report.passed or (self.is_float and bool(self.report.refused))

    def gains(self, fp32: "Emitted") -> bool:
        """Whether the policy is smaller than fp32, or faster at one of the batches."""
        seconds = zip(self.seconds.values(), fp32.seconds.values(), strict=True)
        smaller = len(self.model) < LEAST_GAIN * len(fp32.model)
        return not self.is_float and (smaller or any(own < LEAST_GAIN * of_fp32 for own, of_fp32 in seconds))


@dataclass(frozen=True)
class Comparison:
    """A policy in each scheme, in the order of the schemes, and the error of each failed scheme."""

    emitted: tuple[Emitted, ...]
    failed: dict[str, str]

    def fastest(self, batch: int) -> str:
        """The scheme that `auto` chooses at this batch in an actor that acts with fp32: a built-in one."""
        seconds = {
            item.scheme: item.seconds[batch]
            for item in self.emitted
            if item.scheme == FP32 or (item.scheme in SCHEMES and item.report.passed and not item.is_float)
        }
        return fastest(seconds, SCHEMES)

    def of(self, scheme: str) -> Emitted:
        """The policy in this scheme. Raises UserError, with the reason, if there is none."""
        for item in self.emitted:
            if item.scheme == scheme:
                return item
        raise UserError(f"{scheme}: {self.failed.get(scheme, 'not emitted')}")


def compact(graph: Graph, parameters: Parameters, observations: Batch, options: Options) -> CompactVersion:
    """The policy without its dead units. Raises InvalidInputError when it is not valid.

    observations: rows for every data input, for calibration, errors and timing.
    """
    prepared = PreparedGraph(graph, options)
    checkpoint = Checkpoint(1, 0, graph.source.digest, dict(parameters), dict(observations), 0.0)
    return prepared.without_dead_units(prepared.validated(checkpoint))


def check_read(model: bytes, policy: CompactVersion) -> None:
    """Compare the FP32 policy with the model that it was read from, on a few observations.

    Raises InvalidInputError when an output differs. The weights were then read wrongly.
    """
    parsed = onnx.ModelProto.FromString(model)
    set_ir_version(parsed)
    session = open_session(parsed.SerializeToString(), "model")
    batch = evenly_spaced(policy.checkpoint.calibration, _CHECKED_ROWS)
    rows = 1 if any(value.shape[:1] == [1] for value in session.get_inputs()) else rows_of(batch)
    parts = [{name: array[i : i + rows] for name, array in batch.items()} for i in range(0, rows_of(batch), rows)]
    graph = policy.published.graph
    masks = graph.signature.is_discrete
    expected = [run_session(session, part, rows, "model", graph.outputs, masks=masks) for part in parts]
    read = [policy.published.reference.run(policy.checkpoint.parameters, part) for part in parts]
    for name in expected[0]:
        a, b = (np.concatenate([outputs[name] for outputs in each]) for each in (expected, read))
        difference = np.abs(a - b).max(axis=1)
        tolerance = _RELATIVE_TOLERANCE * np.abs(a).max() + _ABSOLUTE_TOLERANCE
        if np.mean(difference > tolerance) > _WRONG_ROWS:
            raise InvalidInputError(
                f"model: its weights were read wrongly: the output {name!r} differs from the file's by up to "
                f"{difference.max():.2g}; export the policy in another form, and please report this file"
            )


def compare(
    policy: CompactVersion,
    batches: tuple[int, ...],
    thresholds: GateConfig,
    weight_encoding: str = SIGNED,
    call_rows: int = 0,
) -> Comparison:
    """Emit a policy in all schemes through the gate and its ladder, and time the emitted policies.

    batches: batch sizes to time. weight_encoding: of the emitted policies. call_rows: see FidelityGate.

    Raises InvalidInputError when the policy itself does not run.
    """
    emitted, failed = {}, {}
    for name in scheme_names():
        try:
            emitted[name] = emit(policy, name, thresholds, weight_encoding, call_rows)
        except InvalidInputError as error:
            if name == FP32:
                raise
            failed[name] = str(error)
    feeds = policy.checkpoint.calibration
    for batch in batches:
        # The first rows, repeated if needed.
        rows = {name: np.take(array, np.arange(batch) % len(array), axis=0) for name, array in feeds.items()}
        sessions = {name: open_session(item.model, name, arena=True) for name, item in emitted.items()}
        calls = {name: bound_call(session, rows, name) for name, session in sessions.items()}
        for name, seconds in time_calls(calls, _TIMING_S).items():
            emitted[name].seconds[batch] = seconds
    return Comparison(tuple(emitted.values()), failed)


def bound_call(session: ort.InferenceSession, rows: Batch, what: str) -> Callable[[], object]:
    """A call on these rows with bound buffers, as in an actor. Runs once; raises InvalidInputError when that fails."""
    binding = session.io_binding()
    for value in session.get_inputs():
        array = np.ascontiguousarray(rows[value.name])
        binding.bind_cpu_input(value.name, array)
    for value in session.get_outputs():
        binding.bind_output(value.name)

    def call() -> None:
        session.run_with_iobinding(binding)

    try:
        call()
    except Exception as error:  # ONNX Runtime's exceptions share no base class.
        count = len(next(iter(rows.values())))
        raise InvalidInputError(f"{what}: it does not run on {count} rows: {reason_of(error)}") from None
    return call


def standard_errors(policy: CompactVersion, model: bytes, call_rows: int) -> FidelityReport:
    """The errors of a policy in its standard form, which other operators compute. call_rows: see FidelityGate."""
    published, checkpoint = policy.published, policy.checkpoint
    expected = published.reference.run(checkpoint.parameters, checkpoint.calibration)
    return measure(Emission(model, ()), expected, checkpoint.calibration, published.graph.signature, call_rows)


def emit(
    policy: CompactVersion, scheme: str, thresholds: GateConfig, weight_encoding: str, call_rows: int = 0
) -> Emitted:
    """The policy in a scheme, not timed."""
    ladders = [Ladder(scheme)]
    (passed,) = quantize_and_check(RUN_ID, policy, ladders, thresholds, all_rows=True, call_rows=call_rows)
    return Emitted(scheme, with_weight_encoding(passed.model, weight_encoding), passed.report, {})
