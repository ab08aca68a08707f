"""The log of evaluations: on disk before they are acknowledged, and read again by the next learner."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from actorq.statefiles.lines import encode_line
from learner_service.actors.members import Member
from learner_service.run.evaluations import Entry, EvaluationLog, count_file, synced_count
from tests.learner_service.learner_parts import evaluation, room_for

JUDGE = Member("judge", "evaluator", 0, incarnation=1)
REBORN = Member("judge", "evaluator", 0, incarnation=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evaluations.jsonl"


def last(log: EvaluationLog, member: Member) -> int:
    """The last stored sequence of a member."""
    return log.sequences.last(*member.source_key)


def filled(path: Path) -> EvaluationLog:
    log = EvaluationLog(path)
    log.append(JUDGE, evaluation(1, 4, 10.0, 20.0), environment_steps=100, wall_clock_s=1.0004)
    log.append(JUDGE, evaluation(2, 8, 30.0), environment_steps=200, wall_clock_s=2.0)
    return log


def test_a_new_log_has_no_evaluations(path: Path) -> None:
    log = EvaluationLog(path)
    assert (log.count, log.newest, list(log.curve), last(log, JUDGE)) == (0, None, [], 0)
    log.close()


def test_each_evaluation_is_a_point_of_the_curve(path: Path) -> None:
    log = filled(path)
    assert log.count == 2
    assert log.newest == evaluation(2, 8, 30.0)
    assert log.curve[0] == {
        "environment_steps": 100,
        "updates": 0,
        "wall_clock_s": 1.0,
        "policy_version": 4,
        "scheme": "int8",
        "mean_return": 15.0,
    }
    assert [point["mean_return"] for point in log.curve] == [15.0, 30.0]
    log.close()


def test_a_success_rate_is_kept_and_earlier_lines_have_none(path: Path) -> None:
    log = filled(path)
    successful = replace(evaluation(3, 9, 1.0, 2.0), successes=(True, False))
    log.append(JUDGE, successful, 300, 3.0)
    log.close()
    lines = path.read_bytes().splitlines()
    # As a learner before success rates has written it.
    values = asdict(Entry(JUDGE.name, 1, 100, 1.0004, evaluation(1, 4, 10.0, 20.0)))
    del values["evaluation"]["successes"]
    path.write_bytes(b"\n".join([encode_line(values).rstrip(b"\n"), *lines[1:]]) + b"\n")
    log = EvaluationLog(path)
    assert log.newest == successful
    assert [point.get("success_rate") for point in log.curve] == [None, None, 0.5]
    log.close()


def test_the_next_learner_reads_what_a_killed_one_wrote(path: Path) -> None:
    killed = filled(path)  # never closed
    log = EvaluationLog(path)
    assert log.count == 2
    assert log.newest == evaluation(2, 8, 30.0)
    assert log.curve == killed.curve
    assert last(log, JUDGE) == 2
    log.close()


def test_each_life_of_an_evaluator_counts_for_itself(path: Path) -> None:
    log = filled(path)
    log.append(REBORN, evaluation(1, 9, 5.0), 300, 3.0)
    assert (last(log, JUDGE), last(log, REBORN)) == (2, 1)
    assert last(log, Member("other", "evaluator", 1, incarnation=1)) == 0
    log.close()


def test_a_line_without_its_newline_is_whole(path: Path) -> None:
    filled(path).close()
    before = path.read_bytes()
    path.write_bytes(before[:-1])
    log = EvaluationLog(path)
    assert (log.count, last(log, JUDGE)) == (2, 2)
    log.close()
    assert path.read_bytes() == before


def test_a_line_torn_by_a_kill_is_dropped_and_overwritten(path: Path) -> None:
    filled(path).close()
    path.write_bytes(path.read_bytes()[:-40])
    log = EvaluationLog(path)
    assert (log.count, last(log, JUDGE)) == (1, 1)
    # It was never acknowledged, so the evaluator sends it again.
    log.append(JUDGE, evaluation(2, 8, 30.0), 200, 2.0)
    log.close()
    assert [json.loads(line)["evaluation"]["sequence"] for line in path.read_text().splitlines()] == [1, 2]
    again = EvaluationLog(path)
    assert (again.count, last(again, JUDGE)) == (2, 2)
    again.close()


def test_an_evaluation_that_the_disk_refuses_leaves_the_log_whole(path: Path) -> None:
    log = filled(path)
    with room_for(path.stat().st_size + 40), pytest.raises(OSError, match="File too large"):
        log.append(JUDGE, evaluation(3, 9, 40.0), environment_steps=300, wall_clock_s=3.0)
    assert log.count == 2
    log.append(JUDGE, evaluation(3, 9, 40.0), environment_steps=300, wall_clock_s=3.0)
    log.close()
    log = EvaluationLog(path)
    assert log.count == 3
    log.close()


def test_a_damaged_line_is_logged_and_set_aside_and_the_other_lines_are_used(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(path).close()
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"\0" + whole[0][1:] + whole[1])
    log = EvaluationLog(path)
    assert (log.count, last(log, JUDGE), log.curve[-1]["wall_clock_s"]) == (1, 2, 2.0)
    log.close()
    (line,) = caplog.messages
    assert re.search(r"evaluations\.jsonl: 1 damaged .*evaluations\.jsonl\.damaged, 1 ", line)
    assert path.read_bytes() == whole[1]
    assert path.with_name("evaluations.jsonl.damaged").read_bytes() == b"\0" + whole[0][1:]


def test_a_sync_of_evaluations_is_on_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    log = filled(path)
    monkeypatch.setattr("learner_service.run.evaluations.os.fsync", synced.append)
    log.sync()
    first = list(synced)
    assert first
    log.sync()  # nothing new
    assert synced == first
    log.append(JUDGE, evaluation(3, 9, 5.0), 300, 3.0)
    log.close()
    assert synced == first * 2


def test_a_log_truncated_between_two_lines_is_reported_and_its_lines_are_used(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(path).close()
    first, _ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first)
    assert EvaluationLog(path).count == 1
    (line,) = caplog.messages
    assert line.startswith("evaluations.jsonl: 1 ")
    caplog.clear()
    path.write_bytes(b"")
    log = EvaluationLog(path)
    assert caplog.messages == [line]
    log.append(JUDGE, evaluation(1, 4, 10.0), 100, 1.0)
    log.close()
    caplog.clear()
    assert EvaluationLog(path).count == 1
    assert not caplog.records


def test_a_damaged_count_is_logged_and_written_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(path).close()
    count_file(path).write_bytes(b"")
    assert EvaluationLog(path).count == 2
    assert count_file(path).name in caplog.text
    assert synced_count(path) == 2


def test_a_log_that_cannot_be_set_aside_stays_in_use(path: Path, tmp_path: Path) -> None:
    log = filled(path)
    count = log.count
    with pytest.raises(FileNotFoundError):
        log.set_aside(tmp_path / "no folder")
    assert log.append(JUDGE, evaluation(99, 1, 5.0), 0, 0.0)
    assert log.count == count + 1
    log.close()
