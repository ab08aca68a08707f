"""On-policy training: the trainer's loop with a queue, and a whole training from settings, with a small algorithm."""

import json
import math
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from own_on_policy import Reinforce

from actorq import wire
from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.trajectory import Segment
from actorq.errors import InvalidInputError, UserError
from learner_service.actors.members import Member
from learner_service.algorithms.base import Learned
from learner_service.rollouts import RolloutQueue
from learner_service.training.batches import RolloutBatches
from learner_service.training.checkpoint import LearnerState
from learner_service.training.publisher import Snapshot
from learner_service.training.training import Training, build_training
from tests.learner_service.learner_parts import (
    DEADLINE_S,
    SPEC,
    await_samples,
    config,
    drawn_segment,
    reinforce,
    segment,
    store_segment,
)

ACTOR = Member("actor-0", "actor", 0, incarnation=1)
Build = Callable[..., Training]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    made: list[Training] = []

    def build(
        run: RunConfig | None = None,
        state: LearnerState | None = None,
        directory: Path = tmp_path,
        save: Callable[[int], Path] = lambda updates: Path(str(updates)),
    ) -> Training:
        training, _ = build_training(
            run or reinforce(), SPEC, directory, wire.Opening("run", "int8"), client, state, save, lambda _: None
        )
        made.append(training)
        return training

    with QuantizerClient("127.0.0.1:1") as client:
        yield build
        for training in made:
            training.close()


def insert(training: Training, *segments: Segment) -> None:
    for each in segments:
        assert training.replay.limiter.try_reserve(8)
        store_segment(training.intake, ACTOR, each, 8)


def learned(training: Training, rollouts: int) -> Reinforce:
    """The algorithm after so many rollouts, while training is paused."""
    await_samples(training.replay.limiter, rollouts * 16 * 2)
    training.trainer.pause()
    assert training.trainer.fault is None
    assert isinstance(training.algorithm, Reinforce)
    return training.algorithm


