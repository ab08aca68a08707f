import logging
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from actorq.config.run_config import RunConfig
from actorq.errors import InvalidInputError, UserError
from actorq.rundirectory import Addresses, RunDirectory, new_run_directory, newest_run
from actorq.statefiles.documents import copy_of, write_document

NOW = datetime(2026, 1, 2, 3, 4, 5)


def test_a_new_directory_is_named_after_environment_and_time_and_is_unused(tmp_path: Path) -> None:
    first = new_run_directory("ALE/Pong-v5", NOW, tmp_path)
    assert first.root == tmp_path / "ALE-Pong-v5-20260102-030405"
    first.create(RunConfig())
    assert new_run_directory("ALE/Pong-v5", NOW, tmp_path).root.name == "ALE-Pong-v5-20260102-030405-2"


def test_an_environment_id_cannot_escape_the_runs_folder(tmp_path: Path) -> None:
    assert new_run_directory("../../etc", NOW, tmp_path).root.parent == tmp_path


def test_the_configuration_that_was_written_is_read_again(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create(RunConfig(seed=7))
    assert RunConfig.model_validate(run.config_tree()) == RunConfig(seed=7)


def test_recording_the_same_configuration_again_writes_nothing(tmp_path: Path) -> None:
    run, config = RunDirectory(tmp_path), RunConfig(seed=3)
    run.record_config(config)
    written = run.config.stat().st_mtime_ns, run.config.stat().st_ino
    run.record_config(config)
    assert (run.config.stat().st_mtime_ns, run.config.stat().st_ino) == written
    run.record_config(RunConfig(seed=4))
    assert run.config_tree()["seed"] == 4


@pytest.mark.parametrize("damage", [b"", b"environment: [", b"\xff\xff", b"seed: 9\n"])
def test_reports_a_damaged_configuration_and_uses_its_copy(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create(RunConfig(seed=7))
    run.config.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert RunConfig.model_validate(run.config_tree()) == RunConfig(seed=7)
    assert "config.copy.yaml" in caplog.text


def test_detects_every_changed_byte_of_a_configuration(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create(RunConfig(seed=7))
    data = run.config.read_bytes()
    expected = run.config_tree()
    for position in (*range(0, len(data) - 50, 400), *range(len(data) - 50, len(data))):
        run.config.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        assert run.config_tree() == expected
    run.config.write_bytes(data)
    copy_of(run.config).write_bytes(b"")
    assert run.config_tree() == expected


def test_a_configuration_without_a_digest_and_without_a_copy_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 9\n")
    assert RunDirectory(tmp_path).config_tree() == {"seed": 9}


def test_a_file_where_the_folder_should_be_is_a_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"{tmp_path / 'file' / 'run'} .*Not a directory"):
        RunDirectory(tmp_path / "file" / "run").create(RunConfig())


def test_a_run_begins_in_a_folder_whose_first_file_did_not_fit_on_the_disk(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    partial = tmp_path / ".config.yaml.partial"
    partial.symlink_to("/dev/full")
    with pytest.raises(UserError, match=f"{tmp_path}.*No space left"):
        run.create(RunConfig(seed=7))
    partial.unlink()
    partial.write_text("seed:")
    run.create(RunConfig(seed=7))
    assert RunConfig.model_validate(run.config_tree()) == RunConfig(seed=7)
    with pytest.raises(UserError, match="--resume"):
        run.create(RunConfig())


def test_the_newest_run_is_the_active_one_whose_addresses_were_written_last(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=str(tmp_path)):
        newest_run(tmp_path)
    run, killed = RunDirectory(tmp_path / "a"), RunDirectory(tmp_path / "b")
    for each in (run, killed):
        each.create(RunConfig())
        each.write_addresses(Addresses("127.0.0.1:1", "127.0.0.1:2", {"actor-0": "127.0.0.1:3"}))
    with run.locked(on_wait=pytest.fail):
        assert newest_run(tmp_path).root == run.root
    with pytest.raises(UserError, match=str(tmp_path)):
        newest_run(tmp_path)
    assert run.read_addresses() == Addresses("127.0.0.1:1", "127.0.0.1:2", {"actor-0": "127.0.0.1:3"})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"learner": 1}'])
def test_names_a_damaged_file_of_addresses(tmp_path: Path, text: str) -> None:
    run = RunDirectory(tmp_path)
    run.addresses.write_text(text)
    with pytest.raises(InvalidInputError, match=r"addresses\.json"):
        run.read_addresses()


def test_treats_an_unreadable_summary_as_missing(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.read_summary() == {}
    run.summary.write_text('{"solved": tr')
    assert run.read_summary() == {}
    write_document(run.summary, {"solved": True})
    assert run.read_summary() == {"solved": True}


def test_a_run_has_one_launcher_at_a_time(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with (
        run.locked(on_wait=pytest.fail),
        pytest.raises(UserError, match=f"{tmp_path} .*in use"),
        run.locked(on_wait=pytest.fail),
    ):
        pass
    with run.locked(on_wait=pytest.fail):
        pass


def test_the_next_launcher_waits_for_the_processes_of_the_last_one(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with run.locked(on_wait=pytest.fail) as lock:
        left = subprocess.Popen(
            [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=(lock,)
        )
    waited = []

    def end_it() -> None:
        waited.append(left.poll())
        left.communicate()

    with run.locked(on_wait=end_it):
        assert waited == [None]
        assert left.poll() == 0


@pytest.mark.parametrize("keep_logs", [False, True])
def test_the_folder_of_a_run_that_never_began_can_be_used_again(tmp_path: Path, keep_logs: bool) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create(RunConfig())
    run.log("learner").write_text("Traceback")
    (run.root / "replay").mkdir()
    (run.root / "replay" / "data").write_bytes(b"x")
    run.discard(keep_logs)
    assert {path.name for path in tmp_path.rglob("*")} == ({"run", "logs", "learner.log"} if keep_logs else set())
    run.create(RunConfig(seed=7))
    assert run.config_tree()["seed"] == 7
