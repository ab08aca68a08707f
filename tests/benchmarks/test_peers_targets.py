"""Verdicts and numbers of the comparison with other libraries: intervals over seeds, energy, and the printed table."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from actorq_apps.meter.tracker import EnergyTracker, TrackerError, TrackerTotals
from benchmarks.libraries.peers.energy import Energy, metered
from benchmarks.libraries.peers.process import Outcome
from benchmarks.libraries.peers.result import Evaluation, result
from benchmarks.libraries.peers.systems import ACTORQ, ACTORQ_XQC, CROSSQ, RECURRENT, RLLIB, STABLE_BASELINES
from benchmarks.libraries.peers.table import line, table
from benchmarks.libraries.peers.targets import MEANINGS, ratio, targets
from benchmarks.libraries.peers.tasks import MEMORY, TASKS

Run = dict[str, Any]

CHEETAH = next(task for task in TASKS if task.name == "sac/HalfCheetah-v5")
LIMIT = CHEETAH.limit_s
OURS = (300.0, 310.0, 290.0, 320.0, 280.0)


def _runs(seconds: Mapping[str, Sequence[float]]) -> list[Run]:
    """Runs with these seconds, seed by seed. Those at the limit have missed the target."""
    return [
        {"system": system, "task": CHEETAH.name, "seed": seed, "seconds": each, "reached": each < LIMIT}
        for system, found in seconds.items()
        for seed, each in enumerate(found, start=1)
    ]


def _named(seconds: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, bool]]:
    return {
        target.name.partition(": ")[2]: (target.measured, target.met) for target in targets(CHEETAH, _runs(seconds))
    }


def test_continuous_control_has_a_lower_bound_for_each_library_and_a_median_for_stable_baselines() -> None:
    found = _named({ACTORQ: OURS, STABLE_BASELINES: [3.2 * each for each in OURS], CROSSQ: [LIMIT] * 5})
    assert {name: met for name, (_, met) in found.items()} == {
        "lower bound of the seconds of stable-baselines3 over those of actorq": True,
        "median seconds of stable-baselines3 over those of actorq": True,
        "lower bound of the seconds of crossq over those of actorq": True,
        "seeds of actorq that reached the target": True,
    }
    assert found["median seconds of stable-baselines3 over those of actorq"][0] == pytest.approx(3.2)
    assert 2.0 <= found["lower bound of the seconds of stable-baselines3 over those of actorq"][0] < 3.2


def test_seeds_that_differ_much_give_no_lower_bound() -> None:
    # The median is three times as long, but three of five seeds carry it.
    found = _named({ACTORQ: OURS, STABLE_BASELINES: [350.0, 350.0, 900.0, 950.0, 1_000.0]})
    assert found["median seconds of stable-baselines3 over those of actorq"] == (3.0, True)
    measured, met = found["lower bound of the seconds of stable-baselines3 over those of actorq"]
    assert (measured < 1.5, met) == (True, False)


def test_every_seed_of_actorq_must_reach_the_target() -> None:
    found = _named({ACTORQ: (*OURS[:4], LIMIT), STABLE_BASELINES: [LIMIT] * 5})
    assert found["seeds of actorq that reached the target"] == (4, False)


def test_each_algorithm_of_actorq_has_its_own_targets() -> None:
    theirs = {STABLE_BASELINES: [2.5 * each for each in OURS], CROSSQ: [LIMIT] * 5}
    found = _named({ACTORQ: OURS, ACTORQ_XQC: [each / 2 for each in OURS], **theirs})
    assert {name: met for name, (_, met) in found.items() if "median" in name} == {
        "median seconds of stable-baselines3 over those of actorq": False,
        "median seconds of stable-baselines3 over those of actorq-xqc": True,
    }
    assert found["seeds of actorq-xqc that reached the target"] == (5, True)
    assert "lower bound of the seconds of crossq over those of actorq-xqc" in found


def test_few_seeds_give_no_verdict() -> None:
    runs = _runs({ACTORQ: OURS[:4], STABLE_BASELINES: [LIMIT] * 4})
    assert {target.met for target in targets(CHEETAH, runs)} == {False}
    assert "fewer than 5 seeds" in str(targets(CHEETAH, runs)[0])
    assert targets(CHEETAH, _runs({ACTORQ: OURS})) == targets(CHEETAH, _runs({RLLIB: OURS})) == []


def test_the_interval_contains_the_ratio_of_the_medians() -> None:
    found = ratio([600.0, 620.0, 580.0, 900.0, 610.0], OURS)
    assert float(found.value) == pytest.approx(610.0 / 300.0)
    assert float(found.low) < float(found.value) < float(found.high)


def test_each_target_has_an_explanation() -> None:
    for target in targets(CHEETAH, _runs({ACTORQ: OURS, ACTORQ_XQC: OURS, STABLE_BASELINES: OURS, CROSSQ: OURS})):
        assert any(re.fullmatch(meaning.pattern, target.name) for meaning in MEANINGS)


class _Tracker:
    """A tracker whose machine has used this much energy, or that fails."""

    method = "a model"
    tdp_watts: float | None = None

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.closed = fails, False

    def read(self) -> TrackerTotals:
        if self.fails:
            raise TrackerError("no counter")
        return TrackerTotals(cpu_kwh=2e-3, ram_kwh=5e-4, gpu_kwh=0.0, co2_kg=1.0)

    def close(self) -> None:
        self.closed = True


def test_energy_is_that_of_all_parts_of_the_machine() -> None:
    tracker = _Tracker()
    with metered(lambda: tracker) as energy:
        found = energy()
    assert found is not None
    assert found.watt_hours == pytest.approx(2.5)
    assert found.method == "a model"
    assert tracker.closed


def test_a_run_without_a_meter_has_no_energy(capsys: pytest.CaptureFixture[str]) -> None:
    def absent() -> EnergyTracker:
        raise ImportError("No module named 'codecarbon'")

    with metered(absent) as energy:
        assert energy() is None
    with metered(lambda: _Tracker(fails=True)) as energy:
        assert energy() is None
    assert capsys.readouterr().out == (
        "energy: not measured (No module named 'codecarbon')\nenergy: not measured (no counter)\n"
    )


def test_energy_counts_until_the_target() -> None:
    ended = Outcome(0, 400.0, False, 800.0)
    seen = [Evaluation(300.0, 50_000, 5_100.0), Evaluation(390.0, 60_000, 5_000.0)]
    assert result(CHEETAH, seen, 3.0, ended, Energy(8.0, "a model"))["energy"] == {"wh": 6.0, "method": "a model"}
    assert result(CHEETAH, seen, 3.0, ended)["energy"] is None


def test_the_table_has_steps_and_energy_beside_seconds_and_memory() -> None:
    ended = Outcome(0, 400.0, False, 800.0)
    seen = [Evaluation(300.0, 50_000, 5_100.0), Evaluation(390.0, 60_000, 5_000.0)]
    ours = {**result(CHEETAH, seen, 3.0, ended, Energy(8.0, "a model")), "system": ACTORQ}
    theirs = {**result(CHEETAH, [], None, Outcome(0, LIMIT, True, 400.0)), "system": CROSSQ}
    # Older results have no energy.
    del theirs["energy"]
    runs = [{**run, "task": CHEETAH.name, "seed": 1} for run in (ours, theirs)]
    head, _, first, second = ([cell.strip() for cell in row.strip("|").split("|")] for row in table({CHEETAH: runs}))
    by_name = [dict(zip(head, cells, strict=True)) for cells in (first, second)]
    assert [row["steps"] for row in by_name] == ["50,000", "0"]
    assert [row["Wh"] for row in by_name] == ["6.00", "-"]
    assert [row["MB"] for row in by_name] == ["800", "400"]
    assert [row["times as long as ActorQ"] for row in by_name] == ["1.0", "> 4.0"]
    assert line(runs[0]).endswith("50,000 steps, 168 steps/s, 800 MB, 6.00 Wh")
    assert line(runs[1]).endswith("> 1200 s, target missed, 0 steps, no evaluation, 400 MB")


@pytest.mark.parametrize(("theirs", "met"), [(61.0, True), (59.0, False)])
def test_a_task_of_memory_has_half_the_seconds_as_target(theirs: float, met: bool) -> None:
    runs: list[Run] = [
        {"system": system, "task": MEMORY[0].name, "seed": seed, "seconds": seconds, "reached": True}
        for system, seconds in {ACTORQ: 30.0, RECURRENT: theirs}.items()
        for seed in range(1, 6)
    ]
    found = targets(MEMORY[0], runs)
    assert [target.met for target in found] == [met, True]
    assert all(any(re.fullmatch(meaning.pattern, target.name) for meaning in MEANINGS) for target in found)
    few = [run for run in runs if run["seed"] < 5]
    assert {target.refused for target in targets(MEMORY[0], few)} == {"fewer than 5 seeds give no verdict"}
