"""Runs the FP32 policy of a graph on calibration batches, as the reference for calibration and fidelity."""

from collections.abc import Iterable
from functools import lru_cache, partial

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from actorq.domain import limits
from actorq.errors import InvalidInputError
from actorq.quantization.calibration import Batch, Observed, rows_of, summarize
from actorq.quantization.footprint import TRIAL_ROWS
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.layers import BATCH_FIRST_STATES, RECURRENT_OPERATORS
from actorq.wire import bounds
from quantizer_service.emission.inference import (
    CALIBRATION_BATCH,
    call_session,
    checked_outputs,
    open_session,
    run_session,
)

Outputs = dict[str, NDArray[np.float64]]
# Limit of sessions with hidden tensors as outputs. Each set of schemes and rungs needs its own.
_MAX_PROBES = 8


class Reference:
    """Runs a graph with its parameters as inputs, so that one session serves all versions.

    The constructor loads the graph and runs it once, on zeros. Raises InvalidInputError, with the operator's name and
    the reason, when that fails, an output is not batch first, or the action spans do not fit the first output. It also
    raises InvalidInputError for more outputs, components or layers than a policy's descriptor may have.
    """

    def __init__(self, graph: Graph) -> None:
        self._session = open_session(graph.source.model, "graph")
        self._outputs = graph.outputs
        self._masks = graph.signature.is_discrete
        self._probe = lru_cache(_MAX_PROBES)(partial(_probe, graph))
        outputs = self._trial(graph)
        _check_descriptor(graph, outputs)
        components = next(iter(outputs.values())).shape[1]
        if (spans := len(graph.signature.acting.spans)) not in (0, components):
            raise InvalidInputError(
                f"graph: expected an action span for each of the {components} components of the first output, or "
                f"none, got {spans}"
            )

    def _trial(self, graph: Graph) -> Outputs:
        """The outputs on zeros, or else on ones: an integer may be a divisor."""
        parameters = {name: np.zeros(shape, np.float32) for name, shape in graph.parameters.items()}
        failures = []
        for make in (np.zeros, np.ones):
            feeds = {name: make((TRIAL_ROWS, *spec.shape), spec.dtype) for name, spec in graph.inputs.items()}
            # Zero weights may cause NaN in a normalization. This run checks only operators and shapes.
            try:
                feeds |= parameters
                return run_session(self._session, feeds, TRIAL_ROWS, "graph", self._outputs, trial=True)
            except InvalidInputError as error:
                failures.append(error)
        raise InvalidInputError(f"{failures[0]}{_remedy(graph)}") from None

    def run(self, parameters: Parameters, calibration: Batch) -> Outputs:
        """Every output by name, float64[B, M]. Raises InvalidInputError when the run fails or gives NaN or infinity.

        parameters, calibration: checked by the graph.
        """
        return self.observe(parameters, calibration, ())[0]

    def observe(
        self, parameters: Parameters, calibration: Batch, observed: Iterable[Observed]
    ) -> tuple[Outputs, dict[Observed, NDArray[np.float64]]]:
        """The outputs of `run`, and the given statistics of tensors over the batch, from a single run."""
        wanted, rows = frozenset(observed), rows_of(calibration)
        feeds = {**parameters, **calibration}
        inner = frozenset(name for name, _ in wanted).difference(feeds, self._outputs)
        session = self._probe(inner) if inner else self._session
        values = call_session(session, feeds, f"FP32 policy: it does not run on {CALIBRATION_BATCH}")
        found = {name: values[name] for name in self._outputs}
        outputs = checked_outputs(found, rows, "FP32 policy", masks=self._masks)
        values |= feeds
        return outputs, {each: summarize(values[each.tensor], each.statistic) for each in wanted}


def _check_descriptor(graph: Graph, outputs: Outputs) -> None:
    """Raise InvalidInputError for a graph whose policies no receiver takes, because it refuses their descriptors."""
    # A descriptor has two errors for each component and must fit a message.
    components = sum(output.shape[1] for output in outputs.values())
    bounds.within("graph: components of all outputs", components, 1, limits.MAX_OUTPUT_COMPONENTS)
    layers = [name for name, shape in graph.parameters.items() if len(shape) > 1]
    bounds.items("graph: weights of layers", layers, limits.MAX_LAYERS)
    for name in (*outputs, *layers):
        bounds.text("graph: name of an output or weight", name)


def _remedy(graph: Graph) -> str:
    """The likely remedy for a graph that does not run on a batch of several rows; empty when unknown."""
    operators = {node.op_type for node in graph.model.graph.node}
    if operators & set(RECURRENT_OPERATORS):
        return f"; {BATCH_FIRST_STATES}"
    if "Reshape" in operators:
        return (
            "; a Reshape may hold the batch of the export: export with a free batch (dynamic_shapes), and write "
            "x.flatten(1) or x.reshape(-1, ...) in the policy"
        )
    return ""


def _probe(graph: Graph, inner: frozenset[str]) -> ort.InferenceSession:
    """A session with these tensors as additional outputs."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    # Without a type: ONNX Runtime infers it.
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(inner))
    return open_session(model.SerializeToString(), "graph", probe=True)
