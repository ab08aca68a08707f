"""The identity of the run in a directory, and the run's time over all lives of its learner."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from actorq.domain.spaces import ArraySpec
from actorq.errors import UserError
from actorq.statefiles.documents import read_document, write_twice
from learner_service.run.identity import RunClock
from tests.builders.clocks import ManualClock
from tests.builders.identities import claimed
from tests.learner_service.learner_parts import SPEC

START = 1_700_000_000.0


def test_a_new_directory_is_a_new_run(tmp_path: Path) -> None:
    one, two = (claimed(tmp_path / name / "deep", resume=False) for name in ("a", "b"))
    assert one.run_id != two.run_id
    assert one.lives == two.lives == 1
    assert one.directory.is_dir()


def test_a_run_is_not_taken_over_by_accident(tmp_path: Path) -> None:
    claimed(tmp_path, resume=False)
    with pytest.raises(UserError, match="--resume"):
        claimed(tmp_path, resume=False)


def test_a_resume_keeps_the_run_and_counts_its_lives(tmp_path: Path) -> None:
    first = claimed(tmp_path, resume=True)  # as a pod does that always resumes
    lives = [claimed(tmp_path, resume=True) for _ in range(2)]
    assert [life.run_id for life in lives] == [first.run_id] * 2
    assert [first.lives, *(life.lives for life in lives)] == [1, 2, 3]


def test_a_written_environment_is_known_to_the_next_learner(tmp_path: Path) -> None:
    identity = claimed(tmp_path, resume=False)
    assert identity.read_environment() is None
    spec = replace(SPEC, observations=ArraySpec((4,), "float32", low=(-1.0,), high=(1.0,)), reward_threshold=475.0)
    identity.write_environment(spec)
    assert claimed(tmp_path, resume=True).read_environment() == spec


@pytest.mark.parametrize("name", ["run.json", "run.copy.json"])
@pytest.mark.parametrize("text", ["", '{"run_id": "other", "lives": 9}', "\0" * 256])
def test_a_damaged_identity_has_a_copy_and_both_are_written_again(tmp_path: Path, name: str, text: str) -> None:
    first = claimed(tmp_path, resume=False)
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match="--resume"):
        claimed(tmp_path, resume=False)
    second = claimed(tmp_path, resume=True)
    assert (second.run_id, second.lives) == (first.run_id, 2)
    written = read_document(tmp_path / name)
    assert (written["run_id"], written["lives"], written["resets"]) == (first.run_id, 2, 0)


def test_a_folder_keeps_the_numbers_of_its_newest_processes(tmp_path: Path) -> None:
    found = [claimed(tmp_path, resume=True) for _ in range(70)]
    *_, before, last = found
    assert len(last.lineage.processes) == 64
    assert last.lineage.processes[:-1] == before.lineage.processes[1:]
    assert [each.process for each in found] == sorted({each.process for each in found})


def test_a_run_of_an_older_version_continues_above_its_lives(tmp_path: Path) -> None:
    write_twice(tmp_path / "run.json", {"run_id": "old", "lives": 2**31 - 10, "resets": 0})
    assert claimed(tmp_path, resume=True).process == 2**31 - 9


def test_a_run_with_both_copies_of_its_identity_damaged_is_refused_in_one_line_and_unchanged(tmp_path: Path) -> None:
    claimed(tmp_path, resume=False)
    for name in ("run.json", "run.copy.json"):
        (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=r"run\.json.*damaged") as caught:
        claimed(tmp_path, resume=True)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "run.json").read_text() == ""


@pytest.mark.parametrize("name", ["environment.json", "environment.copy.json"])
def test_a_damaged_environment_has_a_copy(tmp_path: Path, name: str) -> None:
    identity = claimed(tmp_path, resume=False)
    identity.write_environment(SPEC)
    (tmp_path / name).write_text("")
    assert identity.read_environment() == SPEC


def test_with_both_copies_of_the_environment_damaged_the_next_actor_provides_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identity = claimed(tmp_path, resume=False)
    identity.write_environment(SPEC)
    for name in ("environment.json", "environment.copy.json"):
        (tmp_path / name).write_text("{")
    assert identity.read_environment() is None
    assert "environment.json" in caplog.text


@pytest.mark.parametrize("text", ["", "{}", '{"elapsed_s": 1.0, "at": 0.0, "ended": true}'])
def test_a_damaged_clock_continues_at_the_newest_known_time(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "clock.json").write_text(text)
    run = RunClock(tmp_path, START, ManualClock(START + 2.0), known_s=40.0)
    assert run.elapsed_s == pytest.approx(42.0)
    (line,) = caplog.messages
    assert " 40 s" in line


def test_time_passes_from_the_start_of_the_process(tmp_path: Path) -> None:
    clock = ManualClock(START + 2.0)
    run = RunClock(tmp_path, START, clock)
    assert run.elapsed_s == pytest.approx(2.0)
    clock.now += 3.0
    assert run.elapsed_s == pytest.approx(5.0)


def lived(directory: Path, seconds: float, ended: bool = False) -> None:
    """A learner that started at START and was last heard of so many seconds later."""
    clock = ManualClock(START + seconds)
    RunClock(directory, START, clock).beat(ended)


@pytest.mark.parametrize(
    ("gap", "ended", "counted"),
    [(0.0, False, 0.0), (59.0, False, 59.0), (61.0, False, 0.0), (5.0, True, 0.0), (-5.0, False, 0.0)],
    ids=["none", "a restart", "a pause", "a stop", "a clock that was set back"],
)
def test_a_restart_belongs_to_the_run_and_a_pause_does_not(
    tmp_path: Path, gap: float, ended: bool, counted: float
) -> None:
    lived(tmp_path, 100.0, ended)
    started_at = START + 100.0 + gap
    clock = ManualClock(started_at + 7.0)
    assert RunClock(tmp_path, started_at, clock).elapsed_s == pytest.approx(107.0 + counted)


def test_a_clock_that_is_set_does_not_change_the_time_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunClock(tmp_path, time.time())
    before = run.elapsed_s
    monkeypatch.setattr(time, "time", lambda: START)
    assert before <= run.elapsed_s < before + 60.0
    assert 0.0 <= RunClock(tmp_path / "another", START).elapsed_s < 60.0


def test_the_times_of_the_transitions_outlive_the_learner(tmp_path: Path) -> None:
    clock = ManualClock(START + 5.0)
    run = RunClock(tmp_path, START, clock)
    run.record_transitions()
    clock.now += 10.0
    run.record_transitions()
    run.beat()
    clock.now += 20.0
    later = RunClock(tmp_path, clock.now, clock)
    assert (later.first_transition_s, later.last_transition_s) == (5.0, 15.0)
    later.record_transitions()
    assert (later.first_transition_s, later.last_transition_s) == (5.0, 35.0)


def test_many_lives_add_up(tmp_path: Path) -> None:
    clock = ManualClock(START)
    for _ in range(3):
        run = RunClock(tmp_path, clock.now, clock)
        clock.now += 10.0
        run.beat()
        clock.now += 5.0  # killed, and restarted
    assert RunClock(tmp_path, clock.now, clock).elapsed_s == pytest.approx(45.0)


def test_fields_of_a_later_version_are_not_damage(tmp_path: Path) -> None:
    first = claimed(tmp_path, resume=False)
    values = {name: value for name, value in read_document(tmp_path / "run.json").items() if name != "digest"}
    write_twice(tmp_path / "run.json", {**values, "of_a_later_version": [1, 2]})
    assert claimed(tmp_path, resume=True).run_id == first.run_id
