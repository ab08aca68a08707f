"""Checkpoints are whole or not there, the newest few are kept, and damage costs one of them at most."""

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from actorq.errors import InvalidInputError, UnreadableError, UserError
from actorq.statefiles.documents import read_document, write_document
from learner_service.training.checkpoint import Checkpoints, LearnerState
from learner_service.training.checkpoint_files import CheckpointFiles


def state(updates: int) -> LearnerState:
    tensors = {"online": torch.full((4,), float(updates)), "updates": torch.tensor(updates)}
    return LearnerState(updates, tensors, {"environment": "CartPole-v1", "rng": {"state": 2**100 + updates}})


def large(updates: int) -> LearnerState:
    """A state that needs milliseconds to write."""
    return LearnerState(updates, {"online": torch.full((1_000_000,), float(updates))}, {})


def assert_is(loaded: LearnerState | None, updates: int) -> None:
    assert loaded is not None
    expected = state(updates)
    assert (loaded.updates, loaded.values) == (updates, expected.values)
    assert loaded.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(loaded.tensors[name], tensor)
        assert loaded.tensors[name].dtype == tensor.dtype


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_loaded_checkpoint_equals_the_saved_one(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path, keep=3).save(state(8))
    assert path == tmp_path / "000000000008"
    assert_is(Checkpoints(tmp_path, keep=3).load_newest(), 8)


def test_without_a_checkpoint_nothing_is_loaded(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "new", keep=3).load_newest() is None


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for updates in (8, 16, 24, 1_000):
        checkpoints.save(state(updates))
    assert names(tmp_path) == ["000000000024", "000000001000"]
    assert_is(checkpoints.load_newest(), 1_000)


def test_the_same_number_of_updates_is_replaced(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(LearnerState(8, {"online": torch.zeros(1)}, {}))
    checkpoints.save(state(8))
    assert names(tmp_path) == ["000000000008"]
    assert_is(checkpoints.load_newest(), 8)


def test_a_kill_during_a_save_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    Checkpoints(tmp_path, keep=2).save(state(8))
    half = tmp_path / "000000000016.partial"
    half.mkdir()
    (half / "tensors.safetensors").write_bytes(b"half")
    assert_is(Checkpoints(tmp_path, keep=2).load_newest(), 8)
    assert names(tmp_path) == ["000000000008"]


@pytest.mark.parametrize("new_one_is_there", [True, False])
def test_a_kill_during_a_replacement_leaves_a_whole_checkpoint(tmp_path: Path, new_one_is_there: bool) -> None:
    Checkpoints(tmp_path, keep=2).save(LearnerState(8, {"online": torch.zeros(1)}, {}))
    (tmp_path / "000000000008").rename(tmp_path / "000000000008.replaced")
    if new_one_is_there:
        Checkpoints(tmp_path / "elsewhere", keep=2).save(state(8)).rename(tmp_path / "000000000008")
        (tmp_path / "elsewhere").rmdir()
    loaded = Checkpoints(tmp_path, keep=2).load_newest()
    assert names(tmp_path) == ["000000000008"]
    assert loaded is not None
    assert (loaded.values == state(8).values) == new_one_is_there


def test_a_kill_during_a_removal_leaves_no_partial_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(folder: Path, ignore_errors: bool = False) -> None:
        if folder.exists():
            (folder / "state.json").unlink()
            raise KeyboardInterrupt

    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(state(8))
    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(state(16))
    assert [name for name in names(tmp_path) if name.isdigit()] == ["000000000016"]
    monkeypatch.undo()
    Checkpoints(tmp_path, keep=1)
    assert names(tmp_path) == ["000000000016"]


def test_a_reader_during_a_save_finds_only_whole_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(large(1))
    saved = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not saved.is_set():
            newest = max(path for path in tmp_path.iterdir() if path.name.isdigit())
            seen.append(CheckpointFiles.read(newest).updates)

    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(read)
        for updates in range(2, 22):
            checkpoints.save(large(updates))
        saved.set()
        # Raises the reader's exceptions.
        reading.result()
    assert len(set(seen)) > 2


def truncate_tensors(folder: Path) -> None:
    path = folder / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(folder: Path) -> None:
    path = folder / "tensors.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def truncate_state(folder: Path) -> None:
    path = folder / "state.json"
    path.write_text(path.read_text()[:-5])


def drop_values(folder: Path) -> None:
    path = folder / "state.json"
    header = json.loads(path.read_text())
    del header["values"]
    path.write_text(json.dumps(header))


def change_format(folder: Path) -> None:
    path = folder / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))


