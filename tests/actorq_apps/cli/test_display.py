"""The panel that displays a run on a terminal."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from actorq.domain.environments import Group
from actorq.domain.policy import FIDELITY_GATE, FidelityReport, LayerReport, SequenceError
from actorq.domain.status import RolloutQueueStatus, RunState, RunStatus, StorageStatus
from actorq.text import return_text, size_text
from actorq_apps.cli.display import numbers
from actorq_apps.cli.display.display import status_line
from actorq_apps.cli.display.panel import bars, figures, render
from actorq_apps.cli.display.view import RunView
from actorq_apps.local.observer import ProcessState, ProcessView
from actorq_apps.local.services import Kind
from tests.actorq_apps.cli.display_parts import (
    EMITTED,
    STATUS,
    actor_status,
    evaluation,
    panel,
    process_stats,
    run_view,
    with_evaluation,
)
from tests.builders.run_status import run_status


@pytest.mark.parametrize("width", [80, 120])
def test_the_panel_fills_its_width_and_no_more(width: int) -> None:
    view = run_view()
    assert {len(line) for line in panel(view, width)} == {width}
    for version in range(1, 200):
        view.update_status(with_evaluation(2.5 * version, version))
    view.events.append("actor-1 died (SIGKILL), restarting in 0.2 s " * 5)
    assert {len(line) for line in panel(view, width)} == {width}


def test_the_panel_shows_a_full_disk_and_missing_segments_only_if_present() -> None:
    view = run_view()
    view.update_status(replace(STATUS, storage=StorageStatus(10**9, False, 0, 0, 0, 12)))
    assert not any("disk" in line or "missing segments" in line for line in panel(view, 120))
    view.update_status(replace(STATUS, storage=StorageStatus(10**3, True, 1, 2, 4, 12)))
    shown = "\n".join(panel(view, 120))
    assert "full: actors wait" in shown
    assert re.search(r"missing segments\s+7", shown)


def test_the_panel_shows_the_queue_of_an_on_policy_algorithm() -> None:
    def shown(queue: RolloutQueueStatus | None) -> dict[str, str]:
        names = ("waiting", "policy lag", "mismatch", "dropped as stale")
        return {each.name: each.value for each in figures(replace(STATUS, rollout_queue=queue)) if each.name in names}

    assert shown(None) == {}
    assert shown(RolloutQueueStatus(2048, 0)) == {"waiting": "2,048", "policy lag": "-", "mismatch": "-"}
    assert shown(RolloutQueueStatus(0, 1024, 0.00123, 0.2, 1.5)) == {
        **{"waiting": "0", "policy lag": "1.50", "mismatch": "0.0012"},
        "dropped as stale": "1,024",
    }


def test_the_panel_fits_a_small_terminal() -> None:
    view = run_view()
    view.update_status(STATUS)
    for number in range(4):
        view.events.append(f"event {number}")
    assert len(panel(view, 80, height=24)) <= 24
    assert "event 3" in panel(view, 80, height=24)[-2]


@pytest.mark.parametrize("height", [24, 30, 40])
@pytest.mark.parametrize("events", [0, 4])
def test_many_processes_leave_room_for_the_events(height: int, events: int) -> None:
    view = run_view()
    for number in range(2, 40):
        view.update_process(ProcessView(f"actor-{number}", Kind.ACTOR, ProcessState.RUNNING, 5000 + number, 0))
    view.update_process(ProcessView("actor-39", Kind.ACTOR, ProcessState.GIVEN_UP, None, 9))
    for number in range(events):
        view.events.append(f"event {number}")
    assert len(panel(view, 80, height)) == height
    view.update_status(STATUS)
    lines = panel(view, 80, height)
    assert len(lines) == height
    text = "\n".join(lines)
    assert events == 0 or "event 3" in lines[-2]
    assert "given up" in text
    shown = sum("actor-" in line for line in lines) + sum(
        f" {name} " in text for name in ("learner", "quantizer", "meter")
    )
    assert f"and {43 - shown} more processes" in text
    assert len(panel(view, 80)) > height


def test_the_panel_shows_the_runs_numbers_and_each_process() -> None:
    view = run_view()
    view.update_status(STATUS)
    text = "\n".join(panel(view, 120))
    for expected in (
        "64,256 / 100,000 environment steps", "231.4 v35", "target 475.0", "1,485", "1 / 3", "34 ms", "99.2%",
        "int8 9.6 KiB fp32 20.0 KiB", "1.230 Wh, 0.450 g CO2 codecarbon tdp estimate", "emitted v35 int8",
    ):  # fmt: skip
        assert expected in text
    restarting = next(line for line in text.splitlines() if "actor-1" in line)
    assert "restarting" in restarting
    assert "4104" not in restarting


LAYERS = (
    LayerReport("0", "float32", "first layer"),
    LayerReport("1", "float32", FIDELITY_GATE),
    LayerReport("2", "int8 per channel"),
)


def emitted(layers: tuple[LayerReport, ...], agreement: float | None = 0.992) -> RunStatus:
    fidelity = FidelityReport(256, 0.002, 0.01, 0.0123, 0.114, agreement, layers)
    return replace(STATUS, emitted=replace(EMITTED, fidelity=fidelity))


def shown(status: RunStatus, width: int = 80) -> str:
    view = run_view()
    view.update_status(status)
    return "\n".join(panel(view, width))


def cell(text: str, name: str) -> list[str]:
    return text.partition(name)[2].split()


@pytest.mark.parametrize("width", [80, 120])
def test_the_panel_shows_the_policys_fidelity_and_the_gates_decision(width: int) -> None:
    as_asked = shown(emitted((LAYERS[0], LAYERS[2])), width)
    assert cell(as_asked, "argmax agreement")[0] == "99.2%"
    assert cell(as_asked, "float layers")[:3] == ["1", "of", "2"]
    assert cell(as_asked, "fidelity gate")[0] == "passed"
    assert "int8 9.6 KiB" in as_asked
    climbed = shown(emitted(LAYERS, agreement=None), width)
    assert cell(climbed, "action error")[:3] == ["1.2%", "/", "11%"]
    assert cell(climbed, "float layers")[:3] == ["2", "of", "3"]
    assert cell(climbed, "fidelity gate")[:3] == ["1", "to", "float"]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("agreement", [0.5, None])
def test_shows_the_divergence_of_a_stochastic_policy(width: int, agreement: float | None) -> None:
    fidelity = replace(EMITTED.fidelity, argmax_agreement=agreement, mean_kl=0.000123, max_kl=0.0456)
    status = replace(STATUS, emitted=replace(EMITTED, fidelity=fidelity))
    assert cell(shown(status, width), "KL, nats")[:3] == ["0.0001", "/", "0.05"]
    assert "int8 KL, nats 0.0001 / 0.05" in status_line(status)
    assert "agreement" not in shown(status, width)


def test_shows_the_drift_of_a_policy_with_memory() -> None:
    sequences = tuple(
        SequenceError(steps, 16, 0.0, 0.0, drift, 0.0, 0.0) for steps, drift in ((1, 0.001), (64, 0.0123))
    )
    status = replace(STATUS, emitted=replace(EMITTED, fidelity=replace(EMITTED.fidelity, sequences=sequences)))
    assert cell(shown(status, 120), "state drift")[0] == "1.2%"
    assert "state drift 1.2%" in status_line(status)
    assert "state drift" not in shown(replace(STATUS, emitted=EMITTED), 120)


def test_does_not_call_a_float_policy_quantized() -> None:
    status = emitted(LAYERS[:2])
    assert "int8 as fp32 9.6 KiB" in shown(status)
    assert "emitted v35 int8 as fp32" in shown(status, 120)
    assert "int8 as fp32 argmax agreement 99.2%" in status_line(status)
    assert "int8 argmax agreement 99.2%" in status_line(emitted(LAYERS))


def test_before_the_first_policy_there_is_no_fidelity() -> None:
    text = shown(replace(STATUS, emitted=None))
    assert [cell(text, name)[0] for name in ("policy error", "float layers", "fidelity gate")] == ["-"] * 3
    assert "agreement" not in status_line(replace(STATUS, emitted=None))


def test_colors_layers_kept_in_float_only_on_a_terminal() -> None:
    view = run_view()
    view.update_status(emitted(LAYERS))
    coloured = {}
    for terminal in (True, False):
        file = io.StringIO()
        console = Console(width=80, file=file, force_terminal=terminal, color_system="standard" if terminal else None)
        console.print(render(view, 42.3, 80))
        coloured[terminal] = file.getvalue()
    assert "\x1b[33m1 to float" in coloured[True]
    assert "\x1b" not in coloured[False]


def test_the_last_panel_leaves_out_processes_that_ended_normally() -> None:
    view = run_view()
    view.update_status(replace(STATUS, state=RunState.SOLVED))
    for name, kind in (("learner", Kind.LEARNER), ("quantizer", Kind.QUANTIZER), ("actor-0", Kind.ACTOR)):
        view.update_process(ProcessView(name, kind, ProcessState.EXITED, None, 0))
    view.update_process(ProcessView("meter", Kind.METER, ProcessState.GIVEN_UP, None, 3))
    view.update_process(ProcessView("actor-1", Kind.ACTOR, ProcessState.EXITED, None, 2))

    def last(view: RunView) -> str:
        console = Console(width=100, file=io.StringIO(), record=True)
        console.print(render(view, 42.3, 100, resources=lambda _: None, ended=True))
        return console.export_text()

    assert "given up" in last(view)
    assert "exited" not in last(view)
    view.update_process(ProcessView("meter", Kind.METER, ProcessState.EXITED, None, 3))
    assert "process" not in last(view)
    assert "energy" in last(view).splitlines()[-2]
    assert "231.4 v35" in last(view)
    assert "exited" in "\n".join(panel(view, 100))


@pytest.mark.parametrize(
    ("mean_return", "target", "shown"),
    [(0.85, 0.95, ("0.85 v35", "target 0.95")), (0.0042, 0.005, ("0.0042 v35", "target 0.0050"))],
)
def test_small_returns_keep_their_digits(mean_return: float, target: float, shown: tuple[str, str]) -> None:
    status = replace(with_evaluation(mean_return, 35), target_return=target, training_return=mean_return / 2)
    view = run_view()
    view.update_status(status)
    text = "\n".join(panel(view, 100))
    for part in (*shown, f"training return {return_text(mean_return / 2)}", f"{return_text(target)} ┤"):
        assert part in text
    assert f"return(eval) {shown[0]}" in status_line(status)


def test_every_header_of_the_table_is_whole_at_80_columns() -> None:
    view = run_view()
    view.update_status(STATUS)
    table = panel(view, 80)
    header = next(line for line in table if "process" in line)
    assert header.strip("│ ").split() == ["process", "state", "doing", "policy", "steps/s", "memory", "restarts"]
    assert next(line for line in table if "actor-1" in line).split()[-2] == "2"
    assert "emitted v35 int8" in next(line for line in table if "quantizer " in line and "running" in line)


def test_without_a_launcher_the_processes_come_from_the_status() -> None:
    view = RunView("run at 127.0.0.1:1", "CartPole-v1", "dqn")
    view.update_status(STATUS)
    assert [row.name for row in view.rows(lambda _: None)] == [
        "learner", "quantizer", "actor-0", "actor-1", "evaluator",
    ]  # fmt: skip


def test_actors_that_have_left_are_not_shown_as_running() -> None:
    view = RunView("run at 127.0.0.1:1", "CartPole-v1", "dqn")
    view.update_status(replace(STATUS, actors=STATUS.actors[1:]))
    assert [row.name for row in view.rows(lambda _: None)] == ["learner", "quantizer", "actor-1", "evaluator"]


def test_an_actor_with_the_learners_name_has_its_own_row() -> None:
    namesake = actor_status("learner", "actor", 2, 4109)
    own = process_stats("learner", "actor", 4109)
    status = replace(STATUS, actors=(*STATUS.actors, namesake), processes=(*STATUS.processes, own))
    view = RunView("run at 127.0.0.1:1", "CartPole-v1", "dqn")
    view.update_status(status)
    found = [(row.pid, row.doing, row.version) for row in view.rows(lambda _: None) if row.name == "learner"]
    assert found == [(4101, "learner on node-a", None), (4109, "acting, 1 queued", 34)]
    launched = run_view()
    launched.update_status(status)
    assert next(row.version for row in launched.rows(lambda _: None) if row.name == "learner") is None


def test_an_evaluation_that_is_repeated_in_each_status_counts_once() -> None:
    view = run_view()
    assert [view.update_status(with_evaluation(9.0, version)) for version in (1, 1, 2, 2)] == [True, False, True, False]
    assert view.evaluations == [9.0, 9.0]


def test_bars_show_the_lowest_as_a_sliver_and_the_highest_as_full() -> None:
    assert bars([0.0, 5.0, 10.0], width=4, height=2, low=0.0, high=10.0) == ["  █ ", "▁██ "]


def test_bars_average_values_that_do_not_fit() -> None:
    assert bars([0.0, 10.0, 10.0, 10.0], width=2, height=1, low=0.0, high=10.0) == ["▄█"]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (numbers.duration(12.34), "12.3s"),
        (numbers.duration(245), "4m 05s"),
        (numbers.duration(7384), "2h 03m"),
        (size_text(812), "812 B"),
        (return_text(-1234.56), "-1,234.6"),
        (return_text(0.0), "0.0"),
        (return_text(9.87), "9.87"),
        (return_text(0.85), "0.85"),
        (return_text(-0.0042), "-0.0042"),
        (return_text(None), "-"),
        (size_text(301 * 2**20), "301 MiB"),
        (numbers.seconds(0.0341), "34 ms"),
        (numbers.optional(None), "-"),
    ],
)
def test_formats_numbers_for_people(shown: str, expected: str) -> None:
    assert shown == expected


def test_shows_success_if_the_environment_reports_it() -> None:
    successful = replace(evaluation(-3.25, 7), successes=(True,) * 19 + (False,))
    status = run_status(evaluation=successful, target_return=None, target_success=0.95)
    assert "return(eval) -3.25, success 95% v7" in status_line(status)
    view = RunView("run", "Reach-v0", "sac")
    view.update_status(status)
    # The chart has the rate, which is compared with the target.
    assert view.evaluations == [0.95]
    console = Console(width=100, file=io.StringIO())
    console.print(render(view, 1.0, 100, 40))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "-3.25, success 95% v7" in shown
    assert "target success 95%" in shown


def test_shows_the_return_of_each_agent() -> None:
    training = run_status(agent_returns={"red": 1.5, "green": -0.25})
    assert [(each.name, each.value) for each in figures(training)][-2:] == [("red", "1.50"), ("green", "-0.25")]
    evaluated = replace(evaluation(3.0, 7), returns=(3.0,), agents=("red", "green"), agent_returns=(1.0, 2.0))
    shown = figures(replace(training, evaluation=evaluated))
    assert [(each.name, each.value) for each in shown][-2:] == [("red", "1.00"), ("green", "2.00")]
    many = run_status(agent_returns={f"agent_{number}": 0.0 for number in range(20)})
    assert [(each.name, each.value) for each in figures(many)][-1] == ("more agents", "14")


def test_the_returns_of_groups_precede_those_of_agents() -> None:
    groups = (Group("pair", ("green", "blue")), Group("solo", ("red",)))
    status = run_status(agent_returns={"red": 1.5, "green": -0.25, "blue": 1.0}, groups=groups)
    shown = [(each.name, each.value) for each in figures(status)]
    assert shown[-5:-3] == [("group pair", "0.75"), ("group solo", "1.50")]
    assert [name for name, _ in shown[-3:]] == ["red", "green", "blue"]
