"""Statistics over tasks and seeds: values worked out by hand, and the coverage of the intervals."""

import numpy as np
import pytest

from benchmarks.statistics import estimate, improvement, interquartile_mean, performance_profile


def test_the_interquartile_mean_is_the_mean_of_the_middle_half_of_all_tasks() -> None:
    assert interquartile_mean([np.arange(1.0, 5.0), np.arange(5.0, 9.0)]) == 4.5
    assert interquartile_mean([np.array([0.0, 1.0, 2.0, 1_000.0])]) == 1.5


def test_equal_runs_improve_in_half_of_the_comparisons() -> None:
    assert improvement([np.array([1.0, 2.0])], [np.array([1.0, 2.0])]) == 0.5
    # 3 of 4 comparisons in the first task, none in the second.
    better, same = np.array([1.0, 4.0]), np.array([0.0])
    assert improvement([better, same], [np.array([0.0, 2.0]), np.array([1.0])]) == pytest.approx(0.375)


def test_a_profile_counts_the_runs_above_each_threshold() -> None:
    profile = performance_profile([0.0, 0.5, 1.0])
    np.testing.assert_allclose(profile([np.array([0.2, 0.6]), np.array([1.0, 0.4])]), [1.0, 0.5, 0.0])


def test_each_task_is_resampled_on_its_own() -> None:
    # Equal runs within a task leave nothing to vary, however much the tasks differ.
    found = estimate(interquartile_mean, {"a": [0.0, 0.0], "b": [1.0, 1.0]})
    assert found.low == found.value == found.high == 0.5


def test_an_interval_covers_the_true_value_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        found = estimate(interquartile_mean, {"a": rng.normal(size=30), "b": rng.normal(size=30)}, confidence=0.9)
        covered += bool(found.low <= 0.0 <= found.high)
    assert 165 <= covered <= 195


def test_a_difference_of_two_samples_has_an_interval() -> None:
    def difference(ours: list[np.ndarray], theirs: list[np.ndarray]) -> np.ndarray:
        return interquartile_mean(ours) - interquartile_mean(theirs)

    found = estimate(difference, {"a": [3.0, 4.0, 5.0], "b": [1.0, 1.1]}, {"b": [0.0, 0.1], "a": [2.0, 3.0, 4.0]})
    assert found.value == pytest.approx(1.0)
    assert found.low < found.value < found.high


def test_the_same_scores_give_the_same_interval() -> None:
    scores = {"a": [0.1, 0.5, 0.9]}
    assert estimate(interquartile_mean, scores) == estimate(interquartile_mean, scores)


@pytest.mark.parametrize("other", [{"a": [1.0]}, {"a": [1.0], "b": []}])
def test_samples_need_runs_of_the_same_tasks(other: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="expected runs of a, b in each sample"):
        estimate(improvement, {"a": [1.0], "b": [2.0]}, other)
