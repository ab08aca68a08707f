"""Runs the FP32 policy of a graph on calibration batches: the reference for calibration and for fidelity."""

import math
from collections.abc import Iterable, Set
from functools import lru_cache, partial
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from actorq.domain import limits
from actorq.domain.policy import Checkpoint, SequenceError
from actorq.domain.signature import Signature
from actorq.errors import InvalidInputError
from actorq.quantization.calibration import Batch, Observed, Statistic, Statistics, rows_of, summarize
from actorq.quantization.footprint import TRIAL_ROWS
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.layers import BATCH_FIRST_STATES, RECURRENT_OPERATORS
from actorq.wire import bounds
from quantizer_service.emission import inference
from quantizer_service.emission.row_groups import chosen_rows, owners_of, rows_by_group
from quantizer_service.emission.sequences import Step, StoredSequences, Trajectories, sequence_errors

Outputs = dict[str, NDArray[np.float64]]
# Limit of sessions with hidden tensors as outputs. Each set of schemes and rungs needs its own.
_MAX_PROBES = 8
# Limit of weights times rows in the FP32 run of one version: about 25 ms on one core. Three layers of 2048 units still
# get 256 rows. Larger policies get fewer rows, but at least 64.
MAX_WEIGHT_ROWS = 2_400_000_000
MIN_ROWS = 64


