"""Running figures, by a clock that the test moves."""

import json

import pytest

from learner_service.reporting.meters import Episodes, RateMeter, Samples, StalenessHistogram
from tests.builders.clocks import ManualClock


def test_a_rate_needs_two_times_and_then_counts_per_second() -> None:
    clock = ManualClock()
    meter = RateMeter(clock)
    assert meter.rate(10) == 0.0
    clock.now = 2.0
    assert meter.rate(30) == 10.0


def test_a_rate_forgets_what_is_older_than_its_window() -> None:
    clock = ManualClock()
    meter = RateMeter(clock, window_s=5.0)
    for second in range(20):
        clock.now = float(second)
        # 100 a second for ten seconds, then nothing.
        rate = meter.rate(min(second, 10) * 100)
    assert rate == 0.0
    clock.now = 20.0
    assert meter.rate(1500) == pytest.approx(100.0)


def test_a_falling_count_starts_a_new_window() -> None:
    clock = ManualClock()
    meter = RateMeter(clock)
    meter.rate(800)
    clock.now = 1.0
    assert meter.rate(0) == 0.0
    clock.now = 2.0
    assert meter.rate(50) == 50.0


def test_a_frequently_read_rate_still_covers_its_window() -> None:
    clock = ManualClock()
    meter = RateMeter(clock, window_s=5.0)
    for tick in range(100_000):
        clock.now = tick / 10_000
        rate = meter.rate(tick)
    assert rate == pytest.approx(10_000, rel=1e-3)


def test_percentiles_are_the_smallest_values_that_enough_elements_do_not_exceed() -> None:
    histogram = StalenessHistogram()
    assert histogram.percentile(50) == 0.0
    for staleness, count in ((0, 1), (1, 2), (2, 1), (7, 1)):
        histogram.add(staleness, count)
    assert [histogram.percentile(p) for p in (20, 50, 80, 81, 99, 100)] == [0, 1, 2, 7, 7, 7]


def test_staleness_below_zero_counts_as_none_and_above_the_bins_as_the_last() -> None:
    histogram = StalenessHistogram(bins=4)
    histogram.add(-5, 1)
    histogram.add(100, 1)
    assert histogram.state() == [1, 0, 0, 1]


def test_statistics_are_restored_from_json() -> None:
    histogram, restored = StalenessHistogram(), StalenessHistogram()
    histogram.add(0, 1)
    histogram.add(3, 2)
    restored.add(9, 1)
    restored.load_state(json.loads(json.dumps(histogram.state())))
    assert restored.state() == histogram.state() == [1, 0, 0, 2]

    episodes, again = Episodes(window=2), Episodes(window=2)
    for episode_return in (1.0, 2.0, 4.0):
        episodes.add(episode_return)
    again.load_state(json.loads(json.dumps(episodes.state())))
    assert (again.count, again.mean_return) == (3, 3.0)


def test_means_and_medians_are_of_the_last_values_and_absent_before_the_first() -> None:
    episodes, samples = Episodes(), Samples(window=3)
    assert episodes.mean_return is None
    assert samples.median is None
    episodes.add(5.0)
    samples.add([100.0, 1.0, 3.0, 2.0])
    assert episodes.mean_return == 5.0
    assert samples.median == 2.0