def test_each_rollout_is_learned_from_once_and_a_policy_published(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = build()
    offered: list[Snapshot] = []

    def offer(snapshot: Snapshot) -> int:
        offered.append(snapshot)
        return len(offered)

    monkeypatch.setattr(training.publisher, "offer", offer)
    training.trainer.start()
    for rollout in range(3):
        insert(training, drawn_segment(2 * rollout + 1, rollout + 1), drawn_segment(2 * rollout + 2, rollout + 1))
        algorithm = learned(training, rollout + 1)
        training.trainer.resume()
    assert [progress for _, progress in algorithm.rollouts] == [0.05, 0.1, 0.15]
    assert [sum(part.rewards.size for part in rollout) for rollout, _ in algorithm.rollouts] == [16, 16, 16]
    # Two epochs of one update each.
    assert training.trainer.updates == 6
    assert training.trainer.figures == {"rollouts": 3.0}
    assert training.replay.limiter.samples_per_insert_realised == 2
    assert [snapshot.learner_step for snapshot in offered] == [0, 2, 4, 6]
    assert offered[-1].calibration["observations"].shape == (4, 4)
    np.testing.assert_array_equal(offered[-1].parameters["weight"], algorithm.state()["weight"].numpy())


def test_the_normalizer_changes_with_each_policy_and_not_before_the_first_rollout(build: Build) -> None:
    training = build(reinforce(normalize_observations=True))
    training.trainer.start()
    insert(training, drawn_segment(1), drawn_segment(2))
    algorithm = learned(training, 1)
    assert len(algorithm.normalized) == 1
    moments = training.replay.observation_moments()
    assert moments is not None
    np.testing.assert_array_equal(algorithm.normalized[0], moments[0])


def test_a_restored_learner_learns_what_the_saved_one_learns(build: Build, tmp_path: Path) -> None:
    saved: list[LearnerState] = []

    def save(updates: int) -> Path:
        saved.append(went_on.state(updates, {}))
        return Path(str(updates))

    went_on = build(reinforce(queue={"waiting_rollouts": 4, "normalize_rewards": True}), None, tmp_path / "run", save)
    went_on.trainer.start()
    went_on.trainer.pause()
    insert(went_on, *map(drawn_segment, range(1, 9)))
    went_on.trainer.resume()
    await_samples(went_on.replay.limiter, 32)
    went_on.trainer.pause()
    went_on.trainer.save()
    rollouts = saved[0].updates // 2
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    went_on.trainer.resume()
    expected = learned(went_on, 4).state()
    state = LearnerState(saved[0].updates, saved[0].tensors, json.loads(json.dumps(saved[0].values)))
    restored = build(went_on.config, state, tmp_path / "copy")
    restored.trainer.start()
    algorithm = learned(restored, 4)
    assert len(algorithm.rollouts) == 4 - rollouts
    for name, tensor in algorithm.state().items():
        assert torch.equal(tensor, expected[name])
    assert restored.trainer.updates == 8


def test_a_killed_learners_rollouts_are_repeated_with_the_same_progress_and_normalizer(
    build: Build, tmp_path: Path
) -> None:
    saved: list[LearnerState] = []

    def save(updates: int) -> Path:
        saved.append(killed.state(updates, {}))
        return Path(str(updates))

    killed = build(reinforce(normalize_observations=True), None, tmp_path / "run", save)
    killed.trainer.start()
    for rollout in range(3):
        insert(killed, drawn_segment(2 * rollout + 1), drawn_segment(2 * rollout + 2))
        expected = learned(killed, rollout + 1)
        killed.trainer.resume()
        if rollout == 0:
            killed.trainer.save()
    killed.replay.flush()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    state = LearnerState(2, saved[0].tensors, json.loads(json.dumps(saved[0].values)))
    # All later rollouts wait from the start.
    restored = build(killed.config, state, tmp_path / "copy")
    restored.trainer.start()
    actual = learned(restored, 3)
    assert [progress for _, progress in actual.rollouts] == [0.1, 0.15]
    np.testing.assert_array_equal(actual.normalized, expected.normalized[1:])
    for name, tensor in expected.state().items():
        assert torch.equal(actual.state()[name], tensor), name


def test_the_mismatch_is_a_mean_over_the_whole_run(build: Build) -> None:
    training = build()
    training.trainer.start()
    insert(training, drawn_segment(1), drawn_segment(2))
    learned(training, 1)
    assert isinstance(training.batches, RolloutBatches)
    before = training.batches.mismatch
    state = training.state(2, {})
    training.close()
    again = build(state=LearnerState(2, state.tensors, json.loads(json.dumps(state.values))))
    assert isinstance(again.batches, RolloutBatches)
    for name in ("mismatch", "divergence", "policy_lag"):
        assert (mean := before.mean(name)) is not None
        assert again.batches.mismatch.mean(name) == mean


def test_the_mismatch_is_measured_before_the_updates_which_may_round_the_policy(build: Build) -> None:
    training = build()
    insert(training, drawn_segment(1), drawn_segment(2))
    batches = training.batches
    assert isinstance(batches, RolloutBatches)
    assert batches.fetch(0.0)
    assert batches.mismatch.mean("divergence") is None
    batches.prepare()
    assert batches.mismatch.mean("divergence") is not None


def test_a_run_that_has_diverged_ends_and_publishes_nothing(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    training, has_learned = build(), threading.Event()
    offered: list[Snapshot] = []

    def offer(snapshot: Snapshot) -> int:
        offered.append(snapshot)
        return len(offered)

    def diverge(progress: float) -> Learned:
        diverged = replace(learn(progress), loss=math.nan)
        has_learned.set()
        return diverged

    learn = training.batches.learn
    monkeypatch.setattr(training.publisher, "offer", offer)
    monkeypatch.setattr(training.batches, "learn", diverge)
    insert(training, drawn_segment(1), drawn_segment(2))
    training.trainer.start()
    assert has_learned.wait(DEADLINE_S)
    training.trainer.stop()
    assert re.search("diverged.*update 2 .*nan", str(training.trainer.fault))
    # The policy from before the first update.
    assert [snapshot.learner_step for snapshot in offered] == [0]


def test_probabilities_are_sent_if_and_only_if_the_run_draws_actions(build: Build, tmp_path: Path) -> None:
    on_policy, off_policy = build(), build(config(), None, tmp_path / "off")
    for training, sent, fact in (
        (on_policy, segment(1), "log_probabilities.*none$"),
        (off_policy, drawn_segment(1), "log_probabilities.*some$"),
        (
            on_policy,
            drawn_segment(1).with_columns(log_probabilities=np.full((4, 2), np.nan, np.float32)),
            "log_probabilities.*nan",
        ),
        (
            on_policy,
            drawn_segment(1).with_columns(log_probabilities=np.full((4, 2), 0.5, np.float32)),
            r"log_probabilities.* 0, .*0\.5",
        ),
    ):
        assert training.replay.limiter.try_reserve(8)
        with pytest.raises(InvalidInputError, match=fact):
            store_segment(training.intake, ACTOR, sent, 8)
        assert training.replay.total_transitions == 0
    insert(on_policy, drawn_segment(1))


def test_settings_that_do_not_fit_a_users_rollouts_are_refused(build: Build) -> None:
    with pytest.raises(UserError, match=r"rollout_size \(4\).*4 \* 2"):
        build(reinforce(algorithm_args={"rollout_size": 4, "batch_size": 4}))


def test_the_buffer_of_an_on_policy_algorithm_is_a_queue(build: Build) -> None:
    training = build()
    assert isinstance(training.replay, RolloutQueue)
    assert training.multi_step_since is None
    assert training.batches.nbytes == 0
