"""How the energy of machines is shared out to the processes of a run."""

import json
import random

import pytest

from actorq.domain.processes import NodeEnergy
from actorq.errors import ExhaustedError, InvalidInputError
from learner_service.energy.ledger import EnergyLedger, LedgerLimits


def reading(
    node: str = "a",
    *,
    cpu: float = 0.0,
    ram: float = 0.0,
    gpu: float = 0.0,
    co2: float = 0.0,
    busy: float = 0.0,
    method: str = "RAPL",
) -> NodeEnergy:
    return NodeEnergy(node, cpu, ram, gpu, co2, busy, method)


def kwh(ledger: EnergyLedger) -> dict[str, float]:
    return {name: process.kwh for name, process in ledger.snapshot().per_process.items()}


def of_machines(ledger: EnergyLedger, part: str = "total") -> list[float]:
    """kWh and kg of CO2 of all machines, or the part of them that processes were charged for."""
    nodes = ledger.state()["nodes"].values()
    return [sum(node[part][place] for node in nodes) for place in range(2)]


def of_no_process(ledger: EnergyLedger) -> list[float]:
    pairs = zip(of_machines(ledger), of_machines(ledger, "charged"), strict=True)
    return [total - charged for total, charged in pairs]


def cpu_seconds(ledger: EnergyLedger) -> dict[str, float]:
    return {"/".join(entry["key"]): entry["cpu_seconds"] for entry in ledger.state()["processes"]}


def test_a_process_pays_its_part_of_the_busy_time_and_the_rest_is_other() -> None:
    ledger = EnergyLedger()
    ledger.report_process("l", "learner", "a", 2.0, incarnation="1")
    ledger.report_process("x", "actor", "a", 4.0, incarnation="1")
    ledger.report_node(reading(cpu=6.0, ram=2.0, co2=0.8, busy=8.0), meter="m")
    snapshot = ledger.snapshot()
    assert kwh(ledger) == pytest.approx({"learner/l": 2.0, "actor/x": 4.0})
    assert snapshot.co2_kg == pytest.approx(0.6)
    assert snapshot.kwh == pytest.approx(6.0)
    assert of_no_process(ledger) == pytest.approx([2.0, 0.2])
    assert of_machines(ledger)[0] == 8.0


def test_processes_that_report_more_than_the_node_was_busy_share_its_energy_and_no_more() -> None:
    ledger = EnergyLedger()
    ledger.report_process("l", "learner", "a", 3.0, incarnation="1")
    ledger.report_process("x", "actor", "a", 9.0, incarnation="1")
    ledger.report_node(reading(cpu=8.0, busy=4.0), meter="m")
    assert kwh(ledger) == pytest.approx({"learner/l": 2.0, "actor/x": 6.0})
    assert of_no_process(ledger)[0] == 0.0


def test_two_nodes_are_shared_apart_and_services_add_up_over_them() -> None:
    ledger = EnergyLedger()
    ledger.report_process("0", "actor", "a", 1.0, incarnation="1")
    ledger.report_process("1", "actor", "b", 3.0, incarnation="1")
    ledger.report_process("l", "learner", "b", 1.0, incarnation="1")
    ledger.report_node(reading("a", cpu=10.0, busy=2.0), meter="ma")
    ledger.report_node(reading("b", cpu=4.0, busy=4.0, method="load x TDP 65 W (configured)"), meter="mb")
    snapshot = ledger.snapshot()
    assert kwh(ledger) == pytest.approx({"actor/0": 5.0, "actor/1": 3.0, "learner/l": 1.0})
    assert {role: share.kwh for role, share in snapshot.per_service.items()} == pytest.approx(
        {"actor": 8.0, "learner": 1.0}
    )
    assert cpu_seconds(ledger) == {"actor/0": 1.0, "actor/1": 3.0, "learner/l": 1.0}
    assert snapshot.method == "a: RAPL | b: load x TDP 65 W (configured)"


