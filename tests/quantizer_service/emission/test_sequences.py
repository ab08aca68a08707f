"""The fidelity gate judges the memory of a policy over stored sequences."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from actorq.config.sections import GateConfig, QuantizerConfig
from actorq.domain.policy import Checkpoint, FidelityReport
from actorq.errors import InvalidInputError
from actorq.quantization.graph import Graph
from quantizer_service.emission.emitter import Emitter
from quantizer_service.emission.prepared_graph import PreparedGraph
from quantizer_service.emission.sequences import StoredSequences, state_spans
from quantizer_service.store.policy_files import decode_tensors, encode_tensors
from quantizer_service.store.reader import PolicyReader
from quantizer_service.store.store import PolicyStore
from tests.builders.graphs import graph_of
from tests.quantizer_service import recurrent_graphs
from tests.quantizer_service.policy_graphs import OBSERVATION_SIZE, Tensors, mlp
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.recurrent_graphs import STATE, integrator, parameters, sequences, version

SOURCE = integrator()


def ready(path: Path, gate: GateConfig | None = None) -> Emitter:
    emitter = Emitter(PolicyStore(path, 4, 1), QuantizerConfig(gate=gate or GateConfig()))
    emitter.catalog.claim("run")
    emitter.add_graph(SOURCE)
    return emitter


def report(emitter: Emitter, checkpoint: Checkpoint, scheme: str = "int8") -> FidelityReport:
    (policy,) = emitter.publish(checkpoint, [scheme])
    return policy.descriptor.fidelity


def followed(weights: Tensors, stored: Tensors) -> tuple[Any, Any]:
    """States and actions of the integrator in float64, [T, K, ...], computed here."""
    exact = {name: array.astype(np.float64) for name, array in weights.items()}
    state, states, actions = stored["state"].astype(np.float64), [], []
    for observation in stored["observation"].astype(np.float64):
        features = np.tanh(observation @ exact["in.weight"].T + exact["in.bias"])
        state = state + features @ exact["sum.weight"].T + exact["sum.bias"]
        hidden = np.tanh(state @ exact["act.weight"].T + exact["act.bias"])
        states.append(state)
        actions.append(hidden @ exact["head.weight"].T + exact["head.bias"])
    return np.stack(states), np.stack(actions)


def test_a_policy_that_drifts_is_refused_although_single_steps_are_accurate(tmp_path: Path) -> None:
    """Each step is nearly right, but the rounding errors of the state add up over the steps."""
    single = report(ready(tmp_path / "single"), version(SOURCE, sequences={}))
    assert single.state_drift is None
    assert not single.refused
    assert not single.gated_layers
    found = report(ready(tmp_path / "sequences"), version(SOURCE))
    assert found.refused[0].state_drift is not None
    assert found.refused[0].state_drift > 0.02
    # The other measures are those that pass without sequences.
    assert found.refused[0].relative_mean_error == single.relative_mean_error
    assert found.gated_layers == ("sum",)
    assert {layer.name for layer in found.layers if not layer.in_float} == {"act"}
    assert found.state_drift is not None
    assert found.state_drift <= 0.02


def test_the_threshold_decides(tmp_path: Path) -> None:
    drift = report(ready(tmp_path / "first"), version(SOURCE)).refused[0].state_drift
    assert drift is not None
    for number, (most, refused) in enumerate(((1.01 * drift, 0), (0.99 * drift, 1))):
        found = report(ready(tmp_path / str(number), GateConfig(max_state_drift=most)), version(SOURCE))
        assert len(found.refused) == refused


def test_errors_are_those_of_both_policies_with_their_own_states(tmp_path: Path) -> None:
    """After 1, 8 and the last step, on sequences of different lengths."""
    lengths = (20, 11, 6)
    stored, wrong = sequences(lengths), parameters()
    wrong["sum.bias"] = wrong["sum.bias"] + np.linspace(0.0, 0.03, STATE, dtype=np.float32)
    wrong["head.bias"] = wrong["head.bias"] + np.float32(0.01)
    loaded = StoredSequences.of(stored, Graph.parse(SOURCE))
    assert loaded is not None
    prepared = PreparedGraph(Graph.parse(SOURCE))
    run = prepared.without_dead_units(prepared.validated(version(SOURCE, sequences=stored))).run("run", ())
    other = prepared.reference
    found = run.judge_sequences(lambda inputs: other.run(wrong, inputs))
    (right_states, right_actions), (states, actions) = (followed(each, stored) for each in (parameters(), wrong))
    used = np.arange(20)[:, None] < np.array(lengths)
    ranges = np.concatenate((right_states[used], stored["state"]))
    span = np.maximum(np.ptp(ranges, axis=0), 0.1 * np.ptp(ranges, axis=0).max())
    spans = np.maximum(np.ptp(right_actions[used], axis=0), 0.01 * np.ptp(right_actions[used], axis=0).max())
    assert [each.steps for each in found] == [1, 8, 20]
    for each in found:
        at = np.minimum(each.steps, lengths) - 1, np.arange(3)
        of_state = np.abs(states - right_states)[at] / span
        of_action = np.abs(actions - right_actions)[at] / spans
        assert each.sequences == 3
        assert each.mean_state_error == pytest.approx(of_state.mean(), rel=1e-3)
        assert each.max_state_error == pytest.approx(of_state.max(), rel=1e-3)
        assert each.state_drift == pytest.approx(of_state.mean(axis=0).max(), rel=1e-3)
        assert each.mean_output_error == pytest.approx(of_action.mean(), rel=1e-3)
        assert each.max_output_error == pytest.approx(of_action.max(), rel=1e-3)
    assert found[0].state_drift < found[1].state_drift < found[2].state_drift


def test_float_policies_do_not_drift(tmp_path: Path) -> None:
    found = report(ready(tmp_path), version(SOURCE), "fp32")
    assert [each.steps for each in found.sequences] == [1, 8, 64]
    assert found.state_drift is not None
    assert found.state_drift < 1e-5


def test_short_sequences_have_fewer_horizons(tmp_path: Path) -> None:
    found = report(ready(tmp_path), version(SOURCE, sequences=sequences((5, 1))), "fp32")
    assert [each.steps for each in found.sequences] == [1, 5]


def test_a_policy_without_a_state_has_the_same_report_with_sequences(tmp_path: Path) -> None:
    source, found = mlp(8, 8), []
    for name, stored in (("without", {}), ("with", sequences())):
        emitter = Emitter(PolicyStore(tmp_path / name, 4, 1))
        emitter.catalog.claim("run")
        emitter.add_graph(source)
        found.append(emitter.publish(checkpoint(source, 1, sequences=stored), ["int8"])[0])
    assert found[0] == found[1]
    assert found[0].descriptor.fidelity.sequences == ()


def test_a_stored_version_is_judged_again_on_its_sequences(tmp_path: Path) -> None:
    stored = version(SOURCE)
    loaded = decode_tensors(encode_tensors(stored), "checkpoint")
    for name, array in stored.sequences.items():
        np.testing.assert_array_equal(loaded.sequences[name], array)
    assert loaded.parameters.keys() == stored.parameters.keys()
    ready(tmp_path).publish(stored, ["fp32"])
    store = PolicyReader(tmp_path)
    again = Emitter(store).emit_again(store.checkpoint(1), "int8")
    assert again.descriptor.fidelity.gated_layers == ("sum",)


def test_a_large_policy_is_judged_on_fewer_sequences() -> None:
    loaded = StoredSequences.of(sequences((9, 8, 7, 6)), Graph.parse(SOURCE))
    assert loaded is not None
    assert loaded.at_most(2).lengths.tolist() == [9, 6]
    assert loaded.at_most(0).lengths.tolist() == [9]
    assert loaded.at_most(9) is loaded


def _changed(**arrays: Any) -> Tensors:
    return {**sequences(), **arrays}


BAD = {
    "a missing input": ({name: array for name, array in sequences().items() if name != "state"}, "expected tensors"),
    "lengths that rise": (_changed(lengths=np.array([1, 64], np.int32)), "the longest first"),
    "a length of 0": (_changed(lengths=np.array([64, 0], np.int32)), "from 1 to 64"),
    "too many steps": (_changed(lengths=np.array([65], np.int32)), "from 1 to 64"),
    "lengths of another type": (_changed(lengths=np.array([64.0], np.float32)), "as int32"),
    "too many sequences": (_changed(lengths=np.full(17, 2, np.int32)), "1 to 16 lengths"),
    "a state of another size": (
        _changed(state=np.zeros((6, STATE + 1), np.float32)),
        rf"'state': expected float32\[6, {STATE}\], got float32\[6, {STATE + 1}\]",
    ),
    "too few steps": (_changed(observation=np.zeros((3, 6, OBSERVATION_SIZE), np.float32)), r"'observation': expected"),
    "NaN": (_changed(state=np.full((6, STATE), np.nan, np.float32)), "finite"),
}


@pytest.mark.parametrize(("stored", "fact"), BAD.values(), ids=BAD.keys())
def test_sequences_that_do_not_fit_the_graph_are_refused(stored: Tensors, fact: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=fact) as caught:
        ready(tmp_path).publish(version(SOURCE, sequences=stored), ["fp32"])
    assert "\n" not in str(caught.value)


def test_a_graph_whose_next_state_has_another_size_is_refused() -> None:
    model = onnx.load_from_string(SOURCE.model)
    # The hidden layer of the action takes the place of the state.
    names = {"next_state": "summed", "hidden": "next_state"}
    for node in model.graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
    model.graph.output[1].type.tensor_type.shape.dim[1].dim_value = recurrent_graphs.UNITS
    graph = Graph.parse(graph_of(model.SerializeToString(), ("observation", "state"), False))
    expected = f"'next_state' with {STATE} numbers, as the input 'state' has, got {recurrent_graphs.UNITS}"
    with pytest.raises(InvalidInputError, match=expected):
        PreparedGraph(graph)


def test_numbers_of_a_state_have_their_own_ranges_and_at_least_a_tenth_of_the_widest() -> None:
    states = np.array([[0.0, 1.0, 5.0], [10.0, 3.0, 5.0]], np.float32)
    assert state_spans(states).tolist() == [10.0, 2.0, 1.0]
    assert state_spans(states[:1]).tolist() == [1.0, 1.0, 1.0]
