"""The FP32 policy of a topology, run on calibration batches: what emitted policies are compared and calibrated with."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from actorq.errors import InvalidInputError
from quantizer_service.graph import Graph
from quantizer_service.inference import open_session, run_session
from quantizer_service.schemes.base import Range

Outputs = dict[str, NDArray[np.float64]]
# More than one, so that what was traced for a batch of one shows.
_TRIAL_ROWS = 2


class Reference:
    """Runs a graph with its parameters as inputs: one session serves all versions.

    Making one loads the graph and runs it once, on zeros. Raises InvalidInputError, with the operator's name and the
    reason, when that fails, an output is not batch first, or the action spans do not fit the first one.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._session = open_session(graph.source.model, "graph")
        self._probes: dict[frozenset[str], Any] = {}
        self._run_once()

    def _run_once(self) -> None:
        zeros: dict[str, NDArray[Any]] = {
            name: np.zeros((_TRIAL_ROWS, *spec.shape), spec.dtype) for name, spec in self._graph.inputs.items()
        }
        zeros |= {name: np.zeros(shape, np.float32) for name, shape in self._graph.parameters.items()}
        # With weights of zero a normalization may well give NaN: here only the operators and shapes count.
        outputs = run_session(self._session, zeros, _TRIAL_ROWS, "graph", trial=True)
        components = next(iter(outputs.values())).shape[1]
        if (spans := len(self._graph.source.action_spans)) not in (0, components):
            raise InvalidInputError(
                f"graph: expected an action span for each of the {components} components of the first output, or "
                f"none, got {spans}"
            )

    def run(self, parameters: Mapping[str, NDArray[Any]], calibration: Mapping[str, NDArray[Any]]) -> Outputs:
        """Every output by name, float64[B, M]; raises InvalidInputError when it does not run or is not finite.

        parameters, calibration: as checked by the graph.
        """
        return run_session(self._session, {**parameters, **calibration}, rows_of(calibration), "FP32 policy")

    def ranges(
        self,
        parameters: Mapping[str, NDArray[Any]],
        calibration: Mapping[str, NDArray[Any]],
        names: Iterable[str],
    ) -> dict[str, Range]:
        """Lowest and highest finite value of each of these tensors of the graph over the batch."""
        wanted = frozenset(names)
        if not wanted:
            return {}
        if wanted not in self._probes:
            self._probes[wanted] = open_session(_with_outputs(self._graph, wanted), "graph")
        session = self._probes[wanted]
        inputs = {value.name for value in session.get_inputs()}
        feeds = {name: array for name, array in {**parameters, **calibration}.items() if name in inputs}
        inner = sorted(wanted - feeds.keys())
        try:
            values = dict(zip(inner, session.run(inner, feeds) if inner else (), strict=True))
        except Exception as error:  # ONNX Runtime's exceptions share no base class.
            reason = " ".join(str(error).split())[:300]
            raise InvalidInputError(f"FP32 policy: it does not run on the calibration batch: {reason}") from None
        values |= {name: feeds[name] for name in wanted & feeds.keys()}
        return {name: _range(array) for name, array in values.items()}


def _range(array: NDArray[Any]) -> Range:
    # A hidden value may overflow where the outputs do not, before a tanh.
    finite = array[np.isfinite(array)] if not np.isfinite(array.sum()) else array
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def rows_of(calibration: Mapping[str, NDArray[Any]]) -> int:
    """Rows of a calibration batch, which all its tensors have."""
    return len(next(iter(calibration.values())))


def _with_outputs(graph: Graph, names: frozenset[str]) -> bytes:
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    present = {value.name for value in (*model.graph.output, *model.graph.input)}
    # Without a type: ONNX Runtime infers it.
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(names - present))
    return bytes(model.SerializeToString())
