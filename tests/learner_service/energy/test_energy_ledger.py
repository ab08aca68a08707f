"""How the energy of machines is shared out to the services of a run."""

import json
import random

import pytest

from actorq.domain.processes import NodeEnergy, ProcessStats
from actorq.errors import ExhaustedError
from learner_service.energy.ledger import EnergyLedger


def process(cpu: float, role: str = "actor", name: str = "x", *, node: str = "a", life: int = 1) -> ProcessStats:
    return ProcessStats(name, role, node, life, 0.0, cpu, 0, 0)


def reading(
    cpu: float, busy: float | None = None, *, node: str = "a", gpu: float = 0.0, method: str = "RAPL"
) -> NodeEnergy:
    """Half of the energy is memory's. The machine is busy for a second per kWh, and a kWh is 0.1 kg of CO2."""
    return NodeEnergy(node, cpu / 2, cpu / 2, gpu, 0.1 * (cpu + gpu), cpu if busy is None else busy, method)


def kwh(ledger: EnergyLedger) -> dict[str, float]:
    return {role: amount.kwh for role, amount in ledger.services().items()}


def test_a_service_pays_for_its_busy_time_and_nobody_for_the_rest() -> None:
    ledger = EnergyLedger()
    for stats in (process(2.0, "learner"), process(1.0), process(3.0, name="y")):
        ledger.report_process(stats)
    ledger.report_node(reading(16.0, busy=8.0), meter="m")
    assert kwh(ledger) == pytest.approx({"learner": 4.0, "actor": 8.0})
    assert ledger.services()["actor"].co2_kg == pytest.approx(0.8)
    ledger.report_process(process(4.0, "learner"))
    ledger.report_node(reading(20.0, busy=12.0), meter="m")
    assert kwh(ledger) == pytest.approx({"learner": 6.0, "actor": 8.0})


def test_processes_that_report_more_than_the_node_was_busy_share_its_energy_and_no_more() -> None:
    ledger = EnergyLedger()
    ledger.report_process(process(3.0, "learner"))
    ledger.report_process(process(9.0))
    ledger.report_node(reading(8.0, busy=4.0), meter="m")
    assert kwh(ledger) == pytest.approx({"learner": 2.0, "actor": 6.0})


def test_each_node_is_shared_separately_and_a_service_sums_over_nodes() -> None:
    ledger = EnergyLedger()
    for stats in (process(1.0), process(3.0, name="y", node="b"), process(1.0, "learner", node="b")):
        ledger.report_process(stats)
    ledger.report_node(reading(10.0, busy=2.0), meter="ma")
    ledger.report_node(reading(4.0, node="b", method="load"), meter="mb")
    assert kwh(ledger) == pytest.approx({"actor": 8.0, "learner": 1.0})
    assert ledger.method() == "a: RAPL | b: load"


@pytest.mark.parametrize(
    ("reports", "total"),
    [
        ([(1, 5.0), (2, 1.0)], 6.0),
        ([(1, 4.0), (1, 3.0), (1, 4.0), (2, 2.0), (1, 4.0), (2, 1.0)], 6.0),
        ([(1, 4.0), (2, 1.0), (1, 4.5)], 5.5),
    ],
    ids=["restarted", "late and repeated", "something new in a late one"],
)
def test_each_life_of_a_process_counts_from_zero_and_once(reports: list[tuple[int, float]], total: float) -> None:
    ledger = EnergyLedger()
    for life, cpu in reports:
        ledger.report_process(process(cpu, life=life))
    ledger.report_node(reading(100.0), meter="m")
    assert kwh(ledger) == pytest.approx({"actor": total})


def test_each_life_of_a_meter_counts_from_zero_and_once() -> None:
    ledger = EnergyLedger()
    readings = (("old", 4.0), ("old", 3.0), ("old", 4.0), ("new", 1.0), ("old", 4.5), ("new", 2.0))
    for number, (meter, energy) in enumerate(readings, start=1):
        ledger.report_process(process(10.0 * number))
        ledger.report_node(reading(energy), meter=meter)
    assert kwh(ledger) == pytest.approx({"actor": 6.0})


