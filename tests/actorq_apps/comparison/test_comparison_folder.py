"""The folder of a comparison: which runs it keeps or repeats, and what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from actorq.statefiles.documents import write_document
from actorq_apps.comparison.folder import ComparisonFolder
from actorq_apps.comparison.making import make_runs
from actorq_apps.comparison.schedule import ScheduledRun, Variant, grid, interleaved
from tests.actorq_apps.comparison.comparison_parts import MACHINE, summary

SETTINGS: dict[str, Any] = {"time_to": None, "variants": {"int8": {"dqn": {"batch_size": 64}}}}
SCHEDULED = ScheduledRun(Variant("int8"), 1)


def opened(root: Path) -> ComparisonFolder:
    folder = ComparisonFolder(root / "comparison")
    folder.open(SETTINGS, MACHINE)
    return folder


def ended(folder: ComparisonFolder, scheduled: ScheduledRun, state: str) -> Path:
    """A run in this state."""
    run = folder.run(scheduled)
    run.root.mkdir(parents=True, exist_ok=True)
    write_document(run.summary, summary(state=state))
    return run.root


def test_keeps_finished_runs_and_restarts_the_others(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    assert not folder.finished(SCHEDULED)
    for state, finished in (("solved", True), ("budget ended", True), ("interrupted", False), ("stopped", False)):
        root = ended(folder, SCHEDULED, state)
        assert folder.finished(SCHEDULED) is finished
    folder.clear(SCHEDULED)
    assert not root.exists()


def test_a_folder_without_recorded_gpus_is_continued_where_there_are_none(tmp_path: Path) -> None:
    assert "gpus" not in (opened(tmp_path).root / "basis.json").read_text()
    with pytest.raises(UserError, match=r"machine.*gpus.*\['NVIDIA H200'\]"):
        ComparisonFolder(tmp_path / "comparison").open(SETTINGS, replace(MACHINE, gpus=["NVIDIA H200"]))


def test_a_complete_comparison_starts_no_run(tmp_path: Path) -> None:
    folder, schedule, told = opened(tmp_path), interleaved(grid(("fp32", "int8")), (1, 2)), list[str]()
    for scheduled in schedule:
        ended(folder, scheduled, "solved")

    def config_of(scheduled: ScheduledRun) -> RunConfig:
        raise AssertionError(scheduled)

    make_runs(folder, schedule, config_of, told.append)
    assert told[0].endswith("1 of 4: fp32, seed 1: kept")
    assert len(told) == 4


def test_a_run_that_cannot_be_made_ends_the_comparison_with_its_own_line(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    config = RunConfig(environment="Nowhere-v0")
    with pytest.raises(UserError, match=r"int8-seed1: .*Nowhere.*int8-seed1\.log"):
        make_runs(folder, [SCHEDULED], lambda _: config, lambda _: None)
    assert "Nowhere" in folder.log(SCHEDULED).read_text()


def test_does_not_touch_an_active_run(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    root = ended(folder, SCHEDULED, "interrupted")
    with folder.run(SCHEDULED).locked(lambda: None), pytest.raises(UserError, match=r"in use .*actorq train"):
        folder.clear(SCHEDULED)
    assert root.exists()


def test_continues_with_the_same_settings_on_the_same_machine(tmp_path: Path) -> None:
    opened(tmp_path)
    opened(tmp_path)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"cpu": "Other"}, "cpu: Processor 3000 .* Other "),
        ({"cores": 4}, "cores: 2 .* 4 "),
        ({"packages": {"torch": "2.14.0", "numpy": "2.4.6"}}, r"packages\.torch: 2\.13\.0 .* 2\.14\.0 "),
    ],
)
def test_runs_of_another_machine_are_refused(tmp_path: Path, changes: dict[str, Any], fact: str) -> None:
    folder = opened(tmp_path)
    with pytest.raises(UserError, match=f"machine.*{fact}"):
        folder.open(SETTINGS, replace(MACHINE, **changes))


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({**SETTINGS, "time_to": 400.0}, "time_to: .*400.0 "),
        (
            {**SETTINGS, "variants": {"int8": {"dqn": {"batch_size": 32}}}},
            r"variants\.int8\.dqn\.batch_size: 64 .* 32 ",
        ),
        ({**SETTINGS, "variants": {**SETTINGS["variants"], "fp32": {}}}, r"variants\.fp32: "),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, settings: dict[str, Any], fact: str) -> None:
    folder = opened(tmp_path)
    with pytest.raises(UserError, match=f"settings.*{fact}"):
        folder.open(settings, MACHINE)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=f"actorq compare.*{tmp_path}"):
        ComparisonFolder(tmp_path).open(SETTINGS, MACHINE)


def test_a_damaged_basis_is_refused(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    (folder.root / "basis.json").write_text("{}")
    with pytest.raises(UserError, match=r"basis\.json "):
        folder.open(SETTINGS, MACHINE)