def remove_tensors(folder: Path) -> None:
    (folder / "tensors.safetensors").unlink()


DAMAGES = [truncate_tensors, flip_a_bit, truncate_state, drop_values, change_format, remove_tensors]


def test_each_damaged_one_of_the_same_number_is_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3, new_networks=True)
    for number in range(3):
        folder = checkpoints.save(state(8))
        (folder / "tensors.safetensors").write_text(f"damaged {number}")
        assert checkpoints.load_newest() is None
    names = ("000000000008.damaged", "000000000008.damaged-2", "000000000008.damaged-3")
    texts = [(tmp_path / name / "tensors.safetensors").read_text() for name in names]
    assert texts == ["damaged 0", "damaged 1", "damaged 2"]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_newest_checkpoint_falls_back_to_the_previous_one(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(state(8))
    damage(checkpoints.save(state(16)))
    assert_is(checkpoints.load_newest(), 8)


def test_a_damaged_checkpoint_does_not_displace_a_good_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(state(8))
    flip_a_bit(checkpoints.save(state(100)))
    resumed = Checkpoints(tmp_path, keep=1)
    assert_is(resumed.load_newest(), 8)
    assert resumed.save(state(16)).exists()
    assert_is(resumed.load_newest(), 16)


def test_when_all_are_damaged_nothing_starts_and_nothing_changes(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for updates in (8, 16):
        flip_a_bit(checkpoints.save(state(updates)))
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    with pytest.raises(UserError, match=r"^checkpoints: .* 2 .*000000000016: .*--checkpoint.new-networks"):
        checkpoints.load_newest()
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*")} == before


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors"])
def test_a_checkpoint_that_cannot_be_read_does_not_count_as_damaged(
    tmp_path: Path, number: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3, new_networks=True)
    for updates in (8, 16):
        checkpoints.save(state(updates))
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == name and path.parent.name.endswith("16"):
            raise OSError(number, os.strerror(number), str(path))
        return read(path)

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UnreadableError, match=f"{name} .*{os.strerror(number)}"):
        checkpoints.load_newest()
    monkeypatch.undo()
    assert names(tmp_path) == ["000000000008", "000000000016"]
    assert_is(checkpoints.load_newest(), 16)


def test_with_the_flag_new_networks_replace_damaged_ones_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3, new_networks=True)
    for updates in (8, 16):
        flip_a_bit(checkpoints.save(state(updates)))
    assert checkpoints.load_newest() is None
    assert "new networks" in caplog.text
    # They are kept for a repair, and no longer count.
    assert names(tmp_path) == ["000000000008.damaged", "000000000016.damaged"]


def test_a_save_that_fails_raises_its_own_error(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    (tmp_path / "000000000008.partial").touch()
    with pytest.raises(FileExistsError):
        checkpoints.save(state(8))


@pytest.mark.parametrize(("field", "fact"), [("format", "format 2, .*99"), ("contract", "contract 99")])
def test_a_checkpoint_of_another_version_of_actorq_is_refused_in_one_line(
    tmp_path: Path, field: str, fact: str
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    path = checkpoints.save(state(8)) / "state.json"
    write_document(path, {**read_document(path), field: 99})
    with pytest.raises(UserError, match=fact):
        checkpoints.load_newest()
    assert names(tmp_path) == ["000000000008"]


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors"])
def test_a_change_of_any_byte_of_a_checkpoint_is_detected(tmp_path: Path, name: str) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    folder = checkpoints.save(state(8))
    data = (folder / name).read_bytes()
    for position in range(len(data)):
        (folder / name).write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(InvalidInputError):
            CheckpointFiles.read(folder)