class Reference:
    """Runs a graph with its parameters as inputs, so that one session serves all versions.

    The constructor loads the graph and runs it once, on zeros. It raises InvalidInputError, with the operator's name
    and the reason, when:
    - the graph does not run
    - an output is not batch first
    - the action spans do not fit the first output
    - the state after a step has another size than the state before it
    - the graph has more outputs, components or layers than a policy's descriptor allows

    graph: the graph that it runs.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._session = inference.open_session(graph.source.model, "graph")
        self._outputs = graph.outputs
        self._masks = graph.signature.is_discrete
        self._probe = lru_cache(_MAX_PROBES)(partial(_probe, graph))
        # The layers of a group are measured on its own rows.
        self._owners = owners_of(graph.model, graph.signature)
        outputs = self._trial(graph)
        _check_descriptor(graph, outputs)
        components = next(iter(outputs.values())).shape[1]
        if (spans := len(graph.signature.acting.spans)) not in (0, components):
            expected = f"an action span for each of the {components} components of the first output, or none"
            raise InvalidInputError(f"graph: expected {expected}, got {spans}")
        _check_state(graph, outputs)

    def _trial(self, graph: Graph) -> Outputs:
        """The outputs on zeros. If zeros fail, the outputs on ones, because an integer may be a divisor."""
        parameters = {name: np.zeros(shape, np.float32) for name, shape in graph.parameters.items()}
        failures = []
        for make in (np.zeros, np.ones):
            feeds = {name: make((TRIAL_ROWS, *spec.shape), spec.dtype) for name, spec in graph.inputs.items()}
            # Zero weights may cause NaN in a normalization. This run checks only operators and shapes.
            try:
                feeds |= parameters
                return inference.run_session(self._session, feeds, TRIAL_ROWS, "graph", self._outputs, trial=True)
            except InvalidInputError as error:
                failures.append(error)
        raise InvalidInputError(f"{failures[0]}{_remedy(graph)}") from None

    def run(self, parameters: Parameters, calibration: Batch) -> Outputs:
        """Every output by name, float64[B, M]. Raises InvalidInputError when the run fails or gives NaN or infinity.

        parameters, calibration: checked by the graph.
        """
        return self.observe(parameters, calibration, ())[0]

    def follow(self, parameters: Parameters, sequences: StoredSequences) -> Trajectories:
        """The outputs over stored sequences. Raises InvalidInputError when a run fails or gives NaN or infinity."""

        def step(inputs: Batch) -> Outputs:
            feeds = {**parameters, **inputs}
            what = "FP32 policy on stored sequences"
            return inference.run_session(self._session, feeds, rows_of(inputs), what, self._outputs, masks=self._masks)

        return sequences.run(step, self.graph.signature)

    def observe(
        self, parameters: Parameters, calibration: Batch, observed: Iterable[Observed]
    ) -> tuple[Outputs, dict[Observed, NDArray[np.float64]]]:
        """The outputs of `run`, and the given statistics of tensors over the batch, from a single run.

        Statistics of a tensor of one group cover the rows of this group, if there are any.
        """
        wanted, rows = frozenset(observed), rows_of(calibration)
        feeds = {**parameters, **calibration}
        inner = frozenset(name for name, _ in wanted).difference(feeds, self._outputs)
        session = self._probe(inner) if inner else self._session
        values = inference.call_session(
            session, feeds, f"FP32 policy: it does not run on {inference.CALIBRATION_BATCH}"
        )
        found = {name: values[name] for name in self._outputs}
        outputs = inference.checked_outputs(found, rows, "FP32 policy", masks=self._masks)
        values |= feeds
        own = rows_by_group(calibration, self.graph.signature) if self._owners else {}

        def of_owner(tensor: str) -> NDArray[Any]:
            array: NDArray[Any] = values[tensor]
            mask = own.get(self._owners.get(tensor, ""))
            return array if mask is None else array[mask]

        return outputs, {each: summarize(of_owner(each.tensor), each.statistic) for each in wanted}


def _check_state(graph: Graph, outputs: Outputs) -> None:
    """Raise InvalidInputError unless a state after a step fits the state before it."""
    state, following = graph.signature.state, graph.signature.next_state
    if state is None or following is None:
        return
    size = math.prod(graph.inputs[state].shape)
    got = outputs[following].shape[1] if following in outputs else 0
    if got != size:
        raise InvalidInputError(
            f"graph: expected the output {following!r} with {size} numbers, as the input {state!r} has, got "
            f"{got or 'an output that does not depend on the inputs'}"
        )


def _check_descriptor(graph: Graph, outputs: Outputs) -> None:
    """Raise InvalidInputError for a graph whose policies have a descriptor that receivers refuse."""
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
    # The output has no type, because ONNX Runtime infers the type.
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(inner))
    return inference.open_session(model.SerializeToString(), "graph", probe=True)


class ReferenceRun:
    """A validated checkpoint with the outputs of its FP32 policy on `batch`, the observations for the comparison.

    published: runs the published graph.
    compact, parameters: runs the graph without dead units, with these parameters; `published` if all units are live.
    observed: statistics that will be needed; the same run measures them.
    all_rows: compare on the whole calibration batch, even for a large policy.

    Raises InvalidInputError when the policy does not run or its outputs are not finite.
    """

    def __init__(
        self,
        run_id: str,
        checkpoint: Checkpoint,
        published: Reference,
        compact: Reference,
        parameters: Parameters,
        observed: Set[Observed] = frozenset(),
        all_rows: bool = False,
    ) -> None:
        self.run_id, self.checkpoint, self.parameters = run_id, checkpoint, parameters
        self._compact = compact
        weights = sum(array.size for array in checkpoint.parameters.values())
        signature = published.graph.signature
        self.batch = checkpoint.calibration if all_rows else measured_batch(checkpoint.calibration, weights, signature)
        self._published, self._sequences = published, measured_sequences(checkpoint, published.graph)
        self._followed: Trajectories | None = None
        whole = self.batch is checkpoint.calibration
        now = {each for each in observed if whole or each.statistic is not Statistic.RANGE}
        # A compact graph has other hidden tensors. `statistics` runs it when they are needed.
        now = now if compact is published else set()
        self.outputs, self._known = published.observe(checkpoint.parameters, self.batch, now)

    def judge_sequences(self, step: Step) -> tuple[SequenceError, ...]:
        """The errors of an emitted policy over the checkpoint's stored sequences; empty without sequences.

        step: runs the emitted policy.
        """
        if self._sequences is None:
            return ()
        if self._followed is None:
            self._followed = self._published.follow(self.checkpoint.parameters, self._sequences)
        signature = self._published.graph.signature
        return sequence_errors(self._sequences, self._followed, self._sequences.run(step, signature), signature)

    def statistics(self, observed: Set[Observed]) -> Statistics:
        """The given statistics, each measured once: ranges over the whole calibration batch, others over `batch`.

        For a large policy `batch` is only a part of the calibration batch. A part suffices for a mean, but not for a
        maximum.
        """
        missing = observed - self._known.keys()
        ranges = {each for each in missing if each.statistic is Statistic.RANGE}
        for rows, part in ((self.checkpoint.calibration, ranges), (self.batch, missing - ranges)):
            if part:
                self._known.update(self._compact.observe(self.parameters, rows, part)[1])
        return {each: self._known[each] for each in observed}


def measured_batch(calibration: Batch, weights: int, signature: Signature) -> Batch:
    """The rows for comparing a policy with so many weights: all rows, or evenly spaced rows for a large policy.

    Each group of the signature keeps rows.
    """
    return chosen_rows(calibration, signature, max(MIN_ROWS, MAX_WEIGHT_ROWS // max(1, weights)))


def measured_sequences(checkpoint: Checkpoint, graph: Graph) -> StoredSequences | None:
    """The sequences for comparing a checkpoint's policy: all, or fewer for a large policy; None without any.

    Raises InvalidInputError when they do not fit the graph.
    """
    found = StoredSequences.of(checkpoint.sequences, graph)
    if found is None:
        return None
    weights = sum(array.size for array in checkpoint.parameters.values())
    return found.at_most(MAX_WEIGHT_ROWS // max(1, weights * int(found.lengths[0])))
