"""Policies with memory from the learner's network to an actor's states, in every scheme."""

import threading
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from actor_service.acting.behaviors import behavior_policy
from actor_service.acting.collector import SegmentCollector
from actor_service.acting.turns import PolicyTurns
from actor_service.environments import describe_environment, make_environments
from actor_service.policies.comparison import PolicyCheck, compare
from actor_service.policies.policy import PolicySlot, check_state, load_policy
from actor_service.roles.evaluation import EvaluationEpisodes
from actorq import wire
from actorq.config.run_config import RunConfig
from actorq.domain.columns import LOG_PROBABILITIES, state_column
from actorq.domain.policy import SCHEMES, Checkpoint
from actorq.domain.status import Exploration
from actorq.domain.trajectory import Segment
from actorq.errors import InvalidInputError
from actorq.quantization.graph import Graph
from actorq.v1 import trajectory_pb2
from learner_service.algorithms.ppo import PPO
from learner_service.batch import Batch
from learner_service.policy.policy_graph import snapshot_parameters
from learner_service.rollouts.sequences import begins_of
from quantizer_service.emission.prepared_graph import PreparedGraph
from tests.integration.recurrent_policies import HIDDEN, Recurrent

N, LENGTH, SEED = 3, 16, 3
CARTPOLE = describe_environment("CartPole-v1")
PENDULUM = describe_environment("Pendulum-v1")
# Largest error of an output or state in one step.
TOLERANCE = {"fp32": 1e-5, "int8-weights": 0.1, "int8": 0.2, "int8-static": 0.2, "int4": 0.6}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_every_scheme_quantizes_both_products_of_the_cell(scheme: str, kind: str) -> None:
    emission, report = Recurrent(PENDULUM, kind).emission(scheme)
    reasons = {layer.name: layer.reason for layer in emission.layers}
    assert set(reasons) == {"torso.0", "memory.input", "memory.recurrent", "head"}
    quantized = {name for name in ("memory.input", "memory.recurrent") if not reasons[name]}
    assert quantized == (set() if scheme == "fp32" else {"memory.input", "memory.recurrent"})
    inputs, outputs = (
        {value.name: value.type.tensor_type.elem_type for value in values}
        for values in (
            onnx.load_from_string(emission.model).graph.input,
            onnx.load_from_string(emission.model).graph.output,
        )
    )
    assert inputs["state"] == outputs["next_state"] == onnx.TensorProto.FLOAT
    errors = {each.name: max(each.max_errors) for each in report.outputs}
    assert errors["next_state"] <= TOLERANCE[scheme]
    assert (errors["next_state"] > 1e-4) == (scheme != "fp32")
    assert errors["mean"] <= 4 * TOLERANCE[scheme]


def test_dead_units_leave_and_the_state_keeps_its_size() -> None:
    recurrent = Recurrent(CARTPOLE)
    with torch.no_grad():
        # Constant units of the hidden layer, and numbers of the state that nothing reads.
        recurrent.policy.torso[0].weight[:8] = 0.0
        recurrent.policy.memory.recurrent.weight[:, :8] = 0.0
        recurrent.policy.head.weight[:, :8] = 0.0
    parameters, calibration = snapshot_parameters(recurrent.policy), recurrent.calibration()
    checkpoint = Checkpoint(1, 5, recurrent.graph.digest, parameters, calibration, 0.0)
    prepared = PreparedGraph(Graph.parse(recurrent.graph))
    compact = prepared.without_dead_units(prepared.validated(checkpoint))
    assert compact.form.widths == {"torso.0": (HIDDEN, HIDDEN - 8)}
    assert compact.form.graph.inputs["state"].shape == (32,)
    expected = prepared.reference.run(parameters, calibration)
    actual = compact.form.reference.run(compact.parameters, calibration)
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, atol=1e-5)


def collector(slot: PolicySlot, name: str = "CartPole-v1") -> SegmentCollector:
    environments = make_environments(name, N)
    exploration = Exploration((), (), sampling="clipped")
    explore = behavior_policy(environments.spec, exploration, N, np.random.default_rng(1))
    return SegmentCollector(
        environments, PolicyTurns(slot), explore, LENGTH, SEED, columns=explore.columns, sampled=True, state_size=32
    )


