"""A damaged copy in object storage is skipped for the one before it."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from actorq.config.sections import CheckpointConfig
from actorq.errors import UserError
from actorq.statefiles.documents import read_document, write_document
from learner_service.objectstorage import volume
from learner_service.objectstorage.generations import Manifest, manifest_name
from learner_service.objectstorage.uploader import Uploader
from tests.learner_service.objectstorage.stored_runs import PATIENCE_S, Storage, newest, save


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(CheckpointConfig(object_storage=f"file://{tmp_path}/bucket/run"), tmp_path / "bucket/run")


def test_a_copy_without_the_files_of_a_run_is_skipped(storage: Storage, tmp_path: Path) -> None:
    identity = storage.learner(tmp_path / "run", 8, resume=False)
    opened = volume.open_volume(storage.settings, tmp_path / "run")
    assert opened is not None
    opened.generations.write(manifest_name(1, 2), Manifest(identity.run_id, {}))
    storage.begin(tmp_path / "other")
    assert newest(tmp_path / "other").updates == 8


def damaged_object(folder: Path, name: str) -> None:
    path = part_of_weights(folder, name)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut_object(folder: Path, name: str) -> None:
    path = part_of_weights(folder, name)
    path.write_bytes(path.read_bytes()[:-1])


def longer_object(folder: Path, name: str) -> None:
    path = part_of_weights(folder, name)
    path.write_bytes(path.read_bytes() + b"0")


def missing_object(folder: Path, name: str) -> None:
    part_of_weights(folder, name).unlink()


def damaged_manifest(folder: Path, name: str) -> None:
    path = folder / "manifests" / name
    path.write_text(path.read_text().replace("CartPole", "Cartpole").replace("state.json", "stale.json"))


def manifest_of_another_run(folder: Path, name: str) -> None:
    rewrite(folder / "manifests" / name, lambda values: {**values, "run_id": "another"})


def manifest_with_a_path_outside(folder: Path, name: str) -> None:
    rewrite(folder / "manifests" / name, lambda values: {**values, "files": {"../outside": []}})


def manifest_with_a_huge_part(folder: Path, name: str) -> None:
    rewrite(folder / "manifests" / name, lambda values: {**values, "files": {"file": [["0" * 64, 2**40]]}})


def part_of_weights(folder: Path, name: str) -> Path:
    files = json.loads((folder / "manifests" / name).read_text())["files"]
    (path,) = (path for path in files if path.endswith("tensors.safetensors"))
    return folder / "objects" / str(files[path][0][0])


def rewrite(path: Path, change: Callable[[dict[str, object]], dict[str, object]]) -> None:
    write_document(path, change(read_document(path)))


FAULTS = [
    damaged_object,
    cut_object,
    longer_object,
    missing_object,
    damaged_manifest,
    manifest_of_another_run,
    manifest_with_a_path_outside,
    manifest_with_a_huge_part,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_generation_loses_only_itself(
    storage: Storage, fault: Callable[[Path, str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage.learner(tmp_path / "run", 8, resume=False)
    storage.learner(tmp_path / "run", 16)
    fault(storage.folder, storage.names("manifests")[-1])
    storage.begin(tmp_path / "other")
    assert newest(tmp_path / "other").updates == 8
    assert len([line for line in caplog.messages if re.match(r"generation \S+ .*damaged", line)]) == 1
    assert not (tmp_path / "outside").exists()
    # The next learner uploads anyway.
    storage.learner(tmp_path / "other", 24)
    storage.begin(tmp_path / "third")
    assert newest(tmp_path / "third").updates == 24


@pytest.mark.parametrize("document", ["run", "published", "environment", "outcome"])
def test_a_copy_of_a_damaged_file_is_skipped(
    storage: Storage, document: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file was damaged before its upload, so all parts are whole."""
    storage.learner(tmp_path / "run", 8, resume=False)
    identity = storage.learner(tmp_path / "run", 16)
    opened = volume.open_volume(storage.settings, tmp_path / "run")
    assert opened is not None
    name = opened.generations.manifests()[0]
    whole = opened.generations.read(name)
    part = opened.generations.put(b'{"run_id": "damaged"}', set())
    damaged = dict.fromkeys((f"{document}.json", f"{document}.copy.json"), (part,))
    opened.generations.write(name, replace(whole, files={**whole.files, **damaged}))
    _, after = storage.begin(tmp_path / "other")
    assert after.run_id == identity.run_id
    assert newest(tmp_path / "other").updates == 8
    assert len([line for line in caplog.messages if re.match(r"generation \S+ .*damaged", line)]) == 1


def test_a_damaged_file_replaces_no_copy_and_a_whole_copy_repairs_it(storage: Storage, tmp_path: Path) -> None:
    run = tmp_path / "run"
    storage.learner(run, 8, resume=False)
    opened, identity = storage.begin(run)
    save(run, 16)
    mark = (run / "published.json").read_bytes()
    (run / "published.json").write_text("{}")
    uploader = Uploader(opened, identity.run_id, storage.settings, lambda: None)
    uploader.request()
    uploader.close(PATIENCE_S)
    assert uploader.failures > 0
    assert len(storage.names("manifests")) == 1
    (run / "published.json").write_bytes(mark)
    (run / "run.json").write_text("{}")
    storage.upload(opened, identity)
    storage.begin(tmp_path / "other")
    assert newest(tmp_path / "other").updates == 16


def test_a_concurrent_upload_does_not_break_a_restore(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.learner(tmp_path / "run", 8, resume=False)
    alive, identity = storage.begin(tmp_path / "run")
    other = volume.open_volume(storage.settings, tmp_path / "other")
    assert other is not None
    listed, uploads = other.generations.manifests, iter((16, 24, 32))

    def manifests() -> list[str]:
        names = listed()
        for updates in uploads:
            save(tmp_path / "run", updates)
            storage.upload(alive, identity)
        return names

    monkeypatch.setattr(other.generations, "manifests", manifests)
    other.prepare(resume=True)
    assert newest(tmp_path / "other").updates == 32


@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_whole_generation_the_start_is_refused(
    storage: Storage, fault: Callable[[Path, str], None], tmp_path: Path
) -> None:
    storage.learner(tmp_path / "run", 8, resume=False)
    fault(storage.folder, storage.names("manifests")[-1])
    with pytest.raises(UserError, match="none of 1 generations"):
        storage.begin(tmp_path / "other")
    assert not (tmp_path / "other" / "run.json").exists()
