"""The benchmark of ingest against real processes, as small as it can be: it measures, and writes what it measured."""

import json
from pathlib import Path

import pytest

from benchmarks.scale.load import growth, spec_for
from tests.builders.forked_commands import run

ROOT = Path(__file__).parents[3]


def test_it_measures_a_learner_against_a_bare_server_and_beside_bad_peers(tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    flags = ["--streams", "3", "--repeats", "1", "--phase", "0.5", "--seconds", "2", "--silent", "2", "--hostile", "2"]
    completed = run("benchmarks.scale.load", *flags, "--json", str(file), cwd=ROOT, timeout=220)
    assert completed.returncode == 0, completed.stderr
    figures = json.loads(file.read_text())["figures"]
    assert figures["segment_bytes"] == pytest.approx(256_000, rel=0.01)
    assert figures["segment_transitions"] == 128
    (pair,) = figures["pairs"]
    for side in ("learner", "bare"):
        assert pair[side]["mb_per_s"] > 0
        assert 0 < pair[side]["acknowledged_p50_ms"] <= pair[side]["acknowledged_p99_ms"]
    assert figures["refusals"].keys() <= {"INVALID_ARGUMENT", "FAILED_PRECONDITION"}
    assert figures["refusals"]
    assert len(figures["memory_mb"]) >= 2


def test_memory_grows_by_the_last_quarter_over_the_second() -> None:
    resident = [10, 50, 100, 100, 100, 100, 110, 110]
    assert growth([(float(at), each) for at, each in enumerate(resident)]) == pytest.approx(0.1)


@pytest.mark.parametrize("size", [32_000, 256_000, 1_000_000])
def test_observations_are_as_large_as_a_segment_asks_for(size: int) -> None:
    (numbers,) = spec_for(size).observations.shape
    assert 17 * 8 * 4 * numbers + 128 * 15 == pytest.approx(size, rel=0.03)
