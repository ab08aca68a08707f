"""Files that an operator has dropped with a reset of the environment do not return from object storage."""

from pathlib import Path

import pytest

from actorq.config.sections import CheckpointConfig
from actorq.errors import UserError
from learner_service.training.checkpoint import Checkpoints
from tests.learner_service.learner_parts import config, on_a_loop, segment, store
from tests.learner_service.objectstorage.stored_runs import Storage, newest, save
from tests.learner_service.run.run_parts import a_run, opened


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(CheckpointConfig(object_storage=f"file://{tmp_path}/bucket/run"), tmp_path / "bucket/run")


def reset(storage: Storage, run: Path) -> None:
    """Reset the environment of a run and save a checkpoint. Nothing is uploaded."""
    _, identity = storage.begin(run)
    identity.count_reset()
    (run / "checkpoints").rename(run / "before-reset-1")
    save(run, 4, resets=identity.resets)


def damage(run: Path) -> None:
    for path in (run / "checkpoints").glob("[0-9]*/tensors.safetensors"):
        path.write_bytes(b"damaged")


def has_checkpoint(run: Path) -> bool:
    return Checkpoints(run / "checkpoints", keep=3).load_newest() is not None


def test_a_damaged_checkpoint_is_not_replaced_by_a_copy_from_before_the_reset(storage: Storage, tmp_path: Path) -> None:
    run = tmp_path / "run"
    storage.learner(run, 8, resume=False)
    reset(storage, run)
    damage(run)
    storage.begin(run)
    with pytest.raises(UserError, match="checkpoints: none of 1 "):
        has_checkpoint(run)


def test_a_damaged_checkpoint_is_replaced_by_a_copy_from_after_the_reset(storage: Storage, tmp_path: Path) -> None:
    run = tmp_path / "run"
    storage.learner(run, 8, resume=False)
    reset(storage, run)
    storage.upload(*storage.begin(run))
    damage(run)
    storage.begin(run)
    assert newest(run).updates == 4


def test_a_checkpoint_from_before_the_reset_that_was_uploaded_meanwhile_is_skipped(
    storage: Storage, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    opened, identity = storage.begin(run, resume=False)
    save(run, 8)
    identity.count_reset()
    storage.upload(opened, identity)
    with pytest.raises(UserError, match="none of 1 generations"):
        storage.begin(tmp_path / "other")


@on_a_loop
async def test_a_reset_is_uploaded_at_once_and_removes_the_copies_from_before(storage: Storage, tmp_path: Path) -> None:
    async with a_run(tmp_path / "run", config(checkpoint=storage.settings.model_dump())) as run:
        await store(run, await opened(run), segment(1))
        await run.save()
        await run.preparation.reset(discard=True)
    assert len(storage.names("manifests")) == 1
    storage.begin(tmp_path / "other")
    assert not has_checkpoint(tmp_path / "other")
    assert not (tmp_path / "other" / "environment.json").exists()
    for path in (storage.folder / "objects").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="none of 1 generations"):
        storage.begin(tmp_path / "third")


def test_a_volume_that_is_restored_after_a_reset_counts_it_too(storage: Storage, tmp_path: Path) -> None:
    storage.learner(tmp_path / "run", 8, resume=False)
    reset(storage, tmp_path / "run")
    storage.upload(*storage.begin(tmp_path / "run"))
    _, identity = storage.begin(tmp_path / "other")
    assert identity.resets == 1
