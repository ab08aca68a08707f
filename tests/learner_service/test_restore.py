"""`actorq restore`: a learner continues from a copy of a run's folder, above all numbers that the run may have used."""

import re
import shutil
from pathlib import Path

import pytest

from actorq.domain.lineage import unique_number
from actorq.errors import UserError
from actorq.statefiles.documents import read_document, write_document, write_twice
from learner_service.actors.members import Members
from learner_service.files import OBJECT_STORAGE
from learner_service.restore import command, restore
from learner_service.run.identity import RunIdentity, locked
from tests.builders.identities import claimed


def test_a_restore_skips_numbers_that_the_run_may_have_used(tmp_path: Path) -> None:
    before = claimed(tmp_path, resume=False)
    write_document(tmp_path / "published.json", {"mark": 300})
    run_id, epoch, mark = restore(tmp_path)
    assert (run_id, mark) == (before.run_id, 300 + 2**24)
    assert read_document(tmp_path / "published.json")["mark"] == mark
    after = claimed(tmp_path, resume=True)
    assert after.run_id == before.run_id
    assert after.lineage.epoch == epoch > before.lineage.epoch
    assert after.lineage.processes[0] not in before.lineage.processes
    assert after.process > before.process + 1
    assert after.lives == before.lives + 1


def test_the_command_prints_the_new_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = claimed(tmp_path, resume=False).run_id
    monkeypatch.setattr("sys.argv", ["actorq restore", str(tmp_path)])
    assert command() == 0
    first, second = capsys.readouterr().out.splitlines()
    assert re.search(f"{run_id} .*version {2**24}$", first)
    assert "--resume" in second


def test_two_later_copies_never_assign_the_same_incarnation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without `actorq restore`: a restored volume continues at an earlier life."""
    now = [1_800_000_000.0]
    monkeypatch.setattr("actorq.domain.lineage.time.time", lambda: now[0])
    claimed(tmp_path / "run", resume=False)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    given: list[int] = []
    for name in ("run", "run", "copy", "copy"):
        now[0] += 60.0
        members = Members(claimed(tmp_path / name, resume=True).process, lambda: 0.0)
        given += [members.join(f"actor-{number}", 0, "actor").incarnation for number in range(3)]
    assert len(set(given)) == len(given)


def test_a_clock_that_goes_back_does_not_lower_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorq.domain.lineage.time.time", lambda: 0.0)
    assert unique_number(7) == 8


def test_the_copies_in_object_storage_are_taken_over(tmp_path: Path) -> None:
    claimed(tmp_path, resume=False)
    write_twice(tmp_path / OBJECT_STORAGE, {"volume": "first"})
    restore(tmp_path)
    volume = read_document(tmp_path / OBJECT_STORAGE)
    assert volume["volume"] != "first"
    assert volume["takes_over"] is True


def test_a_busy_empty_or_missing_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no run\.json"):
        restore(tmp_path)
    with pytest.raises(UserError, match=r"/missing .*folder"):
        restore(tmp_path / "missing")
    identity = claimed(tmp_path, resume=False)
    with locked(tmp_path), pytest.raises(UserError, match="in use"):
        restore(tmp_path)
    assert RunIdentity.read(tmp_path, resume=True).lineage.epoch == identity.lineage.epoch
