"""The readings of a node's meter, even when its tracker is missing or broken."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from actorq.domain.processes import NodeEnergy
from actorq_apps.meter.node_meter import NodeMeter
from actorq_apps.meter.tracker import CodecarbonTracker, EnergyTracker, TrackerError, TrackerTotals

CODECARBON = partial(CodecarbonTracker, None, None, None)


class SteadyTracker:
    """Adds 1 kWh per part and reading, unless told to fail."""

    method = "a steady hand"
    tdp_watts: float | None = 65.0

    def __init__(self) -> None:
        self.readings = 0
        self.failure: Exception | None = None
        self.closed = False

    def read(self) -> TrackerTotals:
        if self.failure:
            raise self.failure
        self.readings += 1
        return TrackerTotals(self.readings, 2.0 * self.readings, 3.0 * self.readings, 0.5 * self.readings)

    def close(self) -> None:
        self.closed = True
        if self.failure:
            raise self.failure


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def fail() -> EnergyTracker:
    raise TrackerError("no permission")


def kwh_of(energy: NodeEnergy) -> float:
    return energy.cpu_kwh + energy.ram_kwh + energy.gpu_kwh


def test_a_reading_joins_energy_and_busy_time_since_the_start() -> None:
    meter = NodeMeter("n", SteadyTracker, clock=Clock(), busy_cpu_seconds=Clock())
    first, second = meter.read(), meter.read()
    assert (first.node, first.cpu_kwh, first.ram_kwh, first.gpu_kwh, first.co2_kg) == ("n", 1.0, 2.0, 3.0, 0.5)
    assert kwh_of(first) == 6.0
    assert (first.busy_cpu_seconds, second.busy_cpu_seconds) == (1.0, 2.0)
    assert (first.method, first.tdp_watts) == ("a steady hand", 65.0)
    assert kwh_of(second) == 12.0


def test_the_runs_time_before_the_meter_counts_at_the_mean_power_up_to_the_first_reading() -> None:
    clock = Clock()
    meter = NodeMeter("n", SteadyTracker, earlier_s=3.0, busy_at_start=90.0, clock=clock, busy_cpu_seconds=lambda: 96.0)
    clock.now += 1.0
    first, second = meter.read(), meter.read()
    # Measured over 2 s. The 4 s before add twice as much.
    assert kwh_of(first) == pytest.approx(6.0 * 3)
    assert kwh_of(second) == pytest.approx(6.0 * 2 + 6.0 * 2)
    assert first.co2_kg == pytest.approx(0.5 * 3)
    assert first.busy_cpu_seconds == 6.0
    assert first.method == second.method == "a steady hand; the first 4.0 s at the mean power of the 2.0 s after them"


def test_a_tracker_that_starts_slowly_adds_its_own_time_to_what_was_before() -> None:
    clock = Clock()

    def start() -> EnergyTracker:
        clock.now += 3.0
        return SteadyTracker()

    meter = NodeMeter("n", start, earlier_s=1.0, busy_at_start=0.0, clock=clock)
    assert meter.read().method.startswith("a steady hand; the first 5.0 s")


def test_readings_in_quick_succession_repeat_the_last_one() -> None:
    tracker = SteadyTracker()
    meter = NodeMeter("n", lambda: tracker, minimum_interval_s=2.5, clock=Clock())
    readings = [meter.read() for _ in range(4)]
    assert tracker.readings == 2
    assert readings[0] == readings[1] == readings[2] != readings[3]


def test_keeps_the_figures_and_retries_after_a_tracker_fails() -> None:
    tracker = SteadyTracker()
    meter = NodeMeter("n", lambda: tracker, clock=Clock())
    good = meter.read()
    tracker.failure = ValueError("no such counter")
    bad = meter.read()
    assert bad.method == "unavailable: ValueError: no such counter"
    assert bad.tdp_watts is None
    assert kwh_of(bad) == kwh_of(good)
    tracker.failure = None
    assert kwh_of(meter.read()) == 12.0
    assert meter.read().method == "a steady hand"


@pytest.mark.parametrize("figure", [float("nan"), float("inf")])
def test_never_reports_figures_that_are_not_finite(figure: float) -> None:
    class Broken(SteadyTracker):
        def read(self) -> TrackerTotals:
            return TrackerTotals(figure, 0.0, 0.0, 0.0)

    energy = NodeMeter("n", Broken, clock=Clock()).read()
    assert kwh_of(energy) == 0.0
    assert energy.method.startswith("unavailable: expected finite energies")


def test_readings_do_not_decrease_when_counters_jump_back() -> None:
    tracker = SteadyTracker()
    meter = NodeMeter("n", lambda: tracker, clock=Clock())
    meter.read()
    before = meter.read()
    tracker.readings = 0
    assert kwh_of(meter.read()) == kwh_of(before)


def test_closing_never_raises_and_later_readings_repeat_the_last_one() -> None:
    tracker = SteadyTracker()
    meter = NodeMeter("n", lambda: tracker, clock=Clock())
    last = meter.read()
    meter.close()
    assert tracker.closed
    assert meter.read() == last
    failing = SteadyTracker()
    failing.failure = OSError("gone")
    NodeMeter("n", lambda: failing).close()


def test_a_tracker_that_cannot_start_gives_a_meter_without_energy() -> None:
    energy = NodeMeter("n", fail).read()
    assert energy.method == "unavailable: no permission"
    assert kwh_of(energy) == energy.co2_kg == 0.0


def test_without_codecarbon_there_is_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "codecarbon", None)
    energy = NodeMeter("n", CODECARBON, clock=Clock()).read()
    assert energy.method.startswith("unavailable: codecarbon cannot be imported")
    assert kwh_of(energy) == 0.0


def test_reports_the_reason_that_codecarbon_swallows(monkeypatch: pytest.MonkeyPatch) -> None:
    codecarbon = pytest.importorskip("codecarbon")

    def fail(tracker: object) -> None:
        raise PermissionError("hands off")

    monkeypatch.setattr(codecarbon.OfflineEmissionsTracker, "_ensure_hardware_ready", fail)
    energy = NodeMeter("n", CODECARBON).read()
    assert energy.method == "unavailable: PermissionError: hands off"


def test_one_failed_measurement_of_codecarbon_does_not_end_the_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    codecarbon = pytest.importorskip("codecarbon")
    meter = NodeMeter("n", partial(CodecarbonTracker, "nowhere", None, None), minimum_interval_s=0.0)
    before = meter.read()

    def fail(tracker: object) -> None:
        raise PermissionError("hands off")

    with monkeypatch.context() as patch:
        patch.setattr(codecarbon.OfflineEmissionsTracker, "_measure_power_and_energy_if_stale", fail)
        broken = meter.read()
    assert broken.method == "unavailable: PermissionError: hands off"
    assert kwh_of(broken) == kwh_of(before)
    assert "CO2 of the world's average grid (NOWHERE not known)" in meter.read().method
    meter.close()


REAL_METER = """
import json, socket, sys, time

