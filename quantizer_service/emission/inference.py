"""Opens and runs all ONNX Runtime sessions of the quantizer."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from actorq.arithmetic import sessions
from actorq.errors import InvalidInputError
from actorq.text import reason_of
from quantizer_service.emission.job import OverdueError, current_job

# ONNX Runtime's fusion of Conv, Add and an activation. It also fuses a Conv whose output is an output of the model, and
# then fails to load the result.
_FUSION_OF_RESIDUALS = "ConvAddActivationFusion"
CALIBRATION_BATCH = "the calibration batch"


def open_session(model: bytes, what: str, arena: bool = False, probe: bool = False) -> ort.InferenceSession:
    """A session with an actor's options. Raises InvalidInputError when ONNX Runtime refuses the model named `what`.

    The caller's job can end its runs; see job.

    arena: keep memory between calls. Makes many calls faster, but wastes memory for a few calls.
    probe: the model has hidden tensors among its outputs.
    """
    current_job().check()
    try:
        return sessions.open_session(model, arena, without=(_FUSION_OF_RESIDUALS,) if probe else ())
    except Exception as error:  # ONNX Runtime's exceptions share no base class.
        raise InvalidInputError(
            f"{what}: ONNX Runtime {ort.__version__} cannot load it ({reason_of(error)}); export it with operators and "
            "an opset that this version supports"
        ) from None


def run_session(
    session: ort.InferenceSession,
    feeds: Mapping[str, NDArray[Any]],
    rows: int,
    what: str,
    names: Iterable[str],
    trial: bool = False,
    masks: bool = False,
) -> dict[str, NDArray[np.float64]]:
    """The outputs of these names, float64[rows, M].

    feeds, failures: see `call_session`. masks, further failures: see `checked_outputs`.
    trial: the feeds are artificial, so outputs may be NaN or infinite.
    """
    batch = f"{rows} rows of zeros" if trial else CALIBRATION_BATCH
    outputs = call_session(session, feeds, f"{what}: it does not run on {batch}")
    return checked_outputs({name: outputs[name] for name in names}, rows, what, trial, masks)


def call_session(session: ort.InferenceSession, feeds: Mapping[str, NDArray[Any]], failure: str) -> dict[str, Any]:
    """Every raw output by name. Raises InvalidInputError when the model does not run. failure: start of the error text.

    feeds: inputs by name. Unknown names are ignored.
    """
    # An input that no node reads is not an input of the session.
    inputs = {value.name for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    try:
        with current_job().run_options() as options:
            outputs = session.run(names, {name: array for name, array in feeds.items() if name in inputs}, options)
    except OverdueError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions share no base class.
        raise InvalidInputError(f"{failure}: {reason_of(error)}") from None
    return dict(zip(names, outputs, strict=True))


def checked_outputs(
    outputs: Mapping[str, object], rows: int, what: str, trial: bool = False, masks: bool = False
) -> dict[str, NDArray[np.float64]]:
    """Outputs as float64[rows, M], in their order.

    Raises InvalidInputError for an output that is not batch first or not finite.

    masks: the first output has a value for each action. -inf marks a forbidden action, if the row has a legal one. The
        lowest float32 replaces it.
    """
    first = next(iter(outputs))
    return {name: _checked(each, name, rows, what, trial, masks and name == first) for name, each in outputs.items()}


def _checked(output: object, name: str, rows: int, what: str, trial: bool, masks: bool) -> NDArray[np.float64]:
    if not isinstance(output, np.ndarray) or output.ndim == 0 or len(output) != rows or output.size == 0:
        raise InvalidInputError(
            f"{what}: expected the output {name!r} with {rows} rows, one for each observation, got shape "
            f"{list(getattr(output, 'shape', ()))}; outputs must be batch first"
        )
    values = output.reshape(rows, -1).astype(np.float64)
    if trial or np.isfinite(values).all():
        return values
    masked = np.isneginf(values)
    if masks and not masked.all(axis=1).any():
        values[masked] = np.finfo(np.float32).min
    if not np.isfinite(values).all():
        marks = "; if -inf marks actions that are not allowed, give --discrete-actions"
        remedy = marks if masked.any() and not masks else ""
        raise InvalidInputError(
            f"{what}: expected finite outputs on the calibration batch, got NaN or infinity in {name!r}{remedy}"
        )
    return values