def test_only_what_is_new_since_the_last_reading_is_shared() -> None:
    ledger = EnergyLedger()
    ledger.report_process("x", "actor", "a", 1.0, incarnation="1")
    ledger.report_node(reading(cpu=1.0, busy=1.0), meter="m")
    ledger.report_process("x", "actor", "a", 2.0, incarnation="1")
    ledger.report_node(reading(cpu=5.0, busy=3.0), meter="m")
    assert kwh(ledger) == pytest.approx({"actor/x": 1.0 + 4.0 * 1.0 / 2.0})


def test_a_restarted_process_starts_from_zero_and_its_total_goes_on() -> None:
    ledger = EnergyLedger()
    ledger.report_process("x", "actor", "a", 5.0, incarnation="first")
    ledger.report_node(reading(cpu=5.0, busy=5.0), meter="m")
    ledger.report_process("x", "actor", "a", 1.0, incarnation="second")
    ledger.report_node(reading(cpu=7.0, busy=7.0), meter="m")
    assert cpu_seconds(ledger) == {"actor/x": 6.0}
    assert kwh(ledger) == pytest.approx({"actor/x": 6.0})


def test_late_and_repeated_process_reports_add_nothing() -> None:
    ledger = EnergyLedger()
    for incarnation, seconds in (("1", 4.0), ("1", 3.0), ("1", 4.0), ("2", 2.0), ("1", 4.0), ("2", 1.0)):
        ledger.report_process("x", "actor", "a", seconds, incarnation=incarnation)
    assert cpu_seconds(ledger)["actor/x"] == 6.0


def test_a_late_report_of_the_life_before_still_counts_what_was_new_in_it() -> None:
    ledger = EnergyLedger()
    for incarnation, seconds in (("1", 4.0), ("2", 1.0), ("1", 4.5)):
        ledger.report_process("x", "actor", "a", seconds, incarnation=incarnation)
    assert cpu_seconds(ledger)["actor/x"] == 5.5


def test_late_and_repeated_readings_add_nothing() -> None:
    ledger = EnergyLedger()
    ledger.report_node(reading(cpu=4.0, busy=4.0), meter="m")
    ledger.report_node(reading(cpu=3.0, busy=3.0), meter="m")
    ledger.report_node(reading(cpu=4.0, busy=4.0), meter="m")
    assert of_machines(ledger)[0] == 4.0


def test_a_restarted_meter_counts_on_from_zero_and_a_last_word_of_the_old_one_is_ignored() -> None:
    ledger = EnergyLedger()
    ledger.report_node(reading(cpu=4.0, busy=4.0), meter="old")
    ledger.report_node(reading(cpu=1.0, busy=1.0), meter="new")
    ledger.report_node(reading(cpu=4.5, busy=4.5), meter="old")
    ledger.report_node(reading(cpu=2.0, busy=2.0), meter="new")
    assert of_machines(ledger)[0] == pytest.approx(6.0)


def test_cpu_time_that_no_meter_saw_does_not_claim_what_others_used_before() -> None:
    ledger = EnergyLedger()
    ledger.report_node(reading(cpu=100.0, busy=100.0), meter="old")
    ledger.report_process("x", "actor", "a", 50.0, incarnation="1")
    ledger.report_node(reading(cpu=1.0, busy=1.0), meter="new")
    assert kwh(ledger) == pytest.approx({"actor/x": 1.0})


def test_a_process_that_reports_seldom_pays_as_much_as_one_that_reports_often() -> None:
    ledger = EnergyLedger()
    for second in range(1, 21):
        ledger.report_process("often", "actor", "a", 0.5 * second, incarnation="1")
        if second % 10 == 0:
            ledger.report_process("seldom", "actor", "a", 0.5 * second, incarnation="1")
        ledger.report_node(reading(cpu=3.0 * second, busy=1.5 * second), meter="m")
    # Each burnt 0.5 of 1.5 busy CPU seconds a second, 20 times, of 3 kWh each.
    assert kwh(ledger) == pytest.approx({"actor/often": 20.0, "actor/seldom": 20.0})
    assert of_no_process(ledger)[0] == pytest.approx(20.0)


