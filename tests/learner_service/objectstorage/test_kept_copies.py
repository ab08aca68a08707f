"""A storage that refuses to delete, such as one for backups, still gets new copies."""

from pathlib import Path

import pytest

from actorq.config.sections import CheckpointConfig
from actorq.errors import UnavailableError
from learner_service.objectstorage.store import ObjectStore
from tests.learner_service.objectstorage.stored_runs import Storage, newest


def test_a_storage_that_refuses_to_delete_gets_new_copies_and_one_log_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: ObjectStore, names: object) -> None:
        if list(names):  # type: ignore[call-overload]
            raise UnavailableError("the service answers AccessDenied")

    storage = Storage(CheckpointConfig(object_storage=f"file://{tmp_path}/bucket/run"), tmp_path / "bucket/run")
    deletes = ObjectStore.delete
    monkeypatch.setattr(ObjectStore, "delete", refuse)
    storage.learner(tmp_path / "run", 8, resume=False)
    for updates in (16, 24, 32, 40):
        storage.learner(tmp_path / "run", updates)
    assert len(storage.names("manifests")) == 5
    assert "AccessDenied" in caplog.text
    monkeypatch.setattr(ObjectStore, "delete", deletes)
    storage.learner(tmp_path / "run", 48)
    assert len(storage.names("manifests")) == 3
    storage.begin(tmp_path / "another")
    assert newest(tmp_path / "another").updates == 48
