"""Judges the memory of an emitted policy: runs it and FP32 over stored sequences, each with its own state."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.limits import MAX_MAGNITUDE, MAX_SEQUENCE_STEPS, MAX_SEQUENCES
from actorq.domain.policy import SEQUENCE_LENGTHS, SequenceError
from actorq.domain.signature import Signature
from actorq.errors import InvalidInputError
from actorq.quantization.calibration import Batch
from actorq.quantization.graph import Graph
from quantizer_service.emission import action_errors

# Numbers of steps after which states are compared, besides the last step of the longest sequence.
HORIZONS = (1, 8)
# Lower bound of the range of a number of the state, as a share of the widest range.
LEAST_SHARE = 0.1

Step = Callable[[Batch], Mapping[str, NDArray[np.float64]]]
"""Runs a policy on a batch. Returns its outputs by name, float64[B, M]."""


@dataclass(frozen=True)
class StoredSequences:
    """K stored sequences of the inputs of a graph with a state.

    inputs: for each data input but the state, [T, K, ...]. states: before the first steps, [K, S].
    lengths: steps of each sequence, int64[K], the longest (T) first.
    """

    inputs: Mapping[str, NDArray[Any]]
    states: NDArray[Any]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], graph: Graph) -> "StoredSequences | None":
        """The sequences of a checkpoint (see `Checkpoint`); None without any, and for a graph without a state.

        Raises InvalidInputError when they do not fit the graph, or are not finite.
        """
        state = graph.signature.state
        if state is None or not arrays:
            return None
        expected = {SEQUENCE_LENGTHS, *graph.inputs}
        if arrays.keys() != expected:
            raise InvalidInputError(f"sequences: expected tensors {sorted(expected)}, got {sorted(arrays)}")
        lengths = _checked_lengths(arrays[SEQUENCE_LENGTHS])
        steps, count = int(lengths[0]), len(lengths)
        for name, spec in graph.inputs.items():
            array = arrays[name]
            shape = (count, *spec.shape) if name == state else (steps, count, *spec.shape)
            if array.dtype != spec.dtype or array.shape != shape:
                raise InvalidInputError(
                    f"sequences {name!r}: expected {spec.dtype}{list(shape)}, got {array.dtype}{list(array.shape)}"
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise InvalidInputError(f"sequences {name!r}: expected finite values, got NaN or infinity")
        inputs = {name: arrays[name] for name in graph.inputs if name != state}
        return cls(inputs, arrays[state], lengths)

    def at_most(self, count: int) -> "StoredSequences":
        """At most this many of the sequences, evenly spaced, with the longest one."""
        if count >= len(self.lengths):
            return self
        chosen = np.linspace(0, len(self.lengths) - 1, max(1, count)).round().astype(np.intp)
        inputs = {name: array[:, chosen] for name, array in self.inputs.items()}
        return StoredSequences(inputs, self.states[chosen], self.lengths[chosen])

    def arrays(self, graph: Graph) -> dict[str, NDArray[Any]]:
        """The tensors of `of`."""
        lengths = {SEQUENCE_LENGTHS: self.lengths.astype(np.int32)}
        return {**lengths, **self.inputs, **dict.fromkeys(graph.inputs.keys() - self.inputs.keys(), self.states)}

    @property
    def used(self) -> NDArray[np.bool_]:
        """Which steps belong to a sequence, bool[T, K]."""
        mask: NDArray[np.bool_] = np.arange(self.lengths[0])[:, None] < self.lengths
        return mask

    def run(self, step: Step, signature: Signature) -> "Trajectories":
        """Run a policy over all sequences at once. Its own state goes from each step to the next."""
        acting, state, following = signature.acting.name, signature.state, signature.next_state
        assert state is not None
        assert following is not None
        before, actions, states = self.states, [], []
        for number in range(int(self.lengths[0])):
            # Sequences end in the reverse order, so the running ones are the first rows.
            running = int(np.count_nonzero(self.lengths > number))
            feeds = {name: array[number, :running] for name, array in self.inputs.items()}
            outputs = step({**feeds, state: before[:running]})
            before = outputs[following].astype(self.states.dtype).reshape(running, *self.states.shape[1:])
            actions.append(_padded(outputs[acting], len(self.lengths)))
            states.append(_padded(outputs[following], len(self.lengths)))
        return Trajectories(np.stack(actions), np.stack(states))


def _padded(rows: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    return np.concatenate((rows, np.zeros((count - len(rows), rows.shape[1]))))


@dataclass(frozen=True)
class Trajectories:
    """Acting outputs [T, K, M] and states after each step [T, K, S], both float64. Unused steps are zero."""

    actions: NDArray[np.float64]
    states: NDArray[np.float64]


def sequence_errors(
    sequences: StoredSequences, expected: Trajectories, emitted: Trajectories, signature: Signature
) -> tuple[SequenceError, ...]:
    """The errors of an emitted policy after each of `HORIZONS`, and after the last steps."""
    used, longest = sequences.used, int(sequences.lengths[0])
    seen = np.concatenate((expected.states[used], sequences.states.reshape(len(sequences.states), -1)))
    actions = np.where(used[..., None], _relative(expected.actions, emitted.actions, used, signature), 0.0)
    states = np.abs(emitted.states - expected.states) / state_spans(seen)
    found = []
    for steps in sorted({*(each for each in HORIZONS if each < longest), longest}):
        at = np.minimum(steps, sequences.lengths) - 1, np.arange(len(sequences.lengths))
        of_state, of_action = states[at], actions[at]
        found.append(
            SequenceError(
                steps=steps,
                sequences=len(sequences.lengths),
                mean_state_error=_bounded(of_state.mean()),
                max_state_error=_bounded(of_state.max()),
                state_drift=_bounded(of_state.mean(axis=0).max()),
                mean_output_error=_bounded(of_action.mean()),
                max_output_error=_bounded(of_action.max()),
            )
        )
    return tuple(found)


def state_spans(states: NDArray[Any]) -> NDArray[np.float64]:
    """The divisor of the errors of each number of a state, float64[S]. states: FP32 states [B, S].

    It is the number's own range, because the parts of a state may have very different ranges. It is at least
    `LEAST_SHARE` of the widest range, because the rounding of a number that hardly moves hardly matters.
    """
    ranges = np.ptp(np.asarray(states, np.float64), axis=0)
    spans: NDArray[np.float64] = np.maximum(ranges, LEAST_SHARE * float(ranges.max()) or 1.0)
    return spans


def _relative(
    expected: NDArray[np.float64], emitted: NDArray[np.float64], used: NDArray[np.bool_], signature: Signature
) -> NDArray[np.float64]:
    """|emitted - expected| of the acting output, relative to the spans as in `measure`, [T, K, M]."""
    errors = np.abs(emitted - expected)
    if signature.acting.spans:
        return np.asarray(errors / np.array(signature.acting.spans))
    rows = expected[used]
    legal = action_errors.legal_actions(rows)
    spans, _ = action_errors.observed_spans(rows, legal, signature.is_discrete)
    counted = np.zeros(errors.shape, np.bool_)
    counted[used] = legal | (emitted[used] > action_errors.HIGHEST_MASK)
    return np.where(counted, errors / spans, 0.0)


def _bounded(error: Any) -> float:
    return float(error) if error <= MAX_MAGNITUDE else float("inf")


def _checked_lengths(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """The lengths of K sequences, int64[K]. Raises InvalidInputError unless they are in range, the longest first."""
    good = lengths.dtype == np.int32 and lengths.ndim == 1 and 1 <= len(lengths) <= MAX_SEQUENCES
    if not good or lengths[0] > MAX_SEQUENCE_STEPS or lengths[-1] < 1 or (np.diff(lengths) > 0).any():
        raise InvalidInputError(
            f"sequences: expected 1 to {MAX_SEQUENCES} lengths from 1 to {MAX_SEQUENCE_STEPS} as int32, the longest "
            f"first, got {lengths.dtype}{_first(lengths)}"
        )
    return lengths.astype(np.int64)


def _first(lengths: NDArray[Any]) -> Sequence[Any]:
    return list(lengths.shape) if lengths.ndim != 1 else lengths[:20].tolist()