def test_an_idle_node_is_nobodys() -> None:
    ledger = EnergyLedger()
    ledger.report_process("x", "actor", "a", 0.0, incarnation="1")
    ledger.report_node(reading(cpu=2.0, ram=1.0, busy=0.0), meter="m")
    ledger.report_process("x", "actor", "a", 1.0, incarnation="1")
    ledger.report_node(reading(cpu=3.0, ram=1.0, busy=0.0), meter="m")
    assert kwh(ledger) == {"actor/x": 0.0}
    assert of_no_process(ledger)[0] == 4.0


def test_accelerators_are_paid_by_those_that_use_them() -> None:
    ledger = EnergyLedger()
    ledger.report_process("l", "learner", "a", 1.0, incarnation="1", uses_gpu=True)
    ledger.report_process("x", "actor", "a", 3.0, incarnation="1")
    ledger.report_node(reading(cpu=4.0, gpu=6.0, co2=1.0, busy=4.0), meter="m")
    snapshot = ledger.snapshot()
    assert kwh(ledger) == pytest.approx({"learner/l": 7.0, "actor/x": 3.0})
    assert snapshot.per_service["learner"].co2_kg == pytest.approx(0.7)


def test_accelerators_that_nobody_claims_are_shared_like_the_rest() -> None:
    ledger = EnergyLedger()
    ledger.report_process("x", "actor", "a", 1.0, incarnation="1")
    ledger.report_node(reading(cpu=4.0, gpu=6.0, busy=4.0), meter="m")
    assert kwh(ledger) == pytest.approx({"actor/x": 2.5})


@pytest.mark.parametrize("seed", range(5))
def test_shares_and_other_always_add_up_to_the_nodes_and_never_fall(seed: int) -> None:
    random_ = random.Random(seed)
    ledger = EnergyLedger()
    cpu = {f"p{i}": 0.0 for i in range(5)}
    lives = dict.fromkeys(cpu, 0)
    meters = {node: [0, 0.0, 0.0, 0.0] for node in "ab"}
    last_kwh = 0.0
    for step in range(300):
        name = random_.choice(list(cpu))
        if random_.random() < 0.05:
            cpu[name], lives[name] = 0.0, lives[name] + 1
        cpu[name] += random_.choice((0.0, random_.expovariate(1.0)))
        node = random_.choice("ab")
        ledger.report_process(name, name[:1], node, cpu[name], incarnation=str(lives[name]), uses_gpu=name == "p0")
        if step % 3 == 0:
            meter = meters[node]
            if random_.random() < 0.1:
                meter[:] = [meter[0] + 1, 0.0, 0.0, 0.0]
            meter[1:] = [figure + random_.choice((0.0, random_.random())) for figure in meter[1:]]
            energy = reading(node, cpu=meter[1], ram=meter[1], gpu=meter[2], co2=meter[1] + meter[2], busy=meter[3])
            ledger.report_node(energy, meter=str(meter[0]))
        snapshot = ledger.snapshot()
        shares = sum(process.kwh for process in snapshot.per_process.values())
        assert [shares, snapshot.co2_kg] == pytest.approx(of_machines(ledger, "charged"))
        assert min(of_no_process(ledger)) >= -1e-9
        assert snapshot.kwh == pytest.approx(sum(service.kwh for service in snapshot.per_service.values()))
        assert snapshot.kwh >= last_kwh
        last_kwh = snapshot.kwh