def collect(collecting: SegmentCollector) -> Segment:
    segment = collecting.collect(threading.Event())
    assert segment is not None
    return segment


def numbers(segment: Segment, name: str) -> NDArray[np.float32]:
    """A column of a segment."""
    return np.asarray(segment.columns[name], np.float32)


def states_after(recurrent: Recurrent, segment: Segment, before: Any) -> Any:
    """The states before each step of a segment and after the last, as the learner computes them."""
    steps = Batch(valid=segment.valid)
    with torch.no_grad():
        unrolled = recurrent.policy.unrolled(
            torch.from_numpy(np.asarray(segment.observations, np.float32)),
            torch.from_numpy(before),
            torch.from_numpy(begins_of(steps)),
        )
    return unrolled.states.numpy()


def test_segments_hold_the_states_before_their_first_steps() -> None:
    recurrent, slot = Recurrent(CARTPOLE), PolicySlot()
    slot.put(load_policy(recurrent.emitted(), CARTPOLE, N))
    collecting, expected, ends = collector(slot), np.zeros((N, 32), np.float32), 0
    for _ in range(8):
        segment = collect(collecting)
        segment.check(CARTPOLE)
        sent = wire.segment_to_proto(segment).SerializeToString()
        received = wire.segment_from_proto(trajectory_pb2.Segment.FromString(sent))
        stored = numbers(received, "state_32")
        np.testing.assert_allclose(stored, expected, atol=1e-5)
        ends += int((~segment.valid).sum())
        expected = states_after(recurrent, segment, expected)[LENGTH]
    # Some episodes have ended, and states are not zero.
    assert ends > 5
    assert np.abs(expected).max() > 0.01


def test_a_state_is_zero_after_a_fault() -> None:
    """An environment that fails begins an episode, in the middle of its last one."""
    environments, slot = make_environments("environment_doubles:NaNReward-v0", N), PolicySlot()
    spec = environments.spec
    recurrent = Recurrent(spec)
    slot.put(load_policy(recurrent.emitted(), spec, N))
    explore = behavior_policy(spec, Exploration((), (), sampling="clipped"), N, np.random.default_rng(1))
    collecting = SegmentCollector(
        *(environments, PolicyTurns(slot), explore, LENGTH, SEED), columns=explore.columns, state_size=32
    )
    expected, faults = np.zeros((N, 32), np.float32), 0
    for _ in range(4):
        segment = collect(collecting)
        np.testing.assert_allclose(numbers(segment, "state_32"), expected, atol=1e-5)
        faults += int((~segment.valid).sum())
        expected = states_after(recurrent, segment, expected)[LENGTH]
    assert faults > 10
    environments.close()


def test_a_state_goes_on_while_actions_are_uniformly_random() -> None:
    recurrent, slot = Recurrent(CARTPOLE), PolicySlot()
    slot.put(load_policy(recurrent.emitted(), CARTPOLE, N))
    exploration = Exploration((0.0,) * N, (0.0,) * N, random_steps=1_000)
    explore = behavior_policy(CARTPOLE, exploration, N, np.random.default_rng(1))
    environments = make_environments("CartPole-v1", N)
    collecting = SegmentCollector(environments, PolicyTurns(slot), explore, LENGTH, SEED, state_size=32)
    first = collect(collecting)
    expected = states_after(recurrent, first, np.zeros((N, 32), np.float32))[LENGTH]
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(numbers(collect(collecting), "state_32"), expected, atol=1e-5)
    environments.close()


def test_an_actor_compares_schemes_on_the_states_that_it_has_seen() -> None:
    """A wrong product of the state shows only with states that are not zero."""
    reference, wrong = Recurrent(CARTPOLE), Recurrent(CARTPOLE)
    with torch.no_grad():
        wrong.policy.memory.recurrent.weight.mul_(-3.0)
    slot, check = PolicySlot(), PolicyCheck(lambda policy: load_policy(policy, CARTPOLE, N), lambda: None, True)
    slot.put(check.watch(load_policy(reference.emitted(), CARTPOLE, N)))
    collecting = collector(slot)
    for _ in range(3):
        collect(collecting)
    quantized, fp32 = (load_policy(each.emitted(), CARTPOLE, N) for each in (wrong, reference))
    batches, states = check._batches, check._states
    assert len(batches) == len(states) > 10
    assert compare(quantized, fp32, batches, True).error == 0.0
    assert compare(quantized, fp32, batches, True, states).error > 0.01


