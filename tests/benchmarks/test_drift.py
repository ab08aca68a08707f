"""The benchmark of policies with memory: its operators compute the same, and its measures are what they say."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch
from onnxruntime.quantization import QuantType

from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.policy import SEQUENCE_LENGTHS
from actorq.domain.signature import NEXT_STATE, Role
from benchmarks.policy.drift.__main__ import AFTER, STEPS, drift, emitted
from benchmarks.policy.drift.networks import followed, make, observations, recalled
from benchmarks.policy.drift.operators import quantized, with_operator


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_operator_computes_the_same_steps_as_the_cell(kind: str) -> None:
    recurrent, observed = make(kind, 12, 16, 0), observations(20, 3, 1)
    with torch.no_grad():
        means, states = (each.numpy() for each in followed(recurrent.policy, observed))
    session = onnxruntime.InferenceSession(with_operator(recurrent, kind))
    state = np.zeros_like(states[0])
    for step, rows in enumerate(observed):
        action, state = session.run(["actions", NEXT_STATE], {OBSERVATIONS: rows, Role.STATE: state})
        np.testing.assert_allclose(action, means[step], atol=1e-4)
        np.testing.assert_allclose(state, states[step + 1], atol=1e-4)


def test_dynamic_quantization_replaces_the_lstm_operator() -> None:
    recurrent, rows = make("lstm", 12, 16, 0), observations(1, 3, 1)[0]
    model = with_operator(recurrent, "lstm")
    feeds = {OBSERVATIONS: rows, Role.STATE: np.zeros((3, 24), np.float32)}
    exact, rounded = (
        onnxruntime.InferenceSession(each).run([NEXT_STATE], feeds)[0]
        for each in (model, quantized(model, QuantType.QInt8))
    )
    assert 0.0 < np.abs(exact - rounded).max() < 0.05


def test_the_task_is_to_recall_the_observation_at_the_last_cue() -> None:
    observed = observations(50, 2, 0)
    target = recalled(observed)
    assert (observed[0, :, 0] == 1.0).all()
    for environment in range(2):
        cues = np.flatnonzero(observed[:, environment, 0])
        for step in (0, 10, 49):
            last = cues[cues <= step][-1]
            np.testing.assert_allclose(target[step, environment], np.tanh(observed[last, environment, 1:7]))


def test_training_lowers_the_error_of_the_task() -> None:
    assert make("gru", 16, 16, 60).error < make("gru", 16, 16, 0).error


def test_cells_with_a_horizon_begin_as_those_of_ppo() -> None:
    plain, slow = (make("gru", 64, 16, 0, horizon=horizon) for horizon in (0, 104))
    kept = [policy.policy.memory.rows(policy.policy.memory.input.bias, 1) for policy in (plain, slow)]  # type: ignore[union-attr]
    # The units forget within 2 to 104 steps: their bias is at most log(103).
    assert kept[1][::2].max() > kept[0].max() + 1.0
    assert slow.name == "gru 64, up to 104 steps, random"
    assert plain.name == "gru 64, random"


def test_the_drift_of_a_policy_with_the_gate_is_measured_over_all_steps() -> None:
    recurrent = make("gru", 16, 16, 0)
    found = drift(recurrent)
    assert tuple(found.after) == AFTER == (1, 8, 64, 256, STEPS)
    assert 0.0 < found.mean_error < found.after[STEPS] < 0.02
    assert emitted(recurrent, "int8").descriptor.fidelity.state_drift == pytest.approx(found.gate)
    # Without sequences, the gate judges single steps only.
    plain = replace(recurrent, checkpoint=replace(recurrent.checkpoint, sequences={}))
    assert drift(plain).gate == 0.0
    assert recurrent.checkpoint.sequences[SEQUENCE_LENGTHS].tolist() == [64] * 16