def test_unmetered_cpu_time_does_not_claim_the_energy_of_others() -> None:
    ledger = EnergyLedger()
    ledger.report_node(reading(100.0), meter="old")
    ledger.report_process(process(50.0))
    ledger.report_node(reading(1.0), meter="new")
    ledger.report_node(reading(9.0), meter="new")
    assert kwh(ledger) == pytest.approx({"actor": 1.0})


def test_a_process_that_reports_seldom_pays_as_much_as_one_that_reports_often() -> None:
    ledger = EnergyLedger()
    for second in range(1, 21):
        ledger.report_process(process(0.5 * second, "often"))
        if second % 10 == 0:
            ledger.report_process(process(0.5 * second, "seldom"))
        ledger.report_node(reading(3.0 * second, busy=1.5 * second), meter="m")
    assert sum(kwh(ledger).values()) == pytest.approx(40.0)
    assert kwh(ledger)["seldom"] == pytest.approx(20.0, rel=0.1)


def test_no_service_pays_for_idle_processors_and_a_repeated_reading_loses_no_report() -> None:
    ledger = EnergyLedger()
    ledger.report_node(reading(3.0, busy=0.0), meter="m")
    ledger.report_process(process(1.0))
    ledger.report_node(reading(4.0, busy=0.0), meter="m")
    assert kwh(ledger) == {"actor": 0.0}
    ledger.report_node(reading(6.0, busy=2.0), meter="m")
    assert kwh(ledger) == pytest.approx({"actor": 1.0})


def test_accelerators_are_paid_by_those_that_use_them_or_shared_like_the_rest() -> None:
    used, unused = EnergyLedger(), EnergyLedger()
    for ledger in (used, unused):
        ledger.report_process(process(1.0, "learner"), uses_gpu=ledger is used)
        ledger.report_process(process(3.0))
        ledger.report_node(reading(4.0, gpu=6.0), meter="m")
    assert kwh(used) == pytest.approx({"learner": 7.0, "actor": 3.0})
    assert kwh(unused) == pytest.approx({"learner": 2.5, "actor": 7.5})
    assert used.services()["learner"].co2_kg == pytest.approx(0.7)


@pytest.mark.parametrize("seed", range(5))
def test_totals_never_fall_or_exceed_the_meters_over_any_restarts(seed: int) -> None:
    random_, ledger = random.Random(seed), EnergyLedger()
    cpu, lives = dict.fromkeys("pqrst", 0.0), dict.fromkeys("pqrst", 0)
    counters = {node: [0, 0.0, 0.0, 0.0] for node in "ab"}
    metered = last = 0.0
    for step in range(300):
        name, node = random_.choice(list(cpu)), random_.choice("ab")
        if random_.random() < 0.05:
            cpu[name], lives[name] = 0.0, lives[name] + 1
        cpu[name] += random_.choice((0.0, random_.expovariate(1.0)))
        ledger.report_process(process(cpu[name], name, name, node=node, life=lives[name]), uses_gpu=name == "p")
        if step % 3 == 0:
            meter = counters[node]
            if random_.random() < 0.1:
                meter[:] = [meter[0] + 1, 0.0, 0.0, 0.0]
            cpu_kwh, gpu_kwh, busy = (random_.choice((0.0, random_.random())) for _ in range(3))
            metered += cpu_kwh + gpu_kwh
            meter[1:] = [meter[1] + cpu_kwh, meter[2] + gpu_kwh, meter[3] + busy]
            ledger.report_node(reading(meter[1], meter[3], node=node, gpu=meter[2]), meter=str(meter[0]))
        if step % 50 == 0:
            ledger = EnergyLedger.from_state(json.loads(json.dumps(ledger.state())))
        total = sum(kwh(ledger).values())
        assert last <= total <= metered + 1e-9
        last = total


def test_a_ledger_continues_exactly_from_its_state() -> None:
    unbroken, broken = EnergyLedger(), EnergyLedger()
    for ledger in (unbroken, broken):
        ledger.report_process(process(1.0, "learner"))
        ledger.report_node(reading(2.0, busy=3.0), meter="m")
        ledger.report_process(process(1.5))
    broken = EnergyLedger.from_state(json.loads(json.dumps(broken.state())))
    for ledger in (unbroken, broken):
        ledger.report_process(process(3.5))
        ledger.report_node(reading(3.0, busy=5.0), meter="m")
    assert broken.services() == unbroken.services()
    assert broken.state() == unbroken.state()


