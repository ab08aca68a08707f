"""The chaos run with memory finds states of other episodes, and proves that it would find them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actorq.config.memory import MemoryConfig
from actorq.domain.policy import Checkpoint
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from benchmarks.faults.chaos.environment import CodedEnvironment, codes_of, places_of
from benchmarks.faults.chaos.states import UNITS, FrozenPolicy, Starts, StateVerdict, judge_states
from learner_service.networks import SoftmaxPolicy
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, snapshot_parameters
from tests.builders.stored_policies import stored_run

SPEC = EnvironmentSpec("Coded-v0", ArraySpec((4,), "float32"), ArraySpec((), "int64"), sizes=(2,))
EVERY = 32

Rows = NDArray[np.float32]


def network() -> SoftmaxPolicy:
    torch.manual_seed(3)
    made = SoftmaxPolicy(SPEC, (32, 32), activation="tanh", memory=MemoryConfig(kind="gru", units=UNITS))
    # As PPO begins.
    made.make_orthogonal(0.01, hidden=True)
    return made


def acted(policy: SoftmaxPolicy, episodes: int) -> tuple[Rows, Rows]:
    """The observations of all steps of one environment, and the states before them."""
    environment, observations, states = CodedEnvironment(), [], []
    observed, _ = environment.reset(seed=1)
    state = torch.zeros(1, UNITS)
    while episodes:
        observations.append(observed)
        states.append(state[0].numpy())
        with torch.no_grad():
            _, state = policy(torch.from_numpy(observed)[None], state)
        observed, _, terminated, _, _ = environment.step(np.int64(0))
        if terminated:
            observed, _ = environment.reset()
            state, episodes = torch.zeros(1, UNITS), episodes - 1
    return np.stack(observations), np.stack(states)


class Step:
    """The states after a step, in FP32."""

    def __init__(self, policy: SoftmaxPolicy) -> None:
        self._policy = policy

    def __call__(self, observations: Rows, states: Rows) -> Rows:
        with torch.no_grad():
            _, following = self._policy(torch.from_numpy(observations), torch.from_numpy(states))
        return np.asarray(following.numpy(), np.float32)


def judged(observations: Rows, states: Rows, starts: NDArray[np.int64], policy: SoftmaxPolicy) -> StateVerdict:
    found = Starts(codes_of(observations[starts]), states[starts])
    return judge_states(observations, found, Step(policy))


def test_an_episode_of_the_coded_environment_has_a_place_for_each_step() -> None:
    observations, _ = acted(network(), 2)
    identities, episodes, steps = places_of(codes_of(observations))
    assert len(set(identities.tolist())) == 1
    assert episodes.tolist() == [0] * 199 + [1] * 199
    assert steps.tolist() == [*range(199), *range(199)]


def test_the_states_of_the_own_episodes_are_no_fault_and_are_told_apart() -> None:
    policy = network()
    observations, states = acted(policy, 4)
    # Rounding of int8 policies is smaller than this noise.
    noise = np.random.default_rng(0).uniform(-0.002, 0.002, states.shape).astype(np.float32)
    starts = np.arange(0, len(observations), EVERY)
    begun = states[starts].any(axis=1)
    states[starts[begun]] += noise[starts[begun]]
    found = judged(observations, states, starts, policy)
    assert (found.starts, found.checked, found.foreign, found.not_zero) == (len(starts), len(starts), 0, 0)
    assert found.told_apart > 0.8
    assert 0.0 < found.largest < 0.015


def test_a_state_of_another_episode_is_found() -> None:
    policy = network()
    observations, states = acted(policy, 3)
    starts = np.array([0, 64, 199, 199 + 64])
    states[199 + 64] = states[64]
    found = judged(observations, states, starts, policy)
    assert (found.foreign, found.not_zero, found.begun) == (1, 0, 2)
    states[199] = states[198]
    found = judged(observations, states, starts, policy)
    assert (found.foreign, found.not_zero) == (2, 1)


def test_a_segment_whose_earlier_steps_are_lost_is_not_checked() -> None:
    policy = network()
    observations, states = acted(policy, 2)
    starts, kept = np.array([32, 64, 199 + 64]), np.delete(np.arange(len(observations)), 40)
    found = Starts(codes_of(observations[starts]), states[starts])
    verdict = judge_states(observations[kept], found, Step(policy))
    assert (verdict.starts, verdict.checked, verdict.foreign) == (3, 2, 0)


def test_the_stored_policy_computes_the_states_and_must_not_change(tmp_path: Path) -> None:
    policy = network()
    graph, rng = export_policy_graph(policy, SPEC), np.random.default_rng(0)
    rows, states = rng.random((8, 4)).astype(np.float32), rng.uniform(-1, 1, (8, UNITS)).astype(np.float32)
    calibration = calibration_batch(rows, SPEC, takes_noise=False, seed=0, states=states)
    first = Checkpoint(1, 1, graph.digest, snapshot_parameters(policy), calibration, 0.0)
    same = stored_run(tmp_path / "same", graph, [first, replace(first, version=2)], spec=SPEC)
    np.testing.assert_allclose(FrozenPolicy(same.policies)(rows, states), Step(policy)(rows, states), atol=1e-5)
    changed = {name: values + np.float32(0.01) for name, values in first.parameters.items()}
    other = stored_run(tmp_path / "other", graph, [first, replace(first, version=2, parameters=changed)], spec=SPEC)
    with pytest.raises(SystemExit, match="expected equal weights in all versions"):
        FrozenPolicy(other.policies)
