"""A newer copy from object storage replaces damaged checkpoints of a run."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actorq.config.sections import CheckpointConfig
from actorq.errors import UserError
from actorq.statefiles.documents import read_document
from learner_service.verify import verify
from tests.builders.s3_server import CREDENTIALS, s3_server
from tests.learner_service.learner_parts import SPEC, config, on_a_loop, segment, store
from tests.learner_service.objectstorage.stored_runs import Storage, newest, save
from tests.learner_service.run.run_parts import a_run, opened


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(CheckpointConfig(object_storage=f"file://{tmp_path}/bucket/run"), tmp_path / "bucket/run")


def change(folder: Path) -> None:
    path = folder / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def cut(folder: Path) -> None:
    path = folder / "state.json"
    path.write_text(path.read_text()[:-9])


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def files(directory: Path) -> dict[tuple[str, str], bytes]:
    """The content of all files of checkpoints, by folder and name."""
    found = (path for path in (directory / "checkpoints").rglob("*") if path.is_file())
    return {(path.parent.name, path.name): path.read_bytes() for path in found}


def names(directory: Path) -> list[str]:
    return sorted(path.name.lstrip("0") for path in (directory / "checkpoints").iterdir())


@pytest.mark.parametrize("damage", [change, cut, empty])
def test_without_a_whole_checkpoint_the_newest_copy_is_restored(
    damage: Callable[[Path], None], storage: Storage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    storage.learner(run, 8, resume=False)
    before = storage.learner(run, 16)
    save(run, 24)
    for folder in (run / "checkpoints").iterdir():
        damage(folder)
    damaged = files(run)
    told = [found.on_resume for found in verify(run) if found.state == "damaged"]
    assert len(told) == 3
    assert all("object storage" in each for each in told)
    _, after = storage.begin(run)
    assert newest(run).updates == 16
    assert names(run) == ["16", "16.damaged", "24.damaged", "8.damaged"]
    aside = files(run)
    assert all(aside[f"{folder}.damaged", name] == data for (folder, name), data in damaged.items())
    assert re.search(rf"checkpoint 16 .*{storage.settings.object_storage}, generation \S", caplog.text)
    # All other files stay, and the volume keeps its claim.
    assert (after.run_id, after.lives) == (before.run_id, before.lives + 1)
    assert read_document(run / "published.json") == {"mark": 116}
    assert storage.names("claims") == ["00000001.json"]
    storage.learner(run, 32)


@contextmanager
def reads_of_tensors() -> Iterator[list[str]]:
    """The files with tensors of checkpoints that are opened to read them."""
    read: list[str] = []
    counting = True

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        # The interpreter cannot remove a hook.
        if counting and event == "open" and "tensors" in str(arguments[0]) and arguments[1] == "r":
            read.append(str(arguments[0]))

    sys.addaudithook(record)
    try:
        yield read
    finally:
        counting = False


@pytest.mark.parametrize("case", ["whole", "damaged", "lost volume"])
@on_a_loop
async def test_a_resume_reads_the_newest_checkpoint_once(case: str, storage: Storage, tmp_path: Path) -> None:
    stored = config(checkpoint=storage.settings.model_dump())
    async with a_run(tmp_path / "run", stored) as run:
        await store(run, await opened(run), segment(1))
        path, updates = await run.save()
    if case == "damaged":
        change(path)
    with reads_of_tensors() as read:
        async with a_run(tmp_path / ("other" if case == "lost volume" else "run"), stored, resume=True) as run:
            assert run.preparation.known == SPEC
    # A damaged one is read once too, and then its copy.
    assert len(read) == (2 if case == "damaged" else 1)
    assert int(Path(read[-1]).parent.name) == updates


def test_a_copy_that_is_no_newer_is_not_downloaded(storage: Storage, tmp_path: Path) -> None:
    run = tmp_path / "run"
    storage.learner(run, 8, resume=False)
    save(run, 16)
    change(run / "checkpoints" / f"{16:012d}")
    # A download would find out.
    shutil.rmtree(storage.folder / "objects")
    with reads_of_tensors() as read:
        storage.begin(run)
    assert [Path(each).parent.name.lstrip("0") for each in read] == ["16", "8"]


@pytest.mark.parametrize(("copied", "expected"), [(24, 24), (8, 16)])
def test_the_newer_of_an_older_checkpoint_and_the_copy_is_used(
    copied: int, expected: int, storage: Storage, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    storage.learner(run, copied, resume=False)
    for updates in (16, 24):
        save(run, updates)
    change(run / "checkpoints" / f"{24:012d}")
    storage.begin(run)
    assert newest(run).updates == expected
    assert "24.damaged" in names(run)


def test_a_killed_restore_of_a_checkpoint_is_repeated(storage: Storage, tmp_path: Path) -> None:
    run = tmp_path / "run"
    storage.learner(run, 8, resume=False)
    folder = run / "checkpoints" / f"{8:012d}"
    # As after a kill between the two renames.
    folder.rename(folder.with_suffix(".damaged"))
    storage.begin(run)
    assert newest(run).updates == 8


def test_a_checkpoint_that_is_damaged_twice_is_restored_twice_and_both_are_kept(
    storage: Storage, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    storage.learner(run, 8, resume=False)
    for text in ("first", "second"):
        (run / "checkpoints" / f"{8:012d}" / "tensors.safetensors").write_text(text)
        storage.begin(run)
        assert newest(run).updates == 8
    assert names(run) == ["8", "8.damaged", "8.damaged-2"]
    kept = files(run)
    texts = [kept[f"{8:012d}.{aside}", "tensors.safetensors"] for aside in ("damaged", "damaged-2")]
    assert texts == [b"first", b"second"]


def test_a_copy_with_a_damaged_checkpoint_is_skipped(
    storage: Storage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint was damaged before its upload."""
    run = tmp_path / "run"
    storage.learner(run, 8, resume=False)
    opened, identity = storage.begin(run)
    save(run, 16)
    change(run / "checkpoints" / f"{16:012d}")
    storage.upload(opened, identity)
    change(run / "checkpoints" / f"{8:012d}")
    storage.begin(run)
    assert newest(run).updates == 8
    storage.begin(tmp_path / "other")
    assert newest(tmp_path / "other").updates == 8
    assert caplog.text.count("checkpoint is damaged") == 2