def test_a_state_survives_a_new_policy() -> None:
    first, second, slot = Recurrent(CARTPOLE, seed=0), Recurrent(CARTPOLE, seed=1), PolicySlot()
    slot.put(load_policy(first.emitted(), CARTPOLE, N))
    collecting = collector(slot)
    segment = collect(collecting)
    expected = states_after(first, segment, np.zeros((N, 32), np.float32))[LENGTH]
    slot.put(load_policy(second.emitted(version=2), CARTPOLE, N))
    following = collect(collecting)
    assert following.spans[0].version == 2
    np.testing.assert_allclose(numbers(following, "state_32"), expected, atol=1e-5)
    after = states_after(second, following, expected)[LENGTH]
    np.testing.assert_allclose(numbers(collect(collecting), "state_32"), after, atol=1e-5)


def test_probabilities_are_those_of_the_learners_policy_with_the_same_states() -> None:
    config = RunConfig.model_validate({"algorithm": "ppo", "memory": {"kind": "gru", "units": 32}, "actors": 1})
    recurrent, slot, algorithm = Recurrent(CARTPOLE), PolicySlot(), PPO(config, CARTPOLE, torch.device("cpu"))
    algorithm.policy = recurrent.policy
    slot.put(load_policy(recurrent.emitted(), CARTPOLE, N))
    segment = collect(collector(slot))
    stored = {state_column(32): numbers(segment, "state_32")[None]}
    steps = Batch(observations=segment.observations, valid=segment.valid, **stored)
    states = algorithm.states(steps)
    observations, rows = segment.observations[:LENGTH].reshape(LENGTH * N, -1), states.reshape(LENGTH * N, -1)
    told = algorithm.log_probabilities(observations, segment.actions.ravel(), {}, rows).reshape(LENGTH, N)
    drawn = numbers(segment, LOG_PROBABILITIES)
    np.testing.assert_allclose(told[segment.valid], drawn[segment.valid], atol=1e-4)


def test_a_policy_with_a_state_of_another_size_is_refused() -> None:
    policy = load_policy(Recurrent(CARTPOLE, "lstm", 8).emitted(), CARTPOLE, N)
    check_state(policy, 16)
    with pytest.raises(InvalidInputError, match="expected a state of 32 numbers, as the run says, got a state of 16"):
        check_state(policy, 32)
    with pytest.raises(InvalidInputError, match="expected no state"):
        check_state(policy, 0)


@pytest.mark.parametrize("rows", [1, 2])
def test_evaluations_keep_a_state_for_each_episode(rows: int) -> None:
    """Environments that act in different calls of the policy have the returns of environments that act alone."""
    recurrent = Recurrent(CARTPOLE)
    policy = recurrent.emitted()
    environments = make_environments("CartPole-v1", 4)
    runner = EvaluationEpisodes(environments, 8, rows=rows)
    found = runner.run(runner.load(policy), 7, 1, threading.Event())
    # The same episodes, with the learner's network.
    plain, expected, shares = make_environments("CartPole-v1", 4), [], np.full(4, 2)
    observations, state = plain.reset(7), torch.zeros(4, 32)
    while shares.any():
        with torch.no_grad():
            logits, state = recurrent.policy(torch.from_numpy(np.asarray(observations, np.float32)), state)
        step = plain.step(logits.argmax(1).numpy())
        observations = step.observations
        state[torch.from_numpy(plain.lengths == 0)] = 0.0
        for episode in step.episodes:
            if shares[episode.environment]:
                shares[episode.environment] -= 1
                expected.append(episode.episode_return)
    assert found.returns == tuple(expected)
    runner.close()
    plain.close()
