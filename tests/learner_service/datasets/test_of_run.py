"""A training with a data set resumes with the same data, and only with them."""

import json
import queue
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.trajectory import PolicySpan, Segment
from actorq.errors import UserError
from learner_service.actors.members import Member
from learner_service.algorithms.base import Learned
from learner_service.replay import MixedReplay, OfflineReplay
from learner_service.training.checkpoint import LearnerState
from learner_service.training.training import Training
from tests.learner_service.datasets.dataset_parts import SPEC, stored
from tests.learner_service.learner_parts import DEADLINE_S, store_segment
from tests.learner_service.training.test_training import build, trained

ACTOR = Member("actor-0", "actor", 0, incarnation=1)


@pytest.fixture
def client() -> Iterator[QuantizerClient]:
    with QuantizerClient("127.0.0.1:1") as nobody:
        yield nobody


def settings(dataset: Path | None, **changes: Any) -> RunConfig:
    tree: dict[str, Any] = {
        "environment": "Pendulum-v1",
        "algorithm": "sac",
        "environments_per_actor": 2,
        "sac": {"hidden_sizes": (8,), "batch_size": 8},
        "replay": {"capacity": 2_000, "min_size": 16, "prioritized": False},
        "rate_limiter": {"samples_per_insert": 8.0, "error_buffer": 1000.0},
        "dataset": {"source": None if dataset is None else str(dataset)},
        "learner": {"torch_threads": 1},
    }
    return RunConfig.model_validate({**tree, **changes})


def counted(training: Training) -> Callable[[int], None]:
    """A function that waits until so many updates are made. Call before the start."""
    made: queue.SimpleQueue[int] = queue.SimpleQueue()
    learn = training.batches.learn

    def learn_and_count(progress: float) -> Learned:
        learned = learn(progress)
        made.put(training.trainer.updates + learned.updates)
        return learned

    training.batches.learn = learn_and_count  # type: ignore[method-assign]

    def wait(updates: int) -> None:
        while made.get(timeout=DEADLINE_S) < updates:
            pass

    return wait


def insert(training: Training, sequences: range) -> None:
    for sequence in sequences:
        rng = np.random.default_rng(sequence)
        never = np.zeros((4, 2), np.bool_)
        columns = {
            "observations": rng.standard_normal((5, 2, 3), np.float32),
            "actions": rng.uniform(-2, 2, (4, 2, 1)).astype(np.float32),
            "rewards": rng.standard_normal((4, 2), np.float32),
            **{"terminated": never, "truncated": never, "valid": ~never, "ages": np.zeros(2, np.uint8)},
        }
        assert training.replay.limiter.try_reserve(8)
        store_segment(training.intake, ACTOR, Segment(sequence, columns, (PolicySpan(0, 1, "int8"),)), 8)


def test_a_run_with_a_data_set_has_mixed_batches_and_critics_with_layer_norm(
    client: QuantizerClient, tmp_path: Path
) -> None:
    stored(tmp_path / "set")
    training = build(client, tmp_path / "run", spec=SPEC, settings=settings(tmp_path / "set"))
    assert isinstance(training.replay, MixedReplay)
    assert training.config.sac.layer_norm
    assert training.replay.limiter.missing == 16
    training.close()


@pytest.mark.parametrize("offline", [False, True])
def test_a_restored_learner_makes_the_same_updates_as_the_saved_one(
    offline: bool, client: QuantizerClient, tmp_path: Path
) -> None:
    stored(tmp_path / "set")
    config = settings(tmp_path / "set", offline=offline, max_updates=400, normalize_observations=True)
    # A learner has made its folder before.
    for name in ("run", "copy"):
        (tmp_path / name).mkdir()
    saved: list[LearnerState] = []

    def save(updates: int) -> Path:
        saved.append(went_on.state(updates, {}))
        return Path(str(updates))

    went_on = build(client, tmp_path / "run", spec=SPEC, settings=config, save=save)
    assert isinstance(went_on.replay, OfflineReplay if offline else MixedReplay)
    if not offline:
        insert(went_on, range(1, 5))
    samples = 400 * 8 if offline else 1128 // 64 * 64
    await_updates = counted(went_on)
    went_on.trainer.start()
    await_updates(80)
    updates = went_on.trainer.pause()
    went_on.trainer.save()
    if not offline:
        shutil.copytree(tmp_path / "run", tmp_path / "copy", dirs_exist_ok=True)
    went_on.trainer.resume()
    await_updates(samples // 8)
    expected = trained(went_on, samples)
    assert saved[0].values["dataset"]

    state = LearnerState(updates, saved[0].tensors, json.loads(json.dumps(saved[0].values)))
    restored = build(client, tmp_path / "copy", state, spec=SPEC, settings=config)
    await_updates = counted(restored)
    restored.trainer.start()
    await_updates(samples // 8)
    actual = trained(restored, samples)
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


@pytest.mark.parametrize(
    ("before", "after", "fact"),
    [
        ("set", "other", "expected a data set with digest"),
        ("set", None, "got no data set"),
        (None, "set", "expected no data set"),
    ],
)
def test_other_data_are_refused_at_a_resume(
    before: str | None, after: str | None, fact: str, client: QuantizerClient, tmp_path: Path
) -> None:
    stored(tmp_path / "set")
    stored(tmp_path / "other", steps=40)
    first, second = (None if name is None else tmp_path / name for name in (before, after))
    training = build(client, tmp_path / "run", spec=SPEC, settings=settings(first, sac={"layer_norm": False}))
    state = training.state(0, {})
    training.close()
    with pytest.raises(UserError) as caught:
        build(client, tmp_path / "run", state, spec=SPEC, settings=settings(second, sac={"layer_norm": False}))
    assert fact in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_moved_data_set_is_the_same(client: QuantizerClient, tmp_path: Path) -> None:
    stored(tmp_path / "set")
    training = build(client, tmp_path / "run", spec=SPEC, settings=settings(tmp_path / "set"))
    state = training.state(0, {})
    training.close()
    (tmp_path / "set").rename(tmp_path / "moved")
    build(client, tmp_path / "run", state, spec=SPEC, settings=settings(tmp_path / "moved")).close()
