"""A run begins from the copies of another run in object storage, and the storage stays as it is."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from actorq.config.run_config import RunConfig
from actorq.config.sections import CheckpointConfig
from actorq.errors import UserError
from actorq.statefiles.documents import write_twice
from learner_service.objectstorage.copies import opened_source
from tests.learner_service.learner_parts import SPEC
from tests.learner_service.objectstorage.stored_runs import Storage, save
from tests.learner_service.objectstorage.test_copies import storage

__all__ = ["storage"]


def uploaded(storage: Storage, directory: Path, *updates: int, replay: bool = False) -> None:
    """A run whose checkpoints after so many updates are uploaded, and its replay if it is to be."""
    storage.settings = storage.settings.model_copy(update={"object_storage_replay": replay})
    opened, identity = storage.begin(directory, resume=False)
    write_twice(directory / "environment.json", SPEC.to_json())
    (directory / "replay").mkdir()
    for name in ("meta.json", "rewards.bin"):
        (directory / "replay" / name).write_text(name)
    for each in updates:
        save(directory, each)
        storage.upload(opened, identity)


def contents(storage: Storage) -> dict[str, str]:
    files = (path for path in sorted(storage.folder.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def config(settings: CheckpointConfig, **changes: Any) -> RunConfig:
    endpoint = {"object_storage_endpoint": settings.object_storage_endpoint}
    return RunConfig.model_validate({"init_from": settings.object_storage, "checkpoint": endpoint, **changes})


def test_the_newest_copy_counts_and_nothing_in_the_storage_changes(storage: Storage, tmp_path: Path) -> None:
    uploaded(storage, tmp_path / "run", 8, 16)
    before = contents(storage)
    (work := tmp_path / "work").mkdir()
    with opened_source(config(storage.settings), work, with_rows=True) as source:
        assert (source.state.updates, source.spec) == (16, SPEC)
        assert source.replay is not None
        assert not source.replay.exists()
    assert list(work.iterdir()) == []
    assert contents(storage) == before


@pytest.mark.parametrize(("with_rows", "names"), [(True, ["meta.json", "rewards.bin"]), (False, ["meta.json"])])
def test_the_rows_of_the_replay_are_downloaded_when_they_are_needed(
    with_rows: bool, names: list[str], storage: Storage, tmp_path: Path
) -> None:
    uploaded(storage, tmp_path / "run", 8, replay=True)
    (work := tmp_path / "work").mkdir()
    (work / ".source-left-by-a-kill").mkdir()
    with opened_source(config(storage.settings, init_replay=True), work, with_rows) as source:
        assert source.replay is not None
        assert sorted(path.name for path in source.replay.iterdir()) == names
    assert list(work.iterdir()) == []


def test_a_damaged_copy_is_left_out_for_the_one_before(storage: Storage, tmp_path: Path) -> None:
    uploaded(storage, tmp_path / "run", 8, 16)
    manifest = storage.folder / "manifests" / storage.names("manifests")[-1]
    manifest.write_bytes(b"{}")
    with opened_source(config(storage.settings), tmp_path, with_rows=False) as source:
        assert source.state.updates == 8
    for name in storage.names("manifests"):
        (storage.folder / "manifests" / name).write_bytes(b"{}")
    with (
        pytest.raises(UserError, match=r"init_from: none of the 2 generations in .* is whole"),
        opened_source(config(storage.settings), tmp_path, with_rows=False),
    ):
        pass


def test_a_place_without_copies_is_told_in_one_line(storage: Storage, tmp_path: Path) -> None:
    settings = storage.settings.model_copy(update={"object_storage": f"{storage.settings.object_storage}/typo"})
    fact = "does not exist" if settings.object_storage.startswith("file:") else "has none yet"
    with (
        pytest.raises(UserError, match=f"init_from: .*/typo.* {fact}"),
        opened_source(config(settings), tmp_path, with_rows=False),
    ):
        pass
    assert not (storage.folder / "typo").exists()
