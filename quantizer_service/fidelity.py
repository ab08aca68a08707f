"""How far an emitted policy is from its FP32 origin, measured by running both."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.errors import InvalidInputError
from actorq.policy import FidelityReport
from quantizer_service.graph import Graph
from quantizer_service.inference import open_session


class Reference:
    """The FP32 policy of a topology, with its parameters as inputs: one session serves all versions."""

    def __init__(self, graph: Graph) -> None:
        self._session = open_session(graph.source.model, "graph")
        # An input that no node reads is not an input of the session.
        self._inputs = {value.name for value in self._session.get_inputs()}

    def run(
        self, parameters: Mapping[str, NDArray[Any]], calibration: Mapping[str, NDArray[Any]]
    ) -> NDArray[np.float64]:
        """The first output for each row, float64[B, M]; raises InvalidInputError when it cannot run or is not finite.

        parameters, calibration: as checked by the graph.
        """
        feeds = {name: array for name, array in {**parameters, **calibration}.items() if name in self._inputs}
        return _run(self._session, feeds, _rows(calibration), "FP32 policy")


def measure(
    model: bytes,
    expected: NDArray[np.float64],
    calibration: Mapping[str, NDArray[Any]],
    discrete_actions: bool,
    float_layers: tuple[str, ...],
) -> FidelityReport:
    """Compare an emitted model's first output with `expected`, float64[B, M], on the same batch.

    Relative errors are divided by the range of `expected`, or by 1 where all its values are equal. Raises
    InvalidInputError when the model cannot run or its outputs are not finite.
    """
    session = open_session(model, "emitted policy")
    inputs = {value.name for value in session.get_inputs()}
    feeds = {name: array for name, array in calibration.items() if name in inputs}
    outputs = _run(session, feeds, _rows(calibration), "emitted policy")
    error = np.abs(outputs - expected)
    mean, largest = float(error.mean()), float(error.max())
    span = float(expected.max() - expected.min()) or 1.0
    agreement = float((outputs.argmax(1) == expected.argmax(1)).mean()) if discrete_actions else None
    return FidelityReport(
        observations=len(expected),
        mean_error=mean,
        max_error=largest,
        relative_mean_error=mean / span,
        relative_max_error=largest / span,
        argmax_agreement=agreement,
        float_layers=float_layers,
    )


def _rows(calibration: Mapping[str, NDArray[Any]]) -> int:
    return len(next(iter(calibration.values())))


def _run(session: Any, feeds: dict[str, NDArray[Any]], rows: int, what: str) -> NDArray[np.float64]:
    try:
        output = session.run([session.get_outputs()[0].name], feeds)[0]
    except Exception as error:  # ONNX Runtime's exceptions share no base class.
        reason = " ".join(str(error).split())[:300]
        raise InvalidInputError(f"{what}: it does not run on the calibration batch: {reason}") from None
    if not isinstance(output, np.ndarray) or output.ndim == 0 or len(output) != rows or output.size == 0:
        raise InvalidInputError(
            f"{what}: expected a first output with {rows} rows, one for each observation, got shape "
            f"{list(np.shape(output))}; outputs must be batch first"
        )
    if not np.isfinite(output).all():
        raise InvalidInputError(f"{what}: expected finite outputs on the calibration batch, got NaN or infinity")
    return output.reshape(rows, -1).astype(np.float64)
