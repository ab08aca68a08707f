"""The plain lines that a run prints without a terminal."""

import io
from contextlib import suppress
from dataclasses import replace

from actorq.domain.status import RunState
from actorq_apps.cli.display.display import PlainDisplay
from actorq_apps.cli.display.view import RunView
from tests.actorq_apps.cli.display_parts import STATUS, panel, run_view, with_evaluation


def test_prints_plain_lines_every_two_seconds_and_at_once_for_news() -> None:
    now, file = [100.0], io.StringIO()
    display = PlainDisplay(run_view(), file, clock=lambda: now[0])
    for seconds, status in (
        (0.0, STATUS),
        (0.5, STATUS),
        (1.0, with_evaluation(300.0, 36)),
        (2.5, with_evaluation(300.0, 36)),
        (3.1, with_evaluation(300.0, 36)),
        (3.2, replace(with_evaluation(300.0, 36), state=RunState.STOPPING)),
    ):
        now[0] = 100.0 + seconds
        display.status(status)
    display.event("actor-1 died (SIGKILL), restarting in 0.2 s")
    lines = file.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["0.0s", "1.0s", "3.1s", "3.2s", "3.2s"]
    assert "return(eval) 231.4 v35" in lines[0]
    assert "\x1b" not in file.getvalue()


def test_reports_a_flagged_evaluation_once_and_not_as_a_success() -> None:
    flagged = replace(with_evaluation(9_000.0, 35), flagged_evaluation="version 35, by evaluator: too good")
    out, view = io.StringIO(), run_view()
    display = PlainDisplay(view, out, lambda: 0.0)
    for _ in range(3):
        display.status(flagged)
    told = "version 35, by evaluator: too good"
    assert out.getvalue().count(told) == 1
    assert [event.endswith(told) for event in view.events] == [True]
    assert any(told in line for line in panel(view, 100))
    display.status(replace(flagged, flagged_evaluation=""))
    display.status(flagged)
    assert out.getvalue().count(told) == 2


def test_reports_a_refused_environment_once() -> None:
    refused = replace(STATUS, problem="actor-1: algorithm dqn needs discrete actions")
    file, view = io.StringIO(), run_view()
    display = PlainDisplay(view, file, clock=lambda: 100.0)
    for status in (STATUS, refused, refused):
        display.status(status)
    assert file.getvalue().count(refused.problem) == 1
    assert [event.endswith(refused.problem) for event in view.events] == [True]


def test_reports_a_problem_from_before_the_first_line() -> None:
    refused = replace(STATUS, problem="actor-1: algorithm dqn needs discrete actions")
    file, view = io.StringIO(), run_view()
    view.update_status(refused)
    PlainDisplay(view, file).status(refused)
    assert file.getvalue().count(refused.problem) == 1


def test_a_run_continues_when_the_disk_of_its_output_is_full() -> None:
    full = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115 - closing it fails too
    try:
        display = PlainDisplay(RunView("runs/x", "CartPole-v1", "dqn"), full)
        display.event("actor-0 died")
        display.event("actor-0 restarted 1x")
    finally:
        with suppress(OSError):
            full.close()
