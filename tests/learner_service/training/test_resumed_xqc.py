"""A run of XQC that is saved and restored continues bit for bit, from the replay to the published policy."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actorq import wire
from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from learner_service.actors.members import Member
from learner_service.algorithms.xqc import XQC
from learner_service.policy.policy_graph import snapshot_parameters
from learner_service.replay import ReplayBuffer
from learner_service.training.checkpoint import Checkpoints, LearnerState
from learner_service.training.training import Training, build_training
from tests.learner_service.algorithms.algorithm_parts import assert_equal_states
from tests.learner_service.learner_parts import store_segment

ACTOR = Member("actor-0", "actor", 0, incarnation=1)
ARMS = EnvironmentSpec("Arms-v0", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", (-1.0,), (1.0,)))
BATCH = 16
CONFIG = RunConfig.model_validate(
    {
        "algorithm": "xqc",
        "environment": "Arms-v0",
        "environments_per_actor": 2,
        "xqc": {
            **{"policy_sizes": (8,), "critic_sizes": (8,), "batch_size": BATCH, "n_step": 3},
            **{"learning_rate_end": 1e-5, "learning_rate_updates": 12},
        },
        "normalize_observations": True,
        "replay": {"capacity": 2_000, "min_size": 64},
        "actor": {"segment_length": 4},
    }
)


@pytest.fixture
def client() -> Iterator[QuantizerClient]:
    with QuantizerClient("127.0.0.1:1") as nobody:
        yield nobody


def build(client: QuantizerClient, folder: Path, state: LearnerState | None = None) -> Training:
    opening = wire.Opening("run", "int8")
    training, _ = build_training(CONFIG, ARMS, folder, opening, client, state, lambda _: folder, lambda _: None)
    return training


def insert(training: Training, sequences: range) -> None:
    """Eight transitions each, with rewards that grow from segment to segment."""
    for sequence in sequences:
        rng, shape = np.random.default_rng(sequence), (4, 2)
        segment = Segment(
            sequence=sequence,
            spans=(PolicySpan(0, 1, "int8"),),
            columns={
                "observations": rng.standard_normal((5, 2, 3), np.float32),
                "actions": rng.uniform(-1, 1, (4, 2, 2)).astype(np.float32),
                "rewards": sequence * rng.standard_normal(shape, np.float32),
                "terminated": np.zeros(shape, np.bool_),
                "truncated": np.zeros(shape, np.bool_),
                "valid": np.ones(shape, np.bool_),
                "ages": np.zeros(2, np.uint8),
            },
        )
        assert training.replay.limiter.try_reserve(8)
        store_segment(training.intake, ACTOR, segment, 8)


def learn(training: Training, updates: int) -> list[float]:
    """Make updates as the trainer does, and return their losses."""
    replay, algorithm, losses = training.replay, training.algorithm, []
    assert isinstance(replay, ReplayBuffer)
    assert isinstance(algorithm, XQC)
    for _ in range(updates):
        algorithm.normalize(*(replay.observation_moments() or ()))
        batch, sampled = replay.draw(BATCH)
        losses.append(algorithm.update(batch, sampled.weights).loss)
    return losses


def test_a_restored_run_continues_bit_for_bit(client: QuantizerClient, tmp_path: Path) -> None:
    original, checkpoints = build(client, tmp_path / "run"), Checkpoints(tmp_path / "checkpoints", 1)
    insert(original, range(1, 13))
    # An odd number, so that an update of the policy is due at once.
    learn(original, 5)
    checkpoints.save(original.state(5, {}))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    resumed = build(client, tmp_path / "copy", checkpoints.load_newest())

    before = original.replay.state_dict()["reward_scale"]
    assert before["largest"] > 0
    assert resumed.replay.state_dict()["reward_scale"] == before
    losses = []
    for training in (original, resumed):
        # Unfinished episodes continue. Their returns are part of the scale.
        insert(training, range(13, 16))
        # Beyond the planned updates of the step size.
        losses.append(learn(training, 9))
    assert losses[1] == losses[0]
    state, expected = resumed.replay.state_dict(), original.replay.state_dict()
    assert state["reward_scale"] == expected["reward_scale"] != before
    assert state["sampler"] == expected["sampler"]
    assert resumed.rng.bit_generator.state == original.rng.bit_generator.state
    mine, theirs = resumed.algorithm, original.algorithm
    assert isinstance(mine, XQC)
    assert isinstance(theirs, XQC)
    assert_equal_states(mine, theirs)
    assert {"critic.exp_avg", "critic.exp_avg_sq", "critic.statistics", "policy.statistics", "generator"} <= {
        *mine.state()
    }
    published, wanted = snapshot_parameters(mine.policy), snapshot_parameters(theirs.policy)
    assert all(np.array_equal(published[name], wanted[name]) for name in wanted)
    for training in (original, resumed):
        training.close()