def test_a_ledger_goes_on_from_its_state_as_if_it_had_never_stopped() -> None:
    def first_half(ledger: EnergyLedger) -> None:
        ledger.report_process("l", "learner", "a", 1.0, incarnation="1", uses_gpu=True)
        ledger.report_node(reading(cpu=2.0, gpu=1.0, co2=0.3, busy=3.0), meter="m")
        ledger.report_process("x", "actor", "a", 1.5, incarnation="1")

    def second_half(ledger: EnergyLedger) -> None:
        ledger.report_process("x", "actor", "a", 2.5, incarnation="1")
        ledger.report_node(reading(cpu=3.0, gpu=2.0, co2=0.5, busy=5.0), meter="m")

    unbroken, before = EnergyLedger(), EnergyLedger()
    first_half(unbroken)
    first_half(before)
    after = EnergyLedger.from_state(json.loads(json.dumps(before.state())))
    assert after.snapshot() == before.snapshot()
    second_half(unbroken)
    second_half(after)
    assert after.snapshot() == unbroken.snapshot()
    assert after.state() == unbroken.state()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"version": 2},
        {"version": 1},
        {"version": 1, "nodes": {}, "processes": [{"key": ["actor"]}]},
        {"version": 1, "nodes": [], "processes": []},
        {
            "version": 1,
            "nodes": {},
            "processes": [{"key": ["actor", "x"], "energy": [-1.0, 0.0], "cpu_seconds": 0.0, "seen": {}}],
        },
    ],
)
def test_a_state_that_is_none_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match="energy state"):
        EnergyLedger.from_state(state)


def test_a_run_without_meters_says_so() -> None:
    ledger = EnergyLedger()
    assert ledger.snapshot().method.startswith("unavailable")
    ledger.report_process("x", "actor", "a", 1.0, incarnation="1")
    ledger.report_node(reading("b", cpu=1.0, busy=1.0), meter="m")
    snapshot = ledger.snapshot()
    assert snapshot.method == "a: unavailable: no meter has reported | b: RAPL"


def flooded(ledger: EnergyLedger, processes: int, role: str = "actor", node: str = "a") -> None:
    for number in range(processes):
        ledger.report_process(f"{role}-{number}", role, node, 1.0, incarnation="1")


def test_processes_beyond_the_limit_share_an_account_and_no_energy_is_lost() -> None:
    ledger = EnergyLedger(LedgerLimits(processes=10))
    flooded(ledger, 5)
    ledger.report_node(reading(cpu=1.0, busy=5.0), meter="m")
    before = ledger.snapshot()
    flooded(ledger, 1000)
    ledger.report_node(reading(cpu=2.0, busy=2000.0), meter="m")
    after = ledger.snapshot()
    assert len(after.per_process) == 11
    assert "actor/(others)" in after.per_process
    assert {f"actor/actor-{number}" for number in range(990, 1000)} <= set(after.per_process)
    assert after.kwh >= before.kwh == pytest.approx(1.0)
    assert after.kwh + of_no_process(ledger)[0] == pytest.approx(of_machines(ledger)[0])
    assert sum(cpu_seconds(ledger).values()) == pytest.approx(1000.0)
    assert EnergyLedger.from_state(ledger.state()).snapshot() == after


def test_a_process_that_reports_keeps_its_account_whatever_others_do() -> None:
    ledger = EnergyLedger(LedgerLimits(processes=10))
    for number in range(100):
        ledger.report_process("mine", "actor", "a", float(number), incarnation="1")
        ledger.report_process(f"other-{number}", "actor", "a", 1.0, incarnation="1")
    assert cpu_seconds(ledger)["actor/mine"] == 99.0


