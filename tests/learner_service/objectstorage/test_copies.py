"""A run survives its volume: generations go to object storage, and an empty volume gets the newest whole one back."""

import hashlib
import json
import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from actorq.config.sections import CheckpointConfig
from actorq.errors import UnavailableError, UserError
from actorq.statefiles.documents import read_document
from actorq_apps.local.services import reserved_addresses
from learner_service.objectstorage import generations
from learner_service.objectstorage.uploader import Uploader
from tests.builders.clocks import ManualClock
from tests.builders.identities import claimed
from tests.builders.s3_server import CREDENTIALS, s3_server
from tests.learner_service.objectstorage.stored_runs import PATIENCE_S, Storage, newest, save


@pytest.fixture(params=["file", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    if request.param == "file":
        yield Storage(CheckpointConfig(object_storage=f"file://{tmp_path}/bucket/run"), tmp_path / "bucket/run")
        return
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server(tmp_path / "served") as server:
        settings = CheckpointConfig(object_storage="s3://bucket/run", object_storage_endpoint=server.endpoint)
        yield Storage(settings, server.bucket / "run")


def test_a_lost_volume_is_restored_with_its_newest_checkpoint(storage: Storage, tmp_path: Path) -> None:
    storage.learner(tmp_path / "run", 8, resume=False)
    before = storage.learner(tmp_path / "run", 16)
    shutil.rmtree(tmp_path / "run")
    _, after = storage.begin(tmp_path / "other")
    assert after.run_id == before.run_id
    assert newest(tmp_path / "other").updates == 16
    assert torch.equal(newest(tmp_path / "other").tensors["weights"], torch.full((4,), 16.0))
    assert read_document(tmp_path / "other" / "environment.json") == {"environment_id": "CartPole-v1"}


def test_versions_and_processes_of_the_lost_volume_are_not_used_again(storage: Storage, tmp_path: Path) -> None:
    """Also those of a volume that was lost before its first upload."""
    before = storage.learner(tmp_path / "1", 8, resume=False)
    processes, epochs, marks = [before.process], [before.lineage.epoch], [108]
    for name in ("2", "3"):
        _, identity = storage.begin(tmp_path / name)
        processes.append(identity.process)
        epochs.append(identity.lineage.epoch)
        marks.append(read_document(tmp_path / name / "published.json")["mark"])
    assert processes[1] > processes[0] + 1000
    assert processes[2] > processes[1] + 1000
    assert epochs == sorted(set(epochs))
    assert marks[1] >= marks[0] + 2**24
    assert marks[2] >= marks[1] + 2**24


def test_a_file_of_several_parts_is_restored(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.learner(tmp_path / "run", 8, resume=False, large=3 * generations.PART_BYTES // 4)
    storage.begin(tmp_path / "other")
    assert newest(tmp_path / "other").tensors["weights"].shape == (4 + 3 * generations.PART_BYTES // 4,)


def test_only_the_newest_generations_and_their_parts_are_kept(storage: Storage, tmp_path: Path) -> None:
    for updates in range(1, 7):
        storage.learner(tmp_path / "run", updates, resume=updates > 1)
    assert len(storage.names("manifests")) == storage.settings.keep == 3
    values = [json.loads(path.read_text()) for path in (storage.folder / "manifests").iterdir()]
    needed = {sha256 for manifest in values for parts in manifest["files"].values() for sha256, _ in parts}
    assert set(storage.names("objects")) == needed


def test_objects_are_named_after_their_content(storage: Storage, tmp_path: Path) -> None:
    storage.learner(tmp_path / "run", 8, resume=False)
    for path in (storage.folder / "objects").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


@pytest.mark.parametrize("storage", ["file"], indirect=True)
def test_a_removed_object_is_uploaded_again(storage: Storage, tmp_path: Path) -> None:
    storage.learner(tmp_path / "run", 8, resume=False)
    for path in (storage.folder / "objects").iterdir():
        path.unlink()
    storage.learner(tmp_path / "run", 16)
    storage.begin(tmp_path / "other")
    assert newest(tmp_path / "other").updates == 16


@pytest.mark.parametrize("storage", ["file"], indirect=True)
@pytest.mark.parametrize("lost", ["checkpoints", "run.json"])
def test_a_volume_deleted_during_the_run_replaces_no_copy(
    storage: Storage, lost: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened, identity = storage.begin(tmp_path / "run", resume=False)
    save(tmp_path / "run", 8)
    begun = threading.Event()

    def before() -> None:
        path = tmp_path / "run" / lost
        if begun.is_set():
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        begun.set()

    uploader = Uploader(opened, identity.run_id, storage.settings, before)
    uploader.request()
    assert begun.wait(PATIENCE_S)
    # Of the upload after the first one, before which the files go.
    uploader.request()
    uploader.close(PATIENCE_S)
    assert f"{tmp_path / 'run'} has lost files" in caplog.text
    storage.begin(tmp_path / "other")
    assert newest(tmp_path / "other").updates == 8


def test_a_new_run_does_not_replace_a_stored_one(storage: Storage, tmp_path: Path) -> None:
    identity = storage.learner(tmp_path / "run", 8, resume=False)
    with pytest.raises(UserError, match=f"{identity.run_id}; .*--resume"):
        storage.begin(tmp_path / "other", resume=False)


def test_another_run_is_refused(storage: Storage, tmp_path: Path) -> None:
    storage.learner(tmp_path / "run", 8, resume=False)
    claimed(tmp_path / "other", resume=False)
    with pytest.raises(UserError, match="another URL"):
        storage.begin(tmp_path / "other")


def test_the_learner_that_lost_its_run_is_fenced(storage: Storage, tmp_path: Path) -> None:
    storage.learner(tmp_path / "run", 8, resume=False)
    opened, identity = storage.begin(tmp_path / "run")
    storage.learner(tmp_path / "other", 16)
    save(tmp_path / "run", 24)
    uploader = Uploader(opened, identity.run_id, storage.settings, lambda: None)
    uploader.request()
    uploader.close(PATIENCE_S)
    assert "another learner" in str(uploader.conflict)
    with pytest.raises(UserError, match="another learner"):
        storage.begin(tmp_path / "run")
    storage.begin(tmp_path / "third")
    assert newest(tmp_path / "third").updates == 16


def test_a_killed_restore_begins_again(storage: Storage, tmp_path: Path) -> None:
    storage.learner(tmp_path / "run", 8, resume=False)
    storage.begin(tmp_path / "other")
    # As after a kill before the last step.
    for name in ("run.json", "run.copy.json"):
        (tmp_path / "other" / name).unlink()
    (tmp_path / "other" / ".restored.partial").mkdir()
    save(tmp_path / "other", 9_999)
    storage.begin(tmp_path / "other")
    assert newest(tmp_path / "other").updates == 8
    assert not (tmp_path / "other" / ".restored.partial").exists()


def test_a_run_that_has_not_uploaded_starts_from_its_beginning(storage: Storage, tmp_path: Path) -> None:
    _, before = storage.begin(tmp_path / "run", resume=False)
    _, after = storage.begin(tmp_path / "other")
    assert after.run_id == before.run_id
    assert not (tmp_path / "other" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("environment", "bucket", "fact"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong-secret-key"}, "bucket", "SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": "wrong-access-key"}, "bucket", "InvalidAccessKeyId"),
        ({}, "no-such-bucket", "NoSuchBucket"),
    ],
)
def test_an_empty_volume_needs_its_storage(
    environment: dict[str, str], bucket: str, fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**CREDENTIALS, **environment}.items():
        monkeypatch.setenv(name, value)
    with s3_server(tmp_path / "served") as server:
        settings = CheckpointConfig(object_storage=f"s3://{bucket}/run", object_storage_endpoint=server.endpoint)
        with pytest.raises(UserError, match=rf"^checkpoint\.object_storage: s3://{bucket}/run: .*{fact}$"):
            Storage(settings, server.bucket).begin(tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_service_that_does_not_answer_stops_an_empty_volume_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server(tmp_path / "served") as server:
        settings = CheckpointConfig(object_storage="s3://bucket/run", object_storage_endpoint=server.endpoint)
    with pytest.raises(UserError, match=r"^checkpoint.object_storage: s3://bucket/run: [^\n]*$"):
        Storage(settings, server.bucket).begin(tmp_path / "run")
    claimed(tmp_path / "run", resume=False)
    Storage(settings, server.bucket).begin(tmp_path / "run")
    assert "not uploaded" in caplog.text


class Told(logging.Handler):
    """Set when a warning is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.event.set()


def test_uploads_continue_when_the_service_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.INFO)
    with reserved_addresses(1) as (address,):
        uploads_go_on(tmp_path, int(address.rpartition(":")[2]), caplog)


def uploads_go_on(tmp_path: Path, port: int, caplog: pytest.LogCaptureFixture) -> None:
    """The storage is at `port` of this machine, disappears, and returns."""
    with s3_server(tmp_path / "served", port) as server:
        settings = CheckpointConfig(object_storage="s3://bucket/run", object_storage_endpoint=server.endpoint)
        storage = Storage(settings, server.bucket / "run")
        storage.learner(tmp_path / "run", 8, resume=False)
        opened, identity = storage.begin(tmp_path / "run")
    logging.getLogger("learner_service").addHandler(told := Told())
    clock = ManualClock()
    uploader = Uploader(opened, identity.run_id, settings, no_best_policy, clock)
    clock.now = 5.0
    save(tmp_path / "run", 16)
    uploader.request()
    assert told.event.wait(PATIENCE_S)
    logging.getLogger("learner_service").removeHandler(told)
    assert (uploader.failures, uploader.age_s) == (1, 5.0)
    # Checkpoints continue meanwhile. The newest one is uploaded.
    save(tmp_path / "run", 24)
    uploader.request()
    with s3_server(tmp_path / "served", port):
        uploader.close(PATIENCE_S)
        assert len([record for record in caplog.records if "cannot be uploaded" in record.message]) == 1
        assert "uploaded again" in caplog.text
        assert uploader.age_s == 0.0
        storage.begin(tmp_path / "other")
        assert newest(tmp_path / "other").updates == 24


def test_a_failing_upload_at_the_end_does_not_delay_the_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server(tmp_path / "served") as server:
        settings = CheckpointConfig(object_storage="s3://bucket/run", object_storage_endpoint=server.endpoint)
        opened, identity = Storage(settings, server.bucket / "run").begin(tmp_path / "run", resume=False)
    uploader = Uploader(opened, identity.run_id, settings, no_best_policy)
    uploader.request()
    uploader.close(PATIENCE_S)
    assert "not in s3://bucket/run" in caplog.text


def no_best_policy() -> None:
    raise UnavailableError("the quantizer is away")
