"""Running models: the one way in which this service opens an ONNX Runtime session."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from actorq import inference
from actorq.errors import InvalidInputError
from quantizer_service.emission.job import OverdueError, current_job

# It fuses Conv, Add and an activation although the Conv's output is an output of the model. It cannot load the result.
_FUSION_OF_RESIDUALS = "ConvAddActivationFusion"
CALIBRATION_BATCH = "the calibration batch"


def open_session(model: bytes, what: str, arena: bool = False, probe: bool = False) -> ort.InferenceSession:
    """A session as actors open it; raises InvalidInputError when ONNX Runtime refuses the model named `what`.

    Its runs belong to the job of the caller, which can end them: see job.

    arena: keep memory between calls, which makes many calls faster; a session that runs a few times only holds it.
    probe: the model has hidden tensors among its outputs.
    """
    current_job().check()
    try:
        return inference.open_session(model, arena, without=(_FUSION_OF_RESIDUALS,) if probe else ())
    except Exception as error:  # ONNX Runtime's exceptions share no base class.
        reason = " ".join(str(error).split())[:300]
        raise InvalidInputError(
            f"{what}: ONNX Runtime {ort.__version__} cannot load it ({reason}); export it with operators and an opset "
            "that this version has"
        ) from None


def run_session(
    session: ort.InferenceSession, feeds: Mapping[str, NDArray[Any]], rows: int, what: str, trial: bool = False
) -> dict[str, NDArray[np.float64]]:
    """Every output by name, float64[rows, M].

    feeds: may have more than the session takes. Raises InvalidInputError when the model named `what` does not run, an
    output is not batch first, or not finite.

    trial: the feeds are made up: outputs need not be finite.
    """
    batch = f"{rows} rows of zeros" if trial else CALIBRATION_BATCH
    outputs = call_session(session, feeds, f"{what}: it does not run on {batch}")
    return {name: checked_output(output, name, rows, what, trial) for name, output in outputs.items()}


def call_session(session: ort.InferenceSession, feeds: Mapping[str, NDArray[Any]], failure: str) -> dict[str, Any]:
    """Every output by name as it is; raises InvalidInputError that begins with `failure` when the model does not run.

    feeds: may have more than the session takes.
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
        reason = " ".join(str(error).split())[:300]
        raise InvalidInputError(f"{failure}: {reason}") from None
    return dict(zip(names, outputs, strict=True))


def checked_output(output: object, name: str, rows: int, what: str, trial: bool = False) -> NDArray[np.float64]:
    """An output as float64[rows, M]; raises InvalidInputError when it is not batch first, or not finite."""
    if not isinstance(output, np.ndarray) or output.ndim == 0 or len(output) != rows or output.size == 0:
        raise InvalidInputError(
            f"{what}: expected the output {name!r} with {rows} rows, one for each observation, got shape "
            f"{list(getattr(output, 'shape', ()))}; outputs must be batch first"
        )
    if not trial and not np.isfinite(output).all():
        raise InvalidInputError(
            f"{what}: expected finite outputs on the calibration batch, got NaN or infinity in {name!r}"
        )
    return output.reshape(rows, -1).astype(np.float64)
