"""Builds a training from a configuration and the files on disk: completely, or with nothing left open."""

import json
import logging
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from actorq import wire
from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.limits import MAX_SEGMENT_BYTES
from actorq.domain.policy import FidelityReport, LayerReport, PolicyDescriptor
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from learner_service.actors.members import Member
from learner_service.algorithms import Algorithm, make_algorithm
from learner_service.algorithms.base import is_on_policy
from learner_service.replay import ReplayStore
from learner_service.training.checkpoint import Checkpoints, LearnerState
from learner_service.training.publisher import Snapshot
from learner_service.training.training import Training, build_training
from tests.learner_service.learner_parts import SPEC, await_samples, config, random_batch, segment, store_segment

ACTOR = Member("actor-0", "actor", 0, incarnation=1)


@pytest.fixture
def client() -> Iterator[QuantizerClient]:
    with QuantizerClient("127.0.0.1:1") as nobody:
        yield nobody


def build(
    client: QuantizerClient,
    directory: Path,
    state: LearnerState | None = None,
    spec: EnvironmentSpec = SPEC,
    settings: RunConfig | None = None,
    save: Callable[[int], Path] = lambda updates: Path(str(updates)),
) -> Training:
    """Built and not started."""
    training, graph = build_training(
        settings or config(), spec, directory, wire.Opening("run", "int8"), client, state, save, lambda _: None
    )
    assert graph.signature.inputs
    return training


def insert(training: Training, sequence: int) -> None:
    assert training.replay.limiter.try_reserve(8)
    store_segment(training.intake, ACTOR, segment(sequence), 8)


def test_a_learner_restores_the_state_that_it_saved(client: QuantizerClient, tmp_path: Path) -> None:
    before = build(client, tmp_path)
    insert(before, 1)
    insert(before, 2)
    state = before.state(24, {"more": "of the run's own"})
    assert state.values["more"] == "of the run's own"
    insert(before, 3)
    before.close()
    after = build(client, tmp_path, state)
    assert after.trainer.updates == 24
    assert after.replay.total_transitions == 24
    assert after.replay.sequences.last(*ACTOR.source_key) == 3
    assert after.intake.statistics().transitions_by_scheme == {"int8": 24}
    assert after.rng.bit_generator.state == before.rng.bit_generator.state
    after.close()


@pytest.mark.parametrize("prioritized", [True, False])
def test_a_restored_learner_makes_the_same_updates_as_the_saved_one(
    client: QuantizerClient, tmp_path: Path, prioritized: bool
) -> None:
    settings = config(
        replay={"capacity": 2_000, "min_size": 64, "prioritized": prioritized}, normalize_observations=True
    )
    # 10,000 samples may be drawn ahead of 64 transitions, in draws of 8 * 8.
    samples = 10_000 // 64 * 64
    saved: list[LearnerState] = []

    def save(updates: int) -> Path:
        saved.append(went_on.state(updates, {}))
        return Path(str(updates))

    went_on = build(client, tmp_path / "run", settings=settings, save=save)
    for sequence in range(1, 9):
        insert(went_on, sequence)
    went_on.trainer.start()
    await_samples(went_on.replay.limiter, 640)
    updates = went_on.trainer.pause()
    assert went_on.trainer.save() == Path(str(updates))
    assert 0 < saved[0].updates == updates <= samples // 8
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    went_on.trainer.resume()
    expected = trained(went_on, samples)

    values = json.loads(json.dumps(saved[0].values))
    state = LearnerState(updates, saved[0].tensors, values)
    restored = build(client, tmp_path / "copy", state, settings=settings)
    restored.trainer.start()
    actual = trained(restored, samples)
    assert actual.keys() == expected.keys()
    assert "normalizer.mean" in actual
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


def test_a_run_whose_replay_was_lost_collects_again(client: QuantizerClient, tmp_path: Path) -> None:
    before = build(client, tmp_path)
    assert before.is_collecting
    for sequence in range(1, 9):
        insert(before, sequence)
    assert not before.is_collecting
    state = before.state(0, {})
    before.close()
    shutil.rmtree(tmp_path / "replay")
    after = build(client, tmp_path, state)
    assert after.is_collecting
    assert after.replay.limiter.missing == 64
    for sequence in range(9, 17):
        insert(after, sequence)
    assert not after.is_collecting
    after.close()


