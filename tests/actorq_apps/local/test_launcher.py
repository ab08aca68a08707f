"""The launcher's files on disk during a run."""

from dataclasses import replace
from pathlib import Path

from actorq.domain.status import ActorStatus
from actorq.rundirectory import Addresses, RunDirectory
from actorq.statefiles.files import replace_file
from actorq_apps.local.launcher import AddressBook
from tests.actorq_apps.local.test_supervisor import Recorder
from tests.builders.run_status import run_status


def test_a_full_disk_does_not_end_the_run_and_addresses_are_written_once_there_is_room(tmp_path: Path) -> None:
    run, recorder = RunDirectory(tmp_path), Recorder()
    run.announcement("").parent.mkdir()
    book = AddressBook(run, Addresses("127.0.0.1:1", "127.0.0.1:2"), recorder)
    replace_file(run.announcement("actor-0"), '{"address": "127.0.0.1:3"}')
    full = tmp_path / ".addresses.json.partial"
    full.symlink_to("/dev/full")
    status = replace(run_status(), actors=(ActorStatus("actor-0", "actor", 0, connected=True, report=None),))
    book.status(status)
    assert run.read_addresses().actors == {}
    full.unlink()
    book.status(status)
    assert run.read_addresses().actors == {"actor-0": "127.0.0.1:3"}
    assert recorder.statuses == [status, status]
