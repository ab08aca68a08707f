"""`actorq quantize`: compares an ONNX policy in every scheme, and writes the fastest or a chosen one to a file."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from actorq.arithmetic import arithmetic
from actorq.config import settings
from actorq.config.numbers import NonNegativeFloat, NonNegativeInt, PositiveFloat, Whole
from actorq.config.parser import OneLineParser
from actorq.config.schemes import ENCODING_HELP, FORM_HELP, STANDARD, ExportEncoding, Form, SchemeChoice
from actorq.config.sections import NO_LIMITS, GateConfig, QuantizerConfig
from actorq.config.settings import DefaultText, Settings
from actorq.domain.policy import AUTO, SIGNED
from actorq.errors import InvalidInputError, UserError
from actorq.process import EXIT_OK, EXIT_REFUSED
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options
from actorq.quantization.standard_form import opset_of, standard_form
from actorq.start import run_command
from actorq.statefiles.files import replace_file
from actorq.weightencoding import weight_encoding_of, with_weight_encoding
from quantizer_service.command.comparison import Comparison, check_read, compact, compare, emit, standard_errors
from quantizer_service.command.model_files import RANDOM_ROWS, random_observations, read_model, read_observations
from quantizer_service.command.table import print_table
from quantizer_service.emission.inference import CALIBRATION_BATCH
from quantizer_service.emission.prepared_graph import CompactVersion

_PROGRAM = "actorq quantize"
_DESCRIPTION = """Quantize an ONNX policy of any library and compare the schemes: bytes, microseconds per call, errors
of each action component relative to its range, and the verdict of the fidelity gate. Masked actions (-1e7 or lower) are
left out. Actions that are whole numbers are compared row by row. A first output named logits, or outputs named mean and
log_std, describe a distribution: the gate then judges the KL divergence. Each row is the policy that a quantizer would
serve, except with --int8-storage. If the gate refuses a scheme, its most sensitive layers stay in float, and in the end
all layers. * marks the --scheme; auto chooses the fastest scheme that passes at --batch. Settings of this command are
flags only. Exit codes: 0; 2 for invalid input; 7 for a --scheme that the gate refused. After 2 and 7 nothing is
written."""

_ARTIFICIAL = "; the observations are random and may be impossible: give --calibration with observations of this policy"
_TABLE_BATCHES = (1, 32)
# The quantizer's settings. Some settings of this command repeat them.
_SETTINGS = QuantizerConfig.model_fields


class QuantizeSettings(Settings):
    """The schemes to compare, the data for the comparison, and the output file."""

    scheme: SchemeChoice = Field("auto", description="scheme to write; auto: the fastest that passes")
    calibration: Annotated[Path | None, DefaultText(f"{RANDOM_ROWS} random rows")] = Field(
        None, description=".npz of observations: an array [rows, ...] for each data input, by its name"
    )
    weight_encoding: ExportEncoding = Field(None, description=ENCODING_HELP)
    form: Form = Field("onnxruntime", description=FORM_HELP)
    output: Annotated[Path | None, DefaultText("only compare")] = Field(None, description="file to write")
    force: bool = Field(False, description="replace an existing file, and write a scheme that the gate refused")
    batch: Annotated[Whole, Field(gt=0, le=65_536)] = Field(
        1, description="environments that an actor steps as one batch: rows of a call, for the errors and for auto"
    )
    discrete_actions: Annotated[bool, DefaultText("no; yes for an integer output, or one named logits")] = Field(
        False,
        description="the first output has a value for each action, or is the action: the gate checks agreement and "
        "value loss over the legal actions, not errors",
    )
    action_spans: Annotated[
        tuple[PositiveFloat, ...], DefaultText("each component's own range in the observed outputs")
    ] = Field((), description="highest minus lowest action of each component")
    seed: NonNegativeInt = Field(0, description="seed of random observations")
    quantize_ends: bool = Field(False, description=_SETTINGS["quantize_ends"].description)
    per_tensor_error: NonNegativeFloat = Field(
        _SETTINGS["per_tensor_error"].default, description=_SETTINGS["per_tensor_error"].description
    )
    int8_storage: bool = Field(
        True,
        description="store the weights of layers that stay in float as int8, with a scale for each channel; "
        "a call computes them in float32; quantizers do not use this form",
    )
    compensate: bool = Field(True, description="compensate for the rounding of weights, as quantizers do")
    gate: GateConfig = GateConfig()


def command() -> int:
    """Run as a command, whose table reports the ladder's results."""
    logging.getLogger("quantizer_service.emission.ladder").setLevel(logging.ERROR)
    return run_command(run)


