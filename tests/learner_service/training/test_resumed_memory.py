"""A run with a replay and memory that is saved and restored continues bit for bit."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorq import wire
from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.columns import state_column
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from actorq.errors import UserError
from learner_service.actors.members import Member
from learner_service.algorithms.base import Algorithm
from learner_service.policy.policy_graph import snapshot_parameters
from learner_service.replay import ReplayBuffer
from learner_service.training.checkpoint import Checkpoints, LearnerState
from learner_service.training.training import Training, build_training
from tests.learner_service.algorithms.algorithm_parts import BOUNDED, DISCRETE, assert_equal_states
from tests.learner_service.learner_parts import store_segment

ACTOR = Member("actor-0", "actor", 0, incarnation=1)
UNITS, STEPS, ENVIRONMENTS = 6, 4, 2
MEMORY = {"kind": "gru", "units": UNITS, "burn_in": 3, "sequence_length": 5}


@pytest.fixture
def client() -> Iterator[QuantizerClient]:
    with QuantizerClient("127.0.0.1:1") as nobody:
        yield nobody


def config(name: str, **memory: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "algorithm": name,
            "environment": "Small-v0",
            "actors": 1,
            "environments_per_actor": ENVIRONMENTS,
            name: {"hidden_sizes": (8,), "batch_size": 40, "n_step": 3},
            "memory": {**MEMORY, **memory},
            "normalize_observations": True,
            "replay": {"capacity": 2_000, "min_size": 64, "prioritized": True},
            "actor": {"segment_length": STEPS},
        }
    )


def spec_of(name: str) -> EnvironmentSpec:
    return DISCRETE if name == "dqn" else BOUNDED


def build(client: QuantizerClient, folder: Path, run: RunConfig, state: LearnerState | None = None) -> Training:
    opening = wire.Opening("run", "int8")
    spec = spec_of(run.algorithm)
    training, _ = build_training(run, spec, folder, opening, client, state, lambda _: folder, lambda _: None)
    return training


def insert(training: Training, sequences: range) -> None:
    """Segments that follow each other, with ends of episodes and random states."""
    spec = training.spec
    for sequence in sequences:
        rng, shape = np.random.default_rng(sequence), (STEPS, ENVIRONMENTS)
        observations = rng.standard_normal((STEPS + 1, ENVIRONMENTS, 3), np.float32)
        observations[[0, -1]] = observation_between(sequence - 1), observation_between(sequence)
        terminated, valid = np.zeros(shape, np.bool_), np.ones(shape, np.bool_)
        if sequence % 3 == 0:
            terminated[1, 0], valid[2, 0] = True, False
        segment = Segment(
            sequence=sequence,
            spans=(PolicySpan(0, 1, "int8"),),
            columns={
                "observations": observations,
                "actions": actions(rng, spec.actions, spec),
                "rewards": rng.standard_normal(shape, np.float32),
                "terminated": terminated,
                "truncated": np.zeros(shape, np.bool_),
                "valid": valid,
                "ages": np.full(ENVIRONMENTS, STEPS, np.uint8),
                state_column(UNITS): rng.uniform(-1, 1, (ENVIRONMENTS, UNITS)).astype(np.float32),
            },
            follows=sequence > 1,
        )
        reserved = STEPS * ENVIRONMENTS
        assert training.replay.limiter.try_reserve(reserved)
        store_segment(training.intake, ACTOR, segment, reserved)


def observation_between(sequence: int) -> Any:
    """The observation after a segment, which is the first one of the next segment."""
    return np.random.default_rng(1000 + sequence).standard_normal((ENVIRONMENTS, 3), np.float32)


def actions(rng: np.random.Generator, space: ArraySpec, spec: EnvironmentSpec) -> Any:
    shape = (STEPS, ENVIRONMENTS, *space.shape)
    if spec.sizes:
        return rng.integers(spec.sizes[0], size=shape)
    return rng.uniform(*space.bounds(), shape).astype(np.float32)


def learn(training: Training, updates: int) -> list[float]:
    """Make updates as the trainer does, and return their losses."""
    replay, algorithm, losses = training.replay, training.algorithm, []
    assert isinstance(replay, ReplayBuffer)
    off_policy: Algorithm = algorithm  # type: ignore[assignment]
    for _ in range(updates):
        algorithm.normalize(*(replay.observation_moments() or ()))
        batch, sampled = replay.draw(training.config.memory.sequences(algorithm.batch_size))
        told = off_policy.update(batch, sampled.weights)
        replay.update_priorities(sampled, told.priorities)
        losses.append(told.loss)
    return losses


@pytest.mark.parametrize("name", ["dqn", "sac", "td3"])
def test_a_restored_run_continues_bit_for_bit(client: QuantizerClient, tmp_path: Path, name: str) -> None:
    run = config(name)
    assert run.memory.burn_in + run.memory.sequence_length > STEPS
    original, checkpoints = build(client, tmp_path / "run", run), Checkpoints(tmp_path / "checkpoints", 1)
    insert(original, range(1, 13))
    # An odd number, between two updates of TD3's policy.
    learn(original, 5)
    checkpoints.save(original.state(5, {}))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    resumed = build(client, tmp_path / "copy", run, checkpoints.load_newest())
    losses = []
    for training in (original, resumed):
        # The first of these segments continues sequences from before the restart.
        insert(training, range(13, 16))
        losses.append(learn(training, 9))
    assert losses[1] == losses[0]
    assert len(set(losses[0])) == 9
    state, expected = resumed.replay.state_dict(), original.replay.state_dict()
    assert state["sampler"] == expected["sampler"]
    assert resumed.rng.bit_generator.state == original.rng.bit_generator.state
    assert_equal_states(resumed.algorithm, original.algorithm)  # type: ignore[arg-type]
    published = snapshot_parameters(resumed.algorithm.policy)
    wanted = snapshot_parameters(original.algorithm.policy)
    assert all(np.array_equal(published[key], wanted[key]) for key in wanted)
    for training in (original, resumed):
        training.close()


def test_a_state_of_another_size_is_the_users_mistake(client: QuantizerClient, tmp_path: Path) -> None:
    original = build(client, tmp_path, config("dqn"))
    insert(original, range(1, 13))
    state = original.state(0, {})
    original.close()
    with pytest.raises(UserError, match=r"resume with its memory\.kind and memory\.units") as caught:
        build(client, tmp_path, config("dqn", units=UNITS + 1), state)
    assert "\n" not in str(caught.value)
    build(client, tmp_path, config("dqn"), state).close()
