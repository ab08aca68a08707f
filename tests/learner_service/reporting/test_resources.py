"""What the run's processes use, over their restarts and the learner's."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from actorq.domain.processes import NodeEnergy, ProcessStats
from actorq.telemetry.process_stats import measure_process
from learner_service.energy.ledger import EnergyLedger
from learner_service.reporting.resources import Resources

NODE = "elsewhere"


def stats(name: str, role: str = "actor", **changes: Any) -> ProcessStats:
    return replace(measure_process(name, role), node=NODE, **changes)


def peaks(resources: Resources) -> dict[str, int]:
    return {process.name: process.peak_resident_bytes for process in resources.processes()}


def test_a_peak_outlives_the_process_that_had_it() -> None:
    resources = Resources()
    resources.record(stats("actor-0", pid=1, peak_resident_bytes=500, resident_bytes=400))
    resources.record(stats("actor-0", pid=2, peak_resident_bytes=100, resident_bytes=90))
    (process,) = resources.processes()
    assert process.peak_resident_bytes == 500
    assert (process.pid, process.resident_bytes) == (2, 90)
    resources.record(stats("actor-0", pid=2, peak_resident_bytes=700))
    assert peaks(resources) == {"actor-0": 700}


def test_of_too_many_processes_those_with_the_newest_reports_are_kept() -> None:
    resources = Resources()
    names = [f"actor-{number}" for number in range(1_000)]
    for name in (*names, names[0], "another"):
        resources.record(stats(name))
    assert peaks(resources).keys() == {*names, "another"} - {names[1]}


def test_the_learner_reports_its_own_resources() -> None:
    resources = Resources()
    resources.record_self()
    (process,) = resources.processes()
    assert (process.name, process.role) == ("learner", "learner")
    assert resources.energy().kwh_per_service == {"learner": 0.0}


def test_an_actor_with_the_name_of_the_learner_has_its_own_row_and_energy() -> None:
    resources = Resources(node=NODE)
    meter, namesake = stats("meter", "meter", cpu_seconds=0.0), stats("learner", pid=7, peak_resident_bytes=2**60)
    resources.record(replace(namesake, cpu_seconds=0.0))
    resources.report_energy(energy(0.0, 0.0), (meter,))
    resources.record(replace(namesake, cpu_seconds=1e9))
    resources.report_energy(energy(2.0, 1e9), (meter,))
    kwh = resources.energy().kwh_per_service
    assert kwh["actor"] == pytest.approx(2.0)
    assert kwh["learner"] == pytest.approx(0.0, abs=1e-3)
    peak = {process.role: process.peak_resident_bytes for process in resources.processes()}
    assert peak["learner"] < peak["actor"] == 2**60


def energy(cpu_kwh: float, busy_cpu_seconds: float) -> NodeEnergy:
    return NodeEnergy(NODE, cpu_kwh, 0.0, 0.0, cpu_kwh * 0.5, busy_cpu_seconds, "a test's own meter")


def metered() -> Resources:
    """2 kWh: three quarters of the busy time were the actor's, one quarter the meter's."""
    resources = Resources()
    meter, actor = stats("meter-0", "meter", cpu_seconds=0.0), stats("actor-0", cpu_seconds=0.0)
    resources.record(actor)
    resources.report_energy(energy(0.0, 0.0), (meter,))
    resources.record(replace(actor, cpu_seconds=75.0))
    resources.report_energy(energy(2.0, 100.0), (replace(meter, cpu_seconds=25.0),))
    return resources


def test_energy_is_attributed_to_services() -> None:
    whole = metered().energy()
    assert whole.kwh == pytest.approx(2.0)
    assert whole.co2_kg == pytest.approx(1.0)
    assert "elsewhere: a test's own meter" in whole.method
    assert whole.kwh_per_service == pytest.approx({"actor": 1.5, "meter": 0.5, "learner": 0.0}, abs=1e-3)


@pytest.mark.parametrize(("on_gpu", "kwh"), [(True, 1.0), (False, 0.0)])
def test_a_learner_on_a_gpu_is_charged_for_it(monkeypatch: pytest.MonkeyPatch, on_gpu: bool, kwh: float) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: on_gpu)
    resources = Resources(node=NODE)
    for read in (0.0, 1.0):
        energy = NodeEnergy(
            NODE, cpu_kwh=0.0, ram_kwh=0.0, gpu_kwh=read, co2_kg=0.0, busy_cpu_seconds=1e6 * read, method="its own"
        )
        resources.report_energy(energy, (stats("meter", "meter"), stats("actor-0", cpu_seconds=1e6 * read)))
    assert resources.energy().kwh_per_service["learner"] == pytest.approx(kwh, abs=1e-3)


def test_energy_outlives_the_learner() -> None:
    before = metered()
    after = Resources(EnergyLedger.from_state(json.loads(json.dumps(before.ledger.state()))))
    assert after.energy() == before.energy()
    # A process that reports again is charged for nothing twice.
    after.record(stats("actor-0", cpu_seconds=75.0))
    after.report_energy(energy(4.0, 200.0), ())
    assert after.energy().kwh_per_service["actor"] == pytest.approx(1.5)