attempts = []

def forbidden(*args, **kwargs):
    attempts.append(repr(args))
    raise OSError("no network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = forbidden

from actorq_apps.meter.node_meter import NodeMeter
from actorq_apps.meter.tracker import CodecarbonTracker
assert "codecarbon" not in sys.modules

meter = NodeMeter("n", lambda: CodecarbonTracker("fra", 65.0, 12.0), minimum_interval_s=0.0)
readings = []
for _ in range(3):
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    readings.append(meter.read())
meter.close()
assert not attempts, attempts
fields = ("cpu_kwh", "ram_kwh", "co2_kg", "busy_cpu_seconds", "method", "tdp_watts")
print(json.dumps([{field: getattr(reading, field) for field in fields} for reading in readings]))
"""


def test_codecarbon_measures_offline_and_leaves_no_file(tmp_path: Path) -> None:
    pytest.importorskip("codecarbon")
    home, work, temporary = (tmp_path / name for name in ("home", "work", "tmp"))
    for folder in (home, work, temporary):
        folder.mkdir()
    environment = {
        **os.environ,
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Settings that a user may have for other purposes must not make a meter write or send anything.
        "CODECARBON_OUTPUT_METHODS": "csv",
        "CODECARBON_EMISSIONS_ENDPOINT": "http://127.0.0.1:9/",
        "CODECARBON_CO2_SIGNAL_API_TOKEN": "token",
        "CODECARBON_PUE": "7",
    }
    done = subprocess.run(
        [sys.executable, "-c", REAL_METER],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    readings = json.loads(done.stdout)
    for field in ("cpu_kwh", "ram_kwh", "co2_kg", "busy_cpu_seconds"):
        figures = [reading[field] for reading in readings]
        assert figures[0] > 0
        assert figures == sorted(figures)
        assert figures[-1] > figures[0]
    last = readings[-1]
    assert "RAM constant 12 W (configured); CO2 of the grid of FRA" in last["method"]
    if not last["method"].startswith("RAPL"):
        assert last["method"].startswith("load x TDP 65 W (configured)")
        assert last["tdp_watts"] == 65.0
    grams_per_kwh = 1000 * last["co2_kg"] / (last["cpu_kwh"] + last["ram_kwh"])
    assert 20 < grams_per_kwh < 150
    assert not any(home.iterdir())
    assert not any(work.iterdir())
    assert not any(temporary.iterdir())