def test_machines_without_a_reading_make_room_and_metered_ones_stay() -> None:
    ledger = EnergyLedger(LedgerLimits(nodes=3))
    ledger.report_node(reading("metered", cpu=1.0), meter="m")
    for number in range(100):
        ledger.report_process("x", "actor", f"node-{number}", 1.0, incarnation="1")
    ledger.report_node(reading("second", cpu=1.0), meter="m")
    ledger.report_node(reading("third", cpu=1.0), meter="m")
    with pytest.raises(ExhaustedError, match="at most 3 nodes with meters"):
        ledger.report_node(reading("fourth", cpu=1.0), meter="m")
    # A process must go on with its run although its machine cannot be accounted for.
    ledger.report_process("x", "actor", "fourth", 1.0, incarnation="1")
    assert of_machines(ledger)[0] == 3.0


def test_roles_beyond_the_limit_are_not_accounted_for() -> None:
    ledger = EnergyLedger(LedgerLimits(roles=2))
    for role in ("actor", "learner", "forged", "actor"):
        ledger.report_process("x", role, "a", 1.0, incarnation="1")
    assert set(ledger.snapshot().per_service) == {"actor", "learner"}


def test_the_methods_of_many_machines_are_told_in_short() -> None:
    ledger = EnergyLedger()
    for number in range(200):
        ledger.report_node(reading(f"node-{number:03}", cpu=1.0, method=f"{number} " + "x" * 900), meter="m")
    method = ledger.snapshot().method
    assert len(method) <= 1000
    few = EnergyLedger()
    for number in range(20):
        few.report_node(reading(f"node-{number:02}", cpu=1.0, method=f"TDP {number} W"), meter="m")
    assert few.snapshot().method.endswith("node-07: TDP 7 W | 12 more nodes")


class Clock:
    """Seconds that are set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_end_of_a_run_counts_as_its_meters_last_interval_did() -> None:
    clock = Clock()
    ledger = EnergyLedger(clock=clock)
    for clock.now, busy in ((10.0, 4.0), (12.0, 8.0)):
        ledger.report_process("l", "learner", "a", busy, incarnation="1")
        ledger.report_node(reading(cpu=busy, co2=busy / 2, busy=busy), meter="m")
    clock.now = 13.0
    ledger.report_process("l", "learner", "a", 9.0, incarnation="1")
    ledger.report_process("x", "actor", "a", 1.0, incarnation="1")
    ledger.estimate_to_now(elapsed_s=13.0)
    assert kwh(ledger) == pytest.approx({"learner/l": 9.0, "actor/x": 1.0})
    assert of_machines(ledger)[0] == pytest.approx(10.0)
    assert ledger.snapshot().co2_kg == pytest.approx(5.0)


def test_a_reading_after_an_estimate_adds_only_what_exceeds_it() -> None:
    clock = Clock()
    ledger = EnergyLedger(clock=clock)
    for clock.now, energy in ((1.0, 2.0), (2.0, 4.0)):
        ledger.report_node(reading(cpu=energy, busy=energy), meter="m")
    clock.now = 3.0
    ledger.estimate_to_now(elapsed_s=3.0)
    assert of_machines(ledger)[0] == pytest.approx(6.0)
    ledger.report_node(reading(cpu=5.0, busy=5.0), meter="m")
    assert of_machines(ledger)[0] == pytest.approx(6.0)
    ledger.report_node(reading(cpu=7.0, busy=7.0), meter="m")
    assert of_machines(ledger)[0] == pytest.approx(7.0)


def test_the_power_up_to_the_only_reading_of_a_run_counts_to_its_end() -> None:
    clock = Clock()
    ledger = EnergyLedger(clock=clock)
    clock.now = 4.0
    ledger.report_node(reading(cpu=8.0, busy=8.0), meter="m")
    clock.now = 5.0
    ledger.estimate_to_now(elapsed_s=5.0)
    assert of_machines(ledger)[0] == pytest.approx(10.0)


def test_without_a_reading_there_is_nothing_to_estimate() -> None:
    ledger = EnergyLedger()
    ledger.report_process("l", "learner", "a", 3.0, incarnation="1")
    ledger.estimate_to_now(elapsed_s=7.0)
    assert of_machines(ledger)[0] == 0.0