@pytest.mark.parametrize("state", [{}, {"version": 1, "nodes": {}, "processes": []}, {"version": 2, "services": []}])
def test_a_state_of_another_form_begins_a_new_account(
    state: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    ledger = EnergyLedger.from_state(state)
    assert ledger.services() == {}
    assert len(caplog.messages) == 1
    assert "a new one begins" in caplog.text


def test_a_run_without_meters_reports_no_measurement() -> None:
    ledger = EnergyLedger()
    assert ledger.method() == "unavailable: no meter has reported"
    ledger.report_process(process(1.0))
    ledger.estimate_to_now(elapsed_s=7.0)
    assert kwh(ledger) == {"actor": 0.0}
    ledger.report_node(reading(1.0, node="b"), meter="m")
    assert ledger.method() == "a: unavailable: no meter has reported | b: RAPL"


def test_the_methods_of_many_machines_are_summarized() -> None:
    ledger = EnergyLedger()
    for number in range(200):
        ledger.report_node(reading(1.0, node=f"node-{number:03}", method=f"TDP {number} W"), meter="m")
    assert ledger.method().startswith("node-000: TDP 0 W | node-001: TDP 1 W | ")
    assert len(ledger.method()) <= 1000


def test_of_too_many_processes_the_longest_silent_are_forgotten_and_no_energy_is_lost() -> None:
    ledger = EnergyLedger()
    for number in range(1, 40_001):
        ledger.report_process(process(1.0, name=f"other-{number}"))
        if number % 10_000 == 0:
            ledger.report_process(process(float(number), name="mine"))
    assert len(ledger.state()["processes"]) == 32_768
    ledger.report_node(reading(1e6), meter="m")
    assert kwh(ledger) == pytest.approx({"actor": 80_000.0})


def test_machines_without_a_reading_make_room_and_metered_ones_stay() -> None:
    ledger = EnergyLedger()
    metered = [f"metered-{number}" for number in range(1_000)]
    for number, node in enumerate(metered):
        ledger.report_process(process(1.0, node=f"silent-{number}"))
        ledger.report_process(process(1.0, node=f"silent-{number}-too"))
        ledger.report_node(reading(1.0, node=node), meter="m")
    with pytest.raises(ExhaustedError, match="at most 1000 nodes with meters"):
        ledger.report_node(reading(1.0, node="another"), meter="m")
    # A process must continue its run although its machine cannot be accounted for.
    ledger.report_process(process(1.0, node="another"))
    assert ledger.state()["nodes"].keys() == set(metered)


def test_roles_beyond_the_limit_are_not_accounted_for() -> None:
    ledger = EnergyLedger()
    for number in range(100):
        ledger.report_process(process(1.0, f"role-{number}"))
    assert set(ledger.services()) == {f"role-{number}" for number in range(16)}


@pytest.mark.parametrize("readings", [(10.0,), (10.0, 12.0)], ids=["one reading", "two readings"])
def test_the_time_after_the_last_reading_is_extrapolated_from_before(readings: tuple[float, ...]) -> None:
    now = 0.0
    ledger = EnergyLedger(clock=lambda: now)
    for now in readings:
        ledger.report_process(process(2 * now))
        ledger.report_node(reading(2 * now), meter="m")
    end = now = readings[-1] + 1.0
    ledger.report_process(process(2 * end))
    ledger.estimate_to_now(elapsed_s=end)
    assert kwh(ledger) == pytest.approx({"actor": 2 * end})
    # A later reading adds only what exceeds the estimate.
    ledger.report_process(process(100.0))
    ledger.report_node(reading(2 * end - 1.0), meter="m")
    assert kwh(ledger) == pytest.approx({"actor": 2 * end})
    ledger.report_process(process(200.0))
    ledger.report_node(reading(2 * end + 1.0), meter="m")
    assert kwh(ledger) == pytest.approx({"actor": 2 * end + 1.0})
