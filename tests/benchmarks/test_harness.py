"""The frame that all benchmarks share: exit codes, the check, stored results, and the end of what was started."""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from actorq.arithmetic import arithmetic
from actorq.domain.policy import SIGNED
from benchmarks import harness, processor
from benchmarks.conditions import conditions
from benchmarks.faults.chaos.fleet import Fleet
from benchmarks.harness import ONE_SEED, Target, run_benchmark
from benchmarks.learner.learner_timing import Turns, speedup, take_turns
from benchmarks.processor import BFLOAT16, DOT_PRODUCT, NO_DOT_PRODUCT
from tests.builders.emulation import without_dot_product


def _benchmark(monkeypatch: pytest.MonkeyPatch, flags: list[str], *targets: Target) -> int:
    monkeypatch.setattr("sys.argv", ["/anywhere/speed.py", *flags])
    return run_benchmark("A benchmark.", lambda parser: None, lambda arguments: ({}, list(targets)))


def test_sigterm_ends_a_measurement_with_all_that_it_has_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path, {})

    def measure(_: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
        try:
            fleet.start("service", "http.server", "0")
            os.kill(os.getpid(), signal.SIGTERM)
            return {}, []
        finally:
            fleet.close()

    monkeypatch.setattr("sys.argv", ["benchmark"])
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        run_benchmark("A benchmark.", lambda parser: None, measure)
    assert not psutil.pid_exists(fleet.pid("service"))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


FAST = Target("times faster", 7.0, 6.0, at_most=False, needs=DOT_PRODUCT)
SLOW = Target("times slower", 7.0, 8.0, at_most=False, needs=NO_DOT_PRODUCT)
REFUSED = Target("return of 1 seed", 9.0, 1.0, at_most=False, refused=ONE_SEED)


@pytest.mark.parametrize(
    ("feature", "code", "told"),
    [(DOT_PRODUCT, 0, "---- times slower: 7 (at least 8)"), (NO_DOT_PRODUCT, 1, "MISS times slower: 7 (at least 8)")],
)
def test_the_check_fails_and_names_targets_that_this_processor_misses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], feature: str, code: int, told: str
) -> None:
    monkeypatch.setattr(processor, "features", lambda: (feature,))
    monkeypatch.setattr(harness, "features", lambda: (feature,))
    assert _benchmark(monkeypatch, ["--check"], FAST, SLOW) == code
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("measured", "bound", "baseline", "by_spread"),
    [
        (-102.8, -202.7, -17.2, True),
        (94.0, 80.0, 100.0, True),
        # Lower by less than 5% of the baseline, equal, and higher.
        (96.0, 80.0, 100.0, False),
        (100.0, 80.0, 100.0, False),
        (130.0, 80.0, 100.0, False),
        # Missed.
        (70.0, 80.0, 100.0, False),
        (-20.0, -15.0, -10.0, False),
    ],
)
def test_a_clearly_lower_mean_meets_its_target_only_by_the_spread_of_the_baseline(
    measured: float, bound: float, baseline: float, by_spread: bool
) -> None:
    target = Target("mean", measured, bound, at_most=False, baseline=baseline)
    assert target.met_by_spread == by_spread
    assert (f"its mean is {baseline:.4g}" in str(target)) == by_spread


def test_a_target_without_a_baseline_or_a_verdict_is_not_met_by_spread() -> None:
    assert not Target("mean", 1.0, 0.0, at_most=False).met_by_spread
    assert not Target("mean", 1.0, 0.0, at_most=False, baseline=9.0, refused=ONE_SEED).met_by_spread


def test_a_result_has_its_conditions_and_verdicts_and_no_folders_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "speed.json"
    met = Target("speed", 9.0, 1.0, at_most=False)
    assert _benchmark(monkeypatch, ["--check", "--json", str(file)], met) == 0
    assert _benchmark(monkeypatch, ["--check", "--json", str(file)], met, REFUSED) == 1
    assert f"NONE return of 1 seed: 9 (at least 1); {ONE_SEED}" in capsys.readouterr().out
    result = json.loads(file.read_text(encoding="utf-8"))
    assert {"date", "commit", "changes", "load_average", "machine", "figures"} < result.keys()
    assert [target["met"] for target in result["targets"]] == [True, False]
    assert result["command"] == "python -m benchmarks.speed --check --json speed.json"


def test_a_result_says_what_its_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = conditions()["machine"]
    assert (DOT_PRODUCT in machine["features"]) == (SIGNED in arithmetic().weight_encodings)
    assert (NO_DOT_PRODUCT in machine["features"]) != (DOT_PRODUCT in machine["features"])
    monkeypatch.setenv("LD_PRELOAD", "/anywhere/libhidden.so")
    assert conditions()["machine"]["cpu"].endswith(" (AVX-512, VNNI and bfloat16 hidden)")


def test_a_processor_without_the_instructions_has_neither_of_both() -> None:
    told = without_dot_product("from benchmarks.processor import features; print(features())")
    assert told.strip() == str((NO_DOT_PRODUCT,))
    assert BFLOAT16 not in told


def test_a_machine_that_slows_down_between_rounds_does_not_move_the_ratio() -> None:
    speed = [1.0, 1.0, 5.0, 9.0, 9.0]
    ours = Turns(cpu=[2.0 * each for each in speed], wall=[1.0] * 5)
    # In one round something took the processor from theirs.
    theirs = Turns(cpu=[3.0, 3.0, 500.0, 27.0, 27.0], wall=[4.0, 2.0, 2.0, 2.0, 0.1])
    assert (speedup(ours, theirs, "cpu"), speedup(ours, theirs, "wall")) == (1.5, 2.0)


def test_every_round_has_a_turn_of_each_and_begins_with_another() -> None:
    called: list[str] = []

    def busy(name: str) -> None:
        if called[-1:] != [name]:
            called.append(name)
        # Some CPU time, so that a slice has an end.
        sum(range(1000))

    turns = take_turns({name: lambda name=name: busy(name) for name in "abc"}, rounds=3, slice_s=0.001)  # type: ignore[misc]
    # After the warm-up, which is the first three.
    assert "".join(called[3:]) == "abcbcacab"
    assert all(len(each.cpu) == len(each.wall) == 3 and each.median("cpu") > 0 for each in turns.values())