def test_without_a_whole_checkpoint_here_or_there_the_start_is_refused(storage: Storage, tmp_path: Path) -> None:
    run = tmp_path / "run"
    storage.learner(run, 8, resume=False)
    change(run / "checkpoints" / f"{8:012d}")
    before = files(run)
    shutil.rmtree(storage.folder / "objects")
    with pytest.raises(UserError, match="none of 1 generations"):
        storage.begin(run)
    assert files(run) == before


@pytest.mark.parametrize("whole", [False, True])
def test_an_unreachable_storage_refuses_only_a_start_without_a_whole_checkpoint(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "run"
    with s3_server(tmp_path / "served") as server:
        settings = CheckpointConfig(object_storage="s3://bucket/run", object_storage_endpoint=server.endpoint)
        storage = Storage(settings, server.bucket / "run")
        storage.learner(run, 8, resume=False)
    save(run, 16)
    for updates in (16,) if whole else (8, 16):
        change(run / "checkpoints" / f"{updates:012d}")
    if whole:
        storage.begin(run)
        assert newest(run).updates == 8
    else:
        with pytest.raises(UserError, match=r"^checkpoint\.object_storage: s3://bucket/run: "):
            storage.begin(run)
        assert names(run) == ["16", "8"]


def test_the_learner_that_lost_its_run_restores_no_checkpoint_of_the_other(storage: Storage, tmp_path: Path) -> None:
    run = tmp_path / "run"
    storage.learner(run, 8, resume=False)
    storage.learner(tmp_path / "other", 16)
    change(run / "checkpoints" / f"{8:012d}")
    with pytest.raises(UserError, match="another learner"):
        storage.begin(run)
    assert names(run) == ["8"]
