"""The statistics over tasks and seeds on the pages come from the stored runs."""

import re

import pytest

from benchmarks.comparison import FEWEST_SEEDS
from benchmarks.environments.random_returns import ENVIRONMENTS, random_returns
from benchmarks.pictures import PICTURES
from benchmarks.training import returns
from benchmarks.training.rlx2_sparsities import PAPER, PUBLISHED_LOWEST_FLOPS
from sitegen.parts import part
from sitegen.results import newest_runs
from sitegen.tables.runs import RETURNS, RLX2

_PERCENT = re.compile(r"(-?\d+)% \((-?\d+)% to (-?\d+)%\)")


def rows_of(name: str) -> dict[str, list[str]]:
    """The cells of each row of a generated table, by the first cell."""
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in part(name).splitlines() if line.startswith("|")
    ]
    return {first: others for first, *others in lines[2:]}


def test_random_actions_have_a_return_in_every_environment_of_the_tasks() -> None:
    found = random_returns()
    assert found.keys() == set(ENVIRONMENTS)
    assert {task.environment for task in returns.TASKS} <= found.keys()
    assert 15 < found["CartPole-v1"] < 35
    assert found["MountainCar-v0"] == -200
    assert all(found[task.environment] < task.target for task in returns.TASKS)


def test_a_score_of_the_presets_is_one_at_the_target_and_needs_several_seeds() -> None:
    def run(task: str, mean_return: float) -> dict[str, object]:
        return {"task": task, "confirmed": {"mean_return": mean_return}}

    random = random_returns()["CartPole-v1"]
    runs = [run("dqn/CartPole-v1", 485.0), run("dqn/CartPole-v1", random), run("dqn/Acrobot-v1", -95.0)]
    assert returns.scores(runs) == {"dqn/CartPole-v1": [1.0, 0.0]}


def test_rlx2_is_compared_with_its_control_over_all_tasks_with_several_seeds() -> None:
    found = rows_of("rlx2 over tasks")
    assert list(found) == ["RLx2 over dense", "RLx2 over control", "RLx2 over static", "RLx2 over rigl"]
    tasks, runs, seeds, share, improvement, target = found["RLx2 over control"]
    assert (tasks, runs, seeds) == ("5", "10", "2")
    for text in (share, improvement):
        matched = _PERCENT.fullmatch(text)
        assert matched
        value, low, high = map(int, matched.groups())
        assert low <= value <= high
    assert target == f"lower end at least 85%: **none**: fewer than {FEWEST_SEEDS} seeds of a task"
    assert found["RLx2 over dense"][-1] == ""


def test_the_profile_of_returns_shows_the_results_of_its_page() -> None:
    assert PICTURES["returns_profile"].results == RETURNS


def test_flops_are_averaged_over_the_papers_tasks_beside_the_papers_lowest() -> None:
    lines = [line.split(" | ") for line in part("rlx2 costs over tasks").splitlines()[2:]]
    (found,) = (cells for cells in lines if cells[:2] == ["| td3", "rlx2"])
    ratios = {
        run["task"]: run["flops"]["update"]["ratio"]
        for run in newest_runs(RLX2)
        if run["method"] == "rlx2" and tuple(run["task"].split("/")) in PAPER and run["algorithm"] == "td3"
    }
    assert found[2] == str(len(ratios)) == "4"
    assert float(found[3]) == pytest.approx(sum(ratios.values()) / 4, rel=0.01)
    assert float(found[4]) == pytest.approx(min(ratios.values()), rel=0.01)
    assert lines[-1][1] == "rlx2 in the paper"
    assert [float(lines[-1][index].strip(" |")) for index in (4, 6)] == list(PUBLISHED_LOWEST_FLOPS.values())
    assert not any(cells[1] in ("dense", "control") for cells in lines)


def test_older_runs_have_comparisons_with_methods_that_newer_ones_lack() -> None:
    assert {"RLx2 over tiny", "RLx2 over set"} < rows_of("older rlx2 over tasks").keys()


def test_quantized_actors_and_other_libraries_are_compared_over_tasks() -> None:
    assert list(rows_of("speedup over tasks")) == [
        "int8 over torch",
        "int8 over fp32",
        "int4 over torch",
        "int4 over fp32",
    ]
    for name, tasks in (("parity over tasks", "4"), ("on policy over tasks", "6")):
        ((first, *_),) = rows_of(name).values()
        assert first == tasks
