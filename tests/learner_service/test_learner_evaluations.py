"""The log of evaluations: on disk before they are acknowledged, and read again by the next learner."""

import json
from pathlib import Path

import pytest
from learner_parts import evaluation

from learner_service.evaluations import EvaluationLog
from learner_service.members import Member

JUDGE = Member("judge", "evaluator", 0, incarnation=1)
REBORN = Member("judge", "evaluator", 0, incarnation=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evaluations.jsonl"


def filled(path: Path) -> EvaluationLog:
    log = EvaluationLog(path)
    log.append(JUDGE, evaluation(1, 4, 10.0, 20.0), environment_steps=100, wall_clock_s=1.0004)
    log.append(JUDGE, evaluation(2, 8, 30.0), environment_steps=200, wall_clock_s=2.0)
    return log


def test_before_the_first_there_is_nothing(path: Path) -> None:
    log = EvaluationLog(path)
    assert (log.count, log.newest, list(log.curve), log.last_sequence(JUDGE)) == (0, None, [], 0)
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


def test_the_next_learner_reads_what_a_killed_one_wrote(path: Path) -> None:
    killed = filled(path)  # never closed
    log = EvaluationLog(path)
    assert log.count == 2
    assert log.newest == evaluation(2, 8, 30.0)
    assert log.curve == killed.curve
    assert log.last_sequence(JUDGE) == 2
    log.close()


def test_each_life_of_an_evaluator_counts_for_itself(path: Path) -> None:
    log = filled(path)
    log.append(REBORN, evaluation(1, 9, 5.0), 300, 3.0)
    assert (log.last_sequence(JUDGE), log.last_sequence(REBORN)) == (2, 1)
    assert log.last_sequence(Member("other", "evaluator", 1, incarnation=1)) == 0
    log.close()


@pytest.mark.parametrize("cut", [1, 40], ids=["the newline is missing", "half of it is missing"])
def test_a_line_that_was_torn_by_a_kill_is_dropped_and_written_over(path: Path, cut: int) -> None:
    filled(path).close()
    path.write_bytes(path.read_bytes()[:-cut])
    log = EvaluationLog(path)
    assert (log.count, log.last_sequence(JUDGE)) == (1, 1)
    # It was never acknowledged, so the evaluator sends it again.
    log.append(JUDGE, evaluation(2, 8, 30.0), 200, 2.0)
    log.close()
    assert [json.loads(line)["evaluation"]["sequence"] for line in path.read_text().splitlines()] == [1, 2]
    again = EvaluationLog(path)
    assert (again.count, again.last_sequence(JUDGE)) == (2, 2)
    again.close()