def off_policy(training: Training) -> Algorithm:
    """Its algorithm, which samples batches."""
    assert not is_on_policy(training.algorithm)
    return cast(Algorithm, training.algorithm)


def test_closing_leaves_no_thread(client: QuantizerClient, tmp_path: Path) -> None:
    others = set(threading.enumerate())
    training = build(client, tmp_path)
    training.trainer.start()
    training.close()
    assert not set(threading.enumerate()) - others


def trained(training: Training, samples: int) -> dict[str, torch.Tensor]:
    """The algorithm's state after the updates for so many samples."""
    await_samples(training.replay.limiter, samples)
    training.trainer.pause()
    assert training.trainer.fault is None
    assert training.replay.limiter.samples == samples == 8 * training.trainer.updates
    tensors = training.algorithm.state()
    training.close()
    return tensors


def test_a_stochastic_policy_is_calibrated_with_noise(
    client: QuantizerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions = ArraySpec((2,), "float32", low=(-1.0,), high=(1.0,))
    spec = EnvironmentSpec("Arms-v0", SPEC.observations, actions)
    settings = config(algorithm="sac", environment="Arms-v0", sac={"hidden_sizes": (8,), "batch_size": 8})
    training = build(client, tmp_path, spec=spec, settings=settings)
    offered: list[Snapshot] = []
    monkeypatch.setattr(training.publisher, "offer", offered.append)
    training.trainer.publish()
    assert {name: batch.shape for name, batch in offered[0].calibration.items()} == {
        "observations": (1, 4),
        "noise": (1, 2),
    }
    training.close()


def test_the_sizes_of_replay_and_batches_are_logged(
    client: QuantizerClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "learner_service.training.training"):
        training = build(client, tmp_path)
    # Two batches of eight minibatches of eight transitions, of 4 + 4 floats, an int64, 2 floats, an int64.
    assert training.batches.nbytes == 2 * 64 * (2 * 16 + 8 + 2 * 4 + 8)
    assert re.search(rf"2000 .*{training.replay.nbytes / 1e6:.1f} MB .*batches.* 0\.0 MB.*cpu", caplog.text)
    training.close()


def test_a_ring_too_small_for_stacked_segments_is_the_users_mistake(client: QuantizerClient, tmp_path: Path) -> None:
    stacked = replace(SPEC, frame_stack=4)
    small = config(replay={"capacity": 20, "min_size": 8, "prioritized": False})
    build(client, tmp_path / "single", settings=small).close()
    with pytest.raises(UserError, match=r"16 rows.*frame stack 4.* 20"):
        build(client, tmp_path / "stacked", spec=stacked, settings=small)


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_memory_and_stacked_frames_exclude_each_other(client: QuantizerClient, tmp_path: Path, algorithm: str) -> None:
    remembering = config(algorithm=algorithm, memory="gru", actors=1, actor={"segment_length": 4})
    with pytest.raises(UserError, match=r"stacks 4 frames.*give --memory none") as caught:
        build(client, tmp_path, spec=replace(SPEC, frame_stack=4), settings=remembering)
    assert "\n" not in str(caught.value)
    build(client, tmp_path, settings=remembering).close()


@pytest.mark.parametrize(
    ("network", "fact"),
    [("branching", "GuardOnDataDependentSymNode"), ("partly_unused", r"torso\.0\.spare")],
)
def test_a_policy_that_cannot_be_exported_gives_one_line(
    client: QuantizerClient, tmp_path: Path, network: str, fact: str
) -> None:
    own = config(network=f"own_algorithms:{network}")
    with pytest.raises(UserError, match=f"ONNX.*{fact}") as caught:
        build(client, tmp_path, settings=own)
    assert "\n" not in str(caught.value)
    build(client, tmp_path).close()


def test_moments_of_other_observations_are_a_users_mistake(client: QuantizerClient, tmp_path: Path) -> None:
    settings = config(normalize_observations=True)
    before = build(client, tmp_path, settings=settings)
    insert(before, 1)
    state = before.state(0, {})
    before.close()
    state.values["limiter"]["moments"]["mean"] = [0.0]
    with pytest.raises(UserError, match="checkpoint"):
        build(client, tmp_path, state, settings=settings)
    build(client, tmp_path, settings=settings).close()


def test_frames_without_normalization_are_not_counted(client: QuantizerClient, tmp_path: Path) -> None:
    frames = replace(SPEC, observations=ArraySpec((40, 40), "uint8"), frame_stack=2)
    training = build(client, tmp_path, spec=frames, settings=config(normalize_observations=True))
    assert training.state(0, {}).values["limiter"]["moments"] is None
    assert not any("normalizer" in name for name in training.algorithm.state())
    training.close()


def test_quantization_aware_training_continues_after_a_checkpoint(client: QuantizerClient, tmp_path: Path) -> None:
    settings = config(learner={"quantization_aware_after": 0.5}, max_environment_steps=100)
    before = build(client, tmp_path, settings=settings)
    fidelity = FidelityReport(1, 0.0, 0.0, 0.0, 0.0, 1.0, (LayerReport("torso.0", "int8 per tensor"),))
    before.quantization_aware.follow(PolicyDescriptor("run", 1, 0, "int8", b"", 1, 1, 0.0, fidelity))
    for updates, steps in ((8, 49), (16, 50)):
        with before.quantization_aware.applied(updates, steps):
            pass
    state = before.state(24, {})
    before.close()
    after = build(client, tmp_path, state, settings=settings)
    assert after.quantization_aware.since == 16
    after.close()
    # As a learner wrote it that did not know of it.
    del state.values["quantization_aware"]
    older = build(client, tmp_path, state, settings=settings)
    assert older.quantization_aware.since is None
    older.close()


def test_a_sparse_run_continues_after_a_checkpoint(client: QuantizerClient, tmp_path: Path) -> None:
    settings = config(sparsity={"method": "rigl", "actor": 0.5, "period_updates": 2})
    before = build(client, tmp_path, settings=settings)
    rng = np.random.default_rng(0)
    off_policy(before).update(random_batch(rng, 24), np.ones(24, np.float32))
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(before.state(3, {}))
    before.close()
    state = checkpoints.load_newest()
    assert state is not None
    assert state.values["sparsity"] == {
        **{"method": "rigl", "actor_method": None, "critic_method": None},
        **{"actor": 0.5, "critic": 0.85, "structured": False},
    }
    after = build(client, tmp_path, state, settings=settings)
    batch = random_batch(rng, 24)
    for training in (before, after):
        off_policy(training).update(batch, np.ones(24, np.float32))
    expected = before.algorithm.state()
    assert all(torch.equal(value, expected[name]) for name, value in after.algorithm.state().items())
    after.close()


def test_a_checkpoint_of_other_masks_is_the_users_mistake(client: QuantizerClient, tmp_path: Path) -> None:
    sparse = make_algorithm(config(sparsity={"method": "rigl", "actor": 0.5}), SPEC).state()
    with pytest.raises(UserError, match=r"checkpoint.*sparse"):
        build(client, tmp_path, LearnerState(8, sparse, {}))
    build(client, tmp_path).close()


def test_any_error_of_an_algorithm_for_a_checkpoint_is_the_users_mistake(
    client: QuantizerClient, tmp_path: Path
) -> None:
    settings = config(algorithm="own_algorithms:ThatCannotLoad")
    with pytest.raises(UserError, match=r"checkpoint.*no state is taken"):
        build(client, tmp_path, LearnerState(8, {}, {}), settings=settings)


def test_after_a_checkpoint_that_does_not_fit_the_replay_is_closed(client: QuantizerClient, tmp_path: Path) -> None:
    wider = config(dqn={"hidden_sizes": (16,), "batch_size": 8, "n_step": 3})
    state = LearnerState(8, make_algorithm(wider, SPEC).state(), {})
    for _ in range(2):
        with pytest.raises(UserError, match="checkpoint"):
            build(client, tmp_path / "run", state)
    build(client, tmp_path / "run").close()


@pytest.mark.parametrize("removed", [False, True], ids=["with its lock file", "without it"])
def test_a_replay_that_is_in_use_is_the_users_mistake(client: QuantizerClient, tmp_path: Path, removed: bool) -> None:
    store = ReplayStore.open(tmp_path / "replay", SPEC, config().replay.capacity)
    if removed:
        (tmp_path / "replay" / "lock").unlink()
    with pytest.raises(UserError, match="another learner"):
        build(client, tmp_path)
    store.close()


REFITTED: dict[str, tuple[dict[str, Any], EnvironmentSpec, str]] = {
    "capacity": ({"replay": {"capacity": 3_000, "min_size": 64}}, SPEC, "capacity 2000.* 3000"),
    "observations": (
        {},
        EnvironmentSpec("CartPole-v1", ArraySpec((5,), "float32"), ArraySpec((), "int64"), sizes=(2,)),
        "observations",
    ),
}


@pytest.mark.parametrize("what", REFITTED)
def test_a_replay_of_another_shape_is_the_users_mistake(client: QuantizerClient, tmp_path: Path, what: str) -> None:
    capacity = config().replay.capacity
    ReplayStore.open(tmp_path / "replay", SPEC, capacity).close()
    changes, spec, fact = REFITTED[what]
    with pytest.raises(UserError, match=f"^replay: .*{fact}"):
        build(client, tmp_path, spec=spec, settings=config(**changes))
    ReplayStore.open(tmp_path / "replay", SPEC, capacity).close()


def test_segments_have_to_hold_a_step(client: QuantizerClient, tmp_path: Path) -> None:
    # A thousand bytes too many for the observations of two environments, each before and after the step.
    wide = replace(SPEC, observations=ArraySpec((MAX_SEGMENT_BYTES // 16 + 250,), "float32"))
    with pytest.raises(UserError, match=f"{MAX_SEGMENT_BYTES}.*--environments-per-actor 1"):
        build(client, tmp_path, spec=wide)


@pytest.mark.parametrize(
    ("algorithm", "precision", "told"),
    [("own_algorithms:LinearQ", "bf16", True), ("own_algorithms:LinearQ", "fp32", False), ("dqn", "bf16", False)],
)
def test_an_algorithm_without_the_precision_is_logged(
    client: QuantizerClient,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    algorithm: str,
    precision: str,
    told: bool,
) -> None:
    settings = config(algorithm=algorithm, learner={"precision": precision})
    build(client, tmp_path, settings=settings).close()
    lines = [line for line in caplog.messages if line.startswith(f"learner.precision {precision}:")]
    assert [algorithm in line and "fp32" in line for line in lines] == [True] * told


def test_a_replay_that_is_too_small_for_all_agents_is_refused(client: QuantizerClient, tmp_path: Path) -> None:
    team = replace(SPEC, agents=tuple(f"agent_{number}" for number in range(20)))
    with pytest.raises(UserError, match=r"replay\.capacity must be at least 2560 rows, .* each of 20 agents, got 2000"):
        build(client, tmp_path, spec=team)
    small = config(replay={"capacity": 300, "min_size": 4})
    with pytest.raises(UserError, match=r"twice the 200 rows of a segment, .* \* 20 agents, got 300"):
        build(client, tmp_path, spec=team, settings=small)
    memory = {"kind": "gru", "units": 4, "burn_in": 2, "sequence_length": 40}
    with pytest.raises(UserError, match=r"for a sequence of .* of each of \d+ environments with 20 agents, got 2600"):
        build(client, tmp_path, spec=team, settings=config(memory=memory, replay={"capacity": 2_600, "min_size": 4}))
    assert not any(tmp_path.iterdir())
    build(client, tmp_path, spec=replace(SPEC, agents=("red", "green", "blue"))).close()
