"""The benchmark of simulators: its messages, its load, its stalls, and its targets."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from actor_service.external.streams.session import PlaySession
from actor_service.external.streams.spaces import SimulatorSpaces
from actorq import wire
from actorq.domain.environments import NO_ARGUMENTS
from actorq.v1 import external_pb2
from benchmarks.harness import ONE_SEED, Target
from benchmarks.processes import serving
from benchmarks.scale.simulators.__main__ import ECHO, EXPLORING, GREEDY, MEANINGS, targets
from benchmarks.scale.simulators.cart_pole import EXAMPLE, ExampleCartPole
from benchmarks.scale.simulators.clients import CPP, PYTHON, built, node_client
from benchmarks.scale.simulators.generators import joined, play, shares
from benchmarks.scale.simulators.messages import CART_POLE, messages
from benchmarks.scale.simulators.stalls import FROZEN, KILLED, Stall, loss
from benchmarks.scale.simulators.training import OWN
from tests.actor_service.external.clients import served
from tests.actor_service.external.simulators import door


@pytest.mark.parametrize(("streams", "processes", "expected"), [(200, 2, [100, 100]), (5, 3, [2, 2, 1]), (1, 2, [1])])
def test_processes_share_the_streams_evenly(streams: int, processes: int, expected: list[int]) -> None:
    assert shares(streams, processes) == expected


def test_percentiles_are_those_of_all_processes_together() -> None:
    parts = [
        {"delays_us": [1_000] * 99, "seconds": 1.0, "cpu_s": 0.5, "answered": 2},
        {"delays_us": [3_000] * 101, "seconds": 2.0, "cpu_s": 0.5, "answered": 1},
    ]
    found = joined(parts, server_cpu_s=0.1)
    assert found == {
        "actions_per_s": 149.5,
        "p50_ms": 3.0,
        "p99_ms": 3.0,
        "answered": 3,
        "server_cpu_us": 500.0,
        "client_cpu_us": 5_000.0,
    }
    with pytest.raises(SystemExit, match="answered no step"):
        joined([{**parts[0], "delays_us": []}], 0.0)


def test_the_messages_are_those_of_a_simulator() -> None:
    sent = messages(explore=False)
    opening = wire.play_opening_from_proto(external_pb2.PlayRequest.FromString(sent.opening).open)
    assert not opening.explore
    spaces = SimulatorSpaces.of(opening, CART_POLE.environment_id, NO_ARGUMENTS)
    assert spaces.spec == CART_POLE
    session = PlaySession(spaces, opening, lambda reply: None)
    steps = [external_pb2.PlayRequest.FromString(each).step for each in (sent.step, sent.step, sent.end, sent.step)]
    arrivals = [session.accept(wire.play_step_from_proto(step)) for step in steps]
    assert [bool(each.begins[0]) for each in arrivals] == [True, False, False, True]
    assert external_pb2.PlayResponse.FromString(sent.answer).action.scheme == "int8"


def test_load_generators_measure_a_bare_server() -> None:
    sent = messages()
    with serving(
        "benchmarks.scale.simulators.echo", "--ready", sent.ready.hex(), "--answer", sent.answer.hex()
    ) as echo:
        found = play(echo, sent, streams=3, processes=2, seconds=0.2)
    assert found["answered"] == 3
    assert 0.0 < found["p50_ms"] <= found["p99_ms"]


@pytest.mark.parametrize("kind", [FROZEN, KILLED])
def test_the_steps_of_the_others_are_counted(kind: str) -> None:
    with served(door()) as stage:
        found = loss(Stall(kind, simulators=2, stalled=1, pause_s=0.001), stage.address, messages(), seconds=0.2)
    assert found["loss"] == pytest.approx(1 - found["after"] / found["before"], abs=0.01)


def test_the_environment_is_the_examples_cart_pole() -> None:
    environment = ExampleCartPole()
    check_env(environment, skip_render_check=True)
    environment.reset(seed=1)
    pole = environment._pole
    before = list(pole.state)
    observation, reward, terminated, truncated, _ = environment.step(np.int64(1))
    assert (reward, terminated, truncated) == (1.0, False, False)
    np.testing.assert_array_equal(observation, np.array(pole.state, np.float32))
    # Pushed to the right, and still at the place where its first speed led.
    assert pole.state[1] > before[1]
    assert pole.state[0] == before[0] + 0.02 * before[1]


def test_a_client_that_cannot_be_built_is_left_out(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [client.name for client in built([PYTHON, CPP], tmp_path)] == [PYTHON]
    assert "C++: left out, because this machine has no make, g++" in capsys.readouterr().out


def test_only_a_registry_out_of_reach_excuses_a_failed_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "npm"
    (tmp_path / "node").symlink_to("npm")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for code, excused in (("ENOTFOUND", True), ("ECONNREFUSED", True), ("E503", True), ("EUSAGE", False)):
        tool.write_text(f"#!/bin/sh\necho 'npm error code {code}' >&2\nexit 1\n")
        tool.chmod(0o755)
        if excused:
            assert node_client(tmp_path / "built") == "npm cannot reach the registry of packages"
        else:
            with pytest.raises(SystemExit, match=f"npm ci failed: npm error code {code}"):
                node_client(tmp_path / "built")


def test_the_lock_file_of_the_client_in_javascript_names_no_registry() -> None:
    assert '"resolved"' not in (EXAMPLE / "package-lock.json").read_text(encoding="utf-8")


def _run(side: str, seed: int, steps_per_s: float, **changed: Any) -> dict[str, Any]:
    return {"side": side, "seed": seed, "solved": True, "mean_return": 480.0, "steps_per_s": steps_per_s, **changed}


def _training(share: float, seeds: int = 3, **changed: Any) -> list[dict[str, Any]]:
    return [
        _run(side, seed, rate, **(changed if side == CPP else {}))
        for seed in range(1, seeds + 1)
        for side, rate in ((OWN, 1_000.0), (CPP, 1_000.0 * share))
    ]


def _met(found: list[Target]) -> list[bool]:
    return [target.met for target in found]


def test_a_client_needs_every_seed_and_half_of_the_steps() -> None:
    assert _met(targets({"training": _training(0.6)})) == [True, True]
    assert _met(targets({"training": _training(0.4)})) == [True, False]
    assert _met(targets({"training": _training(0.6, solved=False)})) == [False, True]
    assert {target.refused for target in targets({"training": _training(0.6, seeds=1)})} == {ONE_SEED}


def test_ratios_are_medians_of_neighboring_turns() -> None:
    rates = [{"environments": 8, OWN: own, CPP: 50.0} for own in (50.0, 100.0, 1_000.0)]
    found = targets({"rates": [*rates, {"environments": 32, OWN: 1.0, CPP: 1.0}]})
    assert [target.measured for target in found] == [0.5, 1.0]
    sides = {ECHO: (100.0, 10.0), EXPLORING: (40.0, 30.0), GREEDY: (60.0, 15.0)}
    repeat = {side: {"actions_per_s": rate, "p99_ms": p99} for side, (rate, p99) in sides.items()}
    assert _met(targets({"streams": [repeat] * 3})) == [False, False, True, True]


def test_the_median_loss_of_each_kind_of_stall_counts() -> None:
    losses = [(FROZEN, 0.0, -0.5), (FROZEN, 0.005, 0.2), (FROZEN, 0.005, 0.05), (FROZEN, 0.005, 0.08)]
    found = targets({"stalls": [{"kind": kind, "pause_s": pause, "loss": loss} for kind, pause, loss in losses]})
    assert [(target.name, target.measured, target.met) for target in found] == [
        ("frozen, as fast as possible: loss of the others", -0.5, True),
        ("frozen, 5 ms for a step: loss of the others", 0.08, True),
    ]


def test_each_target_has_an_explanation() -> None:
    repeat = {side: {"actions_per_s": 1.0, "p99_ms": 1.0} for side in (ECHO, EXPLORING, GREEDY)}
    figures = {
        "training": _training(1.0),
        "rates": [{"environments": 8, OWN: 1.0, CPP: 1.0}],
        "streams": [repeat],
        "stalls": [{"kind": KILLED, "pause_s": 0.0, "loss": 0.0}],
    }
    for target in targets(figures):
        assert any(re.fullmatch(meaning.pattern, target.name) for meaning in MEANINGS), target.name
