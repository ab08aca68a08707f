"""The outcome of a finished run in its directory."""

from pathlib import Path

import pytest

from actorq.config.run_config import RunConfig
from actorq.domain.status import RunState
from learner_service.run.identity import RunClock
from learner_service.run.outcome import Outcome


def test_a_written_outcome_is_read_unchanged(tmp_path: Path) -> None:
    assert Outcome.read(tmp_path) is None
    outcome = Outcome.of(RunState.SOLVED, 12.5, RunConfig())
    outcome.write(tmp_path)
    assert Outcome.read(tmp_path) == outcome
    Outcome.forget(tmp_path)
    assert Outcome.read(tmp_path) is None
    Outcome.forget(tmp_path)


@pytest.mark.parametrize(
    ("changes", "holds"),
    [({}, True), ({"seed": 7}, True), ({"max_environment_steps": 200_000}, False), ({"target_return": 480.0}, False)],
)
def test_a_run_is_over_until_its_target_or_budget_changes(changes: dict[str, float], holds: bool) -> None:
    outcome = Outcome.of(RunState.BUDGET_ENDED, 1.0, RunConfig())
    assert outcome.holds_for(RunConfig.model_validate(changes)) is holds


TEXTS = ["", "[]", '{"state": "unheard of"}', '{"state": "solved"}']


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["outcome.json", "outcome.copy.json"])
def test_a_damaged_outcome_has_a_copy(name: str, text: str, tmp_path: Path) -> None:
    outcome = Outcome.of(RunState.SOLVED, 12.5, RunConfig())
    outcome.write(tmp_path)
    (tmp_path / name).write_text(text)
    assert Outcome.read(tmp_path) == outcome


@pytest.mark.parametrize("text", TEXTS)
def test_without_a_copy_a_damaged_outcome_is_logged_and_the_run_continues(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "outcome.json").write_text(text)
    assert Outcome.read(tmp_path) is None
    (line,) = caplog.messages
    assert "outcome.json" in line
    assert "\n" not in line


def test_the_clock_of_a_run_that_is_over_stands_still(tmp_path: Path) -> None:
    now = [100.0]
    clock = RunClock(tmp_path, 90.0, lambda: now[0])
    clock.stop()
    now[0] += 50
    clock.beat()
    assert clock.elapsed_s == 10.0
    # A learner that continues soon does not count the time in between.
    assert RunClock(tmp_path, 155.0, lambda: 156.0).elapsed_s == 11.0
    kept = RunClock(tmp_path, 155.0, lambda: 156.0)
    kept.stop(10.0)
    assert kept.elapsed_s == 10.0
