"""The checkpoint of another run is found from any path into the run, and the run stays as it is."""

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from actorq.errors import UserError
from actorq.statefiles.documents import read_document, write_document, write_twice
from learner_service.training.checkpoint import Checkpoints, LearnerState
from learner_service.training.source import read_source
from tests.learner_service.learner_parts import SPEC

NAMES = ("000000000008", "000000000016", "000000000024")


def save(run: Path, updates: int) -> Path:
    tensors = {"weights": torch.full((4,), float(updates))}
    return Checkpoints(run / "checkpoints", keep=3).save(LearnerState(updates, tensors, {"algorithm": "dqn"}))


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def damage(checkpoint: Path) -> None:
    path = checkpoint / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for updates in (8, 16, 24):
        save(folder, updates)
    write_twice(folder / "environment.json", SPEC.to_json())
    write_document(folder / "run.json", {"run_id": "1", "lives": 1})
    return folder


@pytest.mark.parametrize(
    ("place", "updates"),
    [
        ("", 24),
        ("checkpoints", 24),
        ("checkpoints/000000000016", 16),
        ("checkpoints/000000000008/state.json", 8),
        ("checkpoints/000000000008/tensors.safetensors", 8),
    ],
)
def test_a_run_gives_its_newest_checkpoint_and_a_path_within_it_gives_that_one(
    run: Path, place: str, updates: int
) -> None:
    before = digests(run)
    source = read_source(run / place)
    assert (source.state.updates, source.spec, source.replay) == (updates, SPEC, run / "replay")
    assert torch.equal(source.state.tensors["weights"], torch.full((4,), float(updates)))
    assert digests(run) == before


def test_a_checkpoint_that_was_moved_alone_has_no_replay(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "checkpoints" / NAMES[0], tmp_path / "alone")
    source = read_source(tmp_path / "alone")
    assert (source.state.updates, source.spec, source.replay) == (8, None, None)


def test_the_newest_whole_checkpoint_counts_and_the_damaged_one_stays_in_place(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(run / "checkpoints" / NAMES[2])
    before = digests(run)
    assert read_source(run).state.updates == 16
    assert digests(run) == before
    assert re.search(f"{NAMES[2]} is damaged", caplog.text)


def test_a_checkpoint_that_its_learner_replaces_at_this_moment_counts(run: Path) -> None:
    newest = run / "checkpoints" / NAMES[2]
    newest.rename(newest.with_suffix(".replaced"))
    before = digests(run)
    assert read_source(run).state.updates == 24
    assert digests(run) == before


def test_a_checkpoint_that_its_learner_removes_meanwhile_is_no_damaged_one(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter(_then_newer(run, list(listed(folder)))))
    assert read_source(run).state.updates == 32
    assert "damaged" not in caplog.text


def _then_newer(run: Path, folders: list[Path]) -> list[Path]:
    """What there was, and its newest ones are gone at once: the learner has written two more, and keeps three."""
    if not (run / "checkpoints" / "000000000032").exists():
        save(run, 32)
        for name in NAMES:
            shutil.rmtree(run / "checkpoints" / name, ignore_errors=True)
    return folders


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (lambda run: run / "nowhere", r"got .*/nowhere, which does not exist"),
        (
            lambda run: run / "run.json",
            r"expected state\.json or tensors\.safetensors of a checkpoint, got .*run\.json",
        ),
        (lambda run: run.parent, r"which has no checkpoints; give the --run-directory"),
        (lambda run: _without(run, "checkpoints"), r"expected a run with a checkpoint, got .*which has none yet; wait"),
        (
            lambda run: _emptied(run / "checkpoints"),
            r"expected a run with a checkpoint, got .*which has none yet; wait",
        ),
        (lambda run: _damaged(run), r"none of the 3 checkpoints in .* is whole \(000000000024: .*sha256"),
        (lambda run: _damaged(run) / "checkpoints" / NAMES[1], rf"{NAMES[1]} is damaged \(.*; give another one"),
        (lambda run: _of_format(run, format=1), r"expected a checkpoint of format 2, got 1; use the version"),
        (lambda run: _of_format(run, contract=99), r"contract 99 .*reads contracts up to \d+: use the version"),
    ],
)
def test_a_source_without_a_whole_checkpoint_is_told_in_one_line(make: Any, fact: str, run: Path) -> None:
    path = make(run)
    with pytest.raises(UserError, match=f"^init_from: .*{fact}") as raised:
        read_source(path)
    assert "\n" not in str(raised.value)


def _without(run: Path, name: str) -> Path:
    shutil.rmtree(run / name)
    return run


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder)
    folder.mkdir()
    return folder


def _damaged(run: Path) -> Path:
    for name in NAMES:
        damage(run / "checkpoints" / name)
    return run


def _of_format(run: Path, **header: int) -> Path:
    """The newest checkpoint, as another version of ActorQ would have written it."""
    state = run / "checkpoints" / NAMES[2] / "state.json"
    write_document(state, {**read_document(state), **header})
    return run
