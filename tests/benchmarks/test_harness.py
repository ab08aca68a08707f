"""The frame that all benchmarks share."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from actorq.arithmetic import arithmetic
from actorq.domain.policy import SIGNED
from actorq.errors import UserError
from actorq.process import EXIT_USER_ERROR
from benchmarks import harness, hidden, processor
from benchmarks.conditions import conditions
from benchmarks.faults.chaos.fleet import Fleet
from benchmarks.harness import Target, run_benchmark, verdict
from benchmarks.processor import BFLOAT16, DOT_PRODUCT, NO_DOT_PRODUCT
from tests.builders.emulation import without_dot_product


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (
            UserError("-n: expected a namespace, got 'moves'"),
            EXIT_USER_ERROR,
            "error: -n: expected a namespace, got 'moves'\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_mistakes_and_ctrl_c_get_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    told: str,
) -> None:
    def measure(_: object) -> tuple[dict[str, object], list[object]]:
        raise error

    monkeypatch.setattr("sys.argv", ["benchmark", "--check"])
    assert run_benchmark("A benchmark.", lambda parser: None, measure) == code  # type: ignore[arg-type]
    assert capsys.readouterr().err == told


def test_sigterm_ends_a_measurement_with_all_that_it_has_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path, {})

    def measure(_: object) -> tuple[dict[str, object], list[Target]]:
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
SLOW = Target("times faster", 7.0, 8.0, at_most=False, needs=NO_DOT_PRODUCT)


def test_a_target_of_an_absent_need_is_neither_met_nor_missed() -> None:
    assert [verdict(target, [DOT_PRODUCT]) for target in (FAST, SLOW)] == [True, None]
    assert [verdict(target, [NO_DOT_PRODUCT]) for target in (FAST, SLOW)] == [None, False]


@pytest.mark.parametrize(
    ("features", "code", "lines", "met"),
    [
        (
            (DOT_PRODUCT,),
            0,
            [
                "ok   times faster: 7 (at least 6)",
                "---- times faster: 7 (at least 8); for processors with no int8 dot product; this one has it",
            ],
            [True, None],
        ),
        (
            (NO_DOT_PRODUCT,),
            1,
            [
                "---- times faster: 7 (at least 6); needs an int8 dot product, which this processor lacks",
                "MISS times faster: 7 (at least 8)",
            ],
            [None, False],
        ),
    ],
)
def test_only_targets_of_this_processor_can_fail_the_check(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    features: tuple[str, ...],
    code: int,
    lines: list[str],
    met: list[bool | None],
) -> None:
    monkeypatch.setattr(processor, "features", lambda: features)
    monkeypatch.setattr(harness, "features", lambda: features)
    monkeypatch.setattr("sys.argv", ["benchmark", "--check", "--json", str(tmp_path / "result.json")])
    assert run_benchmark("A benchmark.", lambda parser: None, lambda arguments: ({}, [FAST, SLOW])) == code
    assert capsys.readouterr().out.splitlines() == lines
    stored = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["targets"]
    assert [target["met"] for target in stored] == met
    assert [target["needs"] for target in stored] == [DOT_PRODUCT, NO_DOT_PRODUCT]


def test_a_result_says_what_its_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    features = conditions()["machine"]["features"]
    assert (DOT_PRODUCT in features) == (SIGNED in arithmetic().weight_encodings)
    assert (NO_DOT_PRODUCT in features) != (DOT_PRODUCT in features)
    assert processor.has("")
    before = conditions()["machine"]["cpu"].removesuffix(f" ({hidden.HIDDEN})")
    monkeypatch.setenv("LD_PRELOAD", "/anywhere/libhidden.so")
    assert conditions()["machine"]["cpu"] == f"{before} (AVX-512, VNNI and bfloat16 hidden)"


def test_a_processor_without_the_instructions_has_neither_of_both() -> None:
    told = without_dot_product("from benchmarks.processor import features; print(features())")
    assert told.strip() == str((NO_DOT_PRODUCT,))
    assert BFLOAT16 not in told
