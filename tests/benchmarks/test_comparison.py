"""Comparisons of two kinds of runs over tasks and seeds: values worked out by hand, and the tasks that are left out."""

from typing import Any

import pytest

from benchmarks.comparison import FEWEST_SEEDS, compare, returns_by_task, scores
from benchmarks.training import rlx2


def _runs(method: str, returns: dict[str, list[float]]) -> list[dict[str, Any]]:
    return [
        {"task": task, "method": method, "confirmed": {"mean_return": value}}
        for task, values in returns.items()
        for value in values
    ]


def test_equal_runs_have_the_same_mean_and_improve_in_half_of_the_comparisons() -> None:
    # Two of nine runs fail. The interquartile mean leaves them out on both sides.
    returns = {"a": [10.0, 11.0, 0.0, 12.0, 10.0], "b": [100.0, 110.0, 0.0, 90.0]}
    found = compare(returns, returns)
    assert found is not None
    assert (found.tasks, found.runs, found.seeds) == (2, 9, 4)
    assert found.share.value == 1.0
    assert found.share.low < 1.0 < found.share.high
    assert found.improvement.value == 0.5


def test_returns_of_each_task_are_relative_to_the_other_runs_and_to_its_floor() -> None:
    # In both tasks ours are halfway between the floor and theirs.
    ours, theirs = {"a": [15.0, 15.0], "b": [-150.0, -150.0]}, {"a": [20.0, 20.0], "b": [-100.0, -100.0]}
    found = compare(ours, theirs, {"a": 10.0, "b": -200.0})
    assert found is not None
    assert found.share.low == found.share.value == found.share.high == pytest.approx(0.5)
    assert found.improvement.value == 0.0


def test_tasks_without_several_runs_of_both_kinds_or_without_learning_are_left_out() -> None:
    ours = {"a": [1.0, 2.0], "one seed": [1.0], "alone": [1.0, 2.0], "no learning": [1.0, 2.0]}
    theirs = {"a": [1.0, 2.0], "one seed": [1.0, 2.0], "no learning": [0.0, 0.1]}
    found = compare(ours, theirs, {"no learning": 0.2})
    assert found is not None
    assert (found.tasks, found.runs) == (1, 2)
    assert compare({"a": [1.0]}, theirs) is None


def test_few_seeds_give_no_verdict() -> None:
    enough = [float(value) for value in range(1, FEWEST_SEEDS + 1)]
    found = compare({"a": enough, "b": enough}, {"a": enough, "b": enough[1:]})
    assert found is not None
    assert found.refused == f"fewer than {FEWEST_SEEDS} seeds of a task"
    found = compare({"a": enough}, {"a": enough})
    assert found is not None
    assert found.refused == ""


def test_a_score_is_zero_at_the_floor_and_one_at_the_unit() -> None:
    assert scores({"a": [-200.0, -150.0, -100.0]}, {"a": [-90.0, -110.0]}, {"a": -200.0}) == {"a": [0.0, 0.5, 1.0]}
    assert scores({"a": [3.0]}, {"a": [2.0]}) == {"a": [1.5]}


def test_runs_are_grouped_by_task() -> None:
    assert returns_by_task(_runs("dense", {"a": [1.0, 2.0], "b": [3.0]})) == {"a": [1.0, 2.0], "b": [3.0]}


DENSE = {"a": [9.0, 10.0, 10.0, 10.0, 11.0], "b": [90.0, 100.0, 100.0, 100.0, 110.0]}


def _scaled(share: float) -> dict[str, list[float]]:
    return {task: [share * value for value in values] for task, values in DENSE.items()}


@pytest.mark.parametrize(("share", "met"), [(0.95, True), (0.86, False), (0.5, False)])
def test_the_lower_end_of_rlx2_over_its_control_decides(share: float, met: bool) -> None:
    (found,) = rlx2.targets_over_tasks([*_runs("control", DENSE), *_runs("rlx2", _scaled(share))])
    assert found.name == f"2 tasks: rlx2 over control, interquartile mean, lower end (10 runs: {share:.2f})"
    assert found.measured < share
    assert (found.met, found.refused) == (met, "")


def test_rlx2_has_bounds_over_simpler_sparse_methods_but_not_over_rigl() -> None:
    runs = [*_runs("rlx2", DENSE), *_runs("static", _scaled(0.5)), *_runs("set", _scaled(2.0)), *_runs("rigl", DENSE)]
    found = rlx2.targets_over_tasks(runs)
    assert [(each.name.partition(",")[0], each.measured, each.met) for each in found] == [
        ("2 tasks: rlx2 over static", 1.0, True),
        ("2 tasks: rlx2 over set", 0.0, False),
    ]


def test_one_task_gives_no_target_over_tasks_and_a_missing_seed_no_verdict() -> None:
    runs = [*_runs("control", DENSE), *_runs("rlx2", DENSE)]
    assert rlx2.targets_over_tasks([run for run in runs if run["task"] == "a"]) == []
    (found,) = rlx2.targets_over_tasks(runs[1:])
    assert found.refused == f"fewer than {FEWEST_SEEDS} seeds of a task"
    assert not found.met
