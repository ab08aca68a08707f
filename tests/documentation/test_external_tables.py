"""The tables of simulators and of stored data."""

from types import ModuleType
from typing import Any

import pytest

from benchmarks.scale.simulators.__main__ import ECHO, EXPLORING, GREEDY
from benchmarks.scale.simulators.training import OWN
from sitegen import parts
from sitegen.tables import faults, simulators, stored_data

SIMULATORS = tuple(f"simulator {name}" for name in ("training", "rates", "streams", "stalls"))
SERVED = ("served action", "served clients")
STORED = ("recordings", "offline returns", "offline updates", "offline same updates")
TIMES = {"p50_ms": 0.25, "p99_ms": 0.5}
LOAD = {"actions_per_s": 1_000.0, "server_cpu_us": 90.0, **TIMES}


def rows(name: str) -> list[str]:
    return parts.part(name).splitlines()[2:]


def store(monkeypatch: pytest.MonkeyPatch, module: ModuleType, content: dict[str, Any]) -> None:
    """Make a table see this result."""
    monkeypatch.setattr(module, "figures", lambda _: content)


def test_tables_of_simulators_show_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"solved": True, "wall_clock_s": 20.0, "environment_steps": 9_000, "steps_per_s": 700.0}
    stall = {"kind": "frozen", "pause_s": 0.005, "before": 800.0, "after": 784.0, "loss": 0.02}
    content = {
        "training": [{**run, "side": side, "seed": seed} for seed in (1, 2) for side in (OWN, "C++")],
        "rates": [{"environments": 8, OWN: 1_000.0, "C++": rate} for rate in (700.0, 600.0)],
        "streams": [{ECHO: LOAD, EXPLORING: {**LOAD, "actions_per_s": 500.0}, GREEDY: LOAD}],
        "stalls": [stall],
    }
    store(monkeypatch, simulators, content)
    training, rates, streams, stalls = map(rows, SIMULATORS)
    assert training[1] == "| a client in C++ | 2 of 2 | 20 | 9,000 | 700 |"
    assert rates[1] == "| a client in C++ | 8 | 650 | 0.65 (0.6 to 0.7) |"
    assert streams[1] == "| actor, exploring | 500 | 0.25 | 0.5 | 90 | 0.5 |"
    assert stalls == ["| frozen | 5 ms for a step | 800 | 784 | 2.0% |"]


def test_tables_of_the_policy_server_show_each_width_and_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = {"call": {"p50_ms": 0.05, "p99_ms": 0.06}, "served": TIMES}
    single = {"units": 2_048, "echo": TIMES, "int8": scheme, "fp32": scheme}
    store(monkeypatch, simulators, {"single": [single], "crowd": [{"echo": LOAD, "served": LOAD}]})
    action, clients = map(rows, SERVED)
    assert action[0] == "| 2,048 | int8 | 0.05 | 0.06 | 0.25 | 0.5 | 0.25 | 0.5 |"
    assert clients[1] == "| `actorq serve` | 1,000 | 0.25 | 0.5 | 90 | 1 |"


def test_the_table_of_malformed_messages_counts_each_status(monkeypatch: pytest.MonkeyPatch) -> None:
    store(monkeypatch, faults, {"statuses": {"simulators left": 1_000, "simulators OK": 3}})
    assert rows("fuzz simulators") == ["| simulators | 3 | 1,000 |"]


def test_tables_of_stored_data_leave_out_what_was_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    online = {"task": "pendulum", "solved": True, "environment_steps": 5_000, "updates": 100, "wall_clock_s": 9.0}
    offline = {"task": "pendulum", "mix": "mixed", "side": "iql dense", "updates_per_s": 90.0}
    content = {
        "runs": [
            *({**online, "side": side, "seed": 1} for side in ("without", "with")),
            *({**offline, "seed": seed, "returns": {"int8": -150.0 - seed, "fp32": -149.0}} for seed in (1, 2)),
        ],
        "same_updates": [
            {"task": "pendulum", "mix": "mixed", "algorithm": "iql", "network": "q_funcs", "distance": 5.4e-6}
        ],
    }
    store(monkeypatch, stored_data, content)
    recordings, returns, updates, same = map(rows, STORED)
    assert same == ["| pendulum | mixed | iql | critics | 5e-06 |"]
    assert recordings[0] == "| pendulum | without recordings | 1 of 1 | 5,000 | 100 | 9 |"
    assert returns == ["| pendulum | mixed | iql |  | -149 ± 0 | -152 ± 0.707 |  |"]
    assert updates == ["| pendulum | iql |  | 90 |  |"]


def test_a_simulators_certificate_may_only_play() -> None:
    cells = [[cell.strip() for cell in row.split("|")] for row in rows("rights of simulator")]
    allowed = {service: may for _, service, may, *_ in cells if may}
    assert allowed == {"`ExternalEnvironmentService`": "`Play`", "`Health`": "`Check`, `Watch`"}