def run(arguments: Sequence[str] | None = None) -> int:
    """Compare the schemes, print the table, and write the chosen policy."""
    path, how = _parse(arguments)
    if how.output is not None:
        _check_output(how.output, how.force)
    batches = tuple(sorted({*_TABLE_BATCHES, how.batch}))
    # Most other runtimes expect signed weights.
    encoding = how.weight_encoding or (SIGNED if how.form == STANDARD else arithmetic().weight_encoding)
    try:
        policy = _read(path, how)
        comparison = compare(policy, batches, how.gate, encoding, how.batch)
    except InvalidInputError as error:
        artificial = how.calibration is None and CALIBRATION_BATCH in str(error)
        raise UserError(f"{path}: {error}{_ARTIFICIAL if artificial else ''}") from None
    scheme = comparison.fastest(how.batch) if how.scheme == AUTO else how.scheme
    print_table(comparison, batches, scheme)
    _say_what_it_means(comparison, how, scheme)
    chosen = comparison.of(scheme)
    if chosen.refused and not how.force:
        sys.stderr.write(
            f"error: {scheme}: the fidelity gate refused it, so nothing is written; give another --scheme, wider "
            "thresholds (--gate.*), or --force to write it all the same\n"
        )
        return EXIT_REFUSED
    if how.output is not None:
        model = emit(policy, scheme, NO_LIMITS, encoding).model if chosen.refused else chosen.model
        if how.form == STANDARD:
            model = _in_standard_form(path, policy, model, how)
        written = weight_encoding_of(model)
        _write(how.output, f"{scheme} with {written} weights" if written else scheme, model)
        if chosen.refused:
            sys.stderr.write(f"warning: the fidelity gate refused {scheme}; written because of --force\n")
    return EXIT_OK


def _parse(arguments: Sequence[str] | None) -> tuple[Path, QuantizeSettings]:
    parser = OneLineParser(prog=_PROGRAM, usage=f"{_PROGRAM} MODEL.onnx [flags]", description=_DESCRIPTION)
    parser.add_argument("model", type=Path, metavar="MODEL.onnx", help="the policy, complete with its weights")
    settings.add_flags(parser, QuantizeSettings, "quantize")
    parser.add_argument("-o", dest="output", type=Path, metavar="OUT.onnx", help="the same as --output")
    namespace = parser.parse_args(arguments)
    return namespace.model, settings.build(QuantizeSettings, settings.from_flags(QuantizeSettings, namespace))


def _read(path: Path, how: QuantizeSettings) -> CompactVersion:
    model = read_model(path)
    graph, parameters = Graph.from_model(model, how.discrete_actions, how.action_spans)
    if how.calibration is None:
        observations = random_observations(graph, how.seed)
    else:
        observations = read_observations(how.calibration, graph)
        try:
            graph.check_calibration(observations)
        except InvalidInputError as error:
            raise UserError(f"{how.calibration}: {error}") from None
    options = Options(how.quantize_ends, how.per_tensor_error, compensate=how.compensate, int8_storage=how.int8_storage)
    policy = compact(graph, parameters, observations, options)
    check_read(model, policy)
    return policy


def _in_standard_form(path: Path, policy: CompactVersion, model: bytes, how: QuantizeSettings) -> bytes:
    """The model in operators of the ONNX standard. Prints its errors, because they may differ from the policy's."""
    try:
        form = standard_form(model)
        exact = standard_form(with_weight_encoding(model, arithmetic().weight_encoding))
        report = standard_errors(policy, exact, how.batch)
    except InvalidInputError as error:
        raise UserError(f"{path}: the standard form: {error}") from None
    errors = f"mean error {report.relative_mean_error:.2%}, max error {report.relative_max_error:.2%}"
    _say(f"the standard form: opset {opset_of(form)}, {errors}")
    return form


def _say_what_it_means(comparison: Comparison, how: QuantizeSettings, chosen: str) -> None:
    rows = comparison.emitted[0].report.observations
    if how.calibration is None:
        drawn = f"{rows} random observations (standard normal; seed {how.seed})"
        _say(f"errors on {drawn} are only indicative: give --calibration for real ones")
    else:
        _say(f"errors on {rows} observations of {how.calibration}")
    _say(f"auto chooses {chosen} at batch {how.batch}" if how.scheme == AUTO else f"the scheme is {chosen}")


def _check_output(path: Path, force: bool) -> None:
    if path.is_dir():
        raise UserError(f"--output: {path} is a folder; name the file to write")
    if path.exists() and not force:
        raise UserError(f"--output: {path} is there already; give --force to replace it, or another name")
    if not path.parent.is_dir():
        raise UserError(f"--output: there is no folder {path.parent}")


def _write(path: Path, what: str, model: bytes) -> None:
    try:
        replace_file(path, model, sync=True)
    except OSError as error:
        raise UserError(f"--output: cannot write {path}: {error.strerror}") from None
    _say(f"{path}: {what}, {len(model):,} bytes")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
