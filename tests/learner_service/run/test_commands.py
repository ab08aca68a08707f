"""What an operator has commanded outlives the learner that has answered."""

import asyncio
from pathlib import Path

import pytest

from actorq.domain.status import RunState
from actorq.errors import ConflictError, UnavailableError
from actorq.statefiles.documents import copy_of
from learner_service.run.outcome import Commands, Outcome
from learner_service.run.run import Run
from tests.learner_service.learner_parts import config, on_a_loop, segment, store
from tests.learner_service.run.run_parts import a_run, opened

SETTINGS = config(replay={"capacity": 2_000, "min_size": 8})


async def begun(run: Run) -> None:
    """Start training: an actor joins and sends a segment."""
    stream = await opened(run)
    await store(run, stream, segment(1))


def test_commands_are_kept_until_they_are_forgotten(tmp_path: Path) -> None:
    assert (Commands(tmp_path).paused, Commands(tmp_path).stopped) == (False, False)
    Commands(tmp_path).write(paused=False)
    assert not any(tmp_path.iterdir())
    Commands(tmp_path).write(paused=True)
    Commands(tmp_path).write(stopped=True)
    assert (Commands(tmp_path).paused, Commands(tmp_path).stopped) == (True, True)
    Commands(tmp_path).write(paused=False)
    assert (Commands(tmp_path).paused, Commands(tmp_path).stopped) == (False, True)
    Commands(tmp_path).write(paused=False, stopped=False)
    assert (Commands(tmp_path).paused, Commands(tmp_path).stopped) == (False, False)


def test_one_damaged_file_loses_no_command_and_two_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Commands(tmp_path).write(paused=True)
    path = tmp_path / "commands.json"
    path.write_text("{")
    assert Commands(tmp_path).paused
    copy_of(path).write_text("{")
    assert not Commands(tmp_path).paused
    assert "commands.json" in caplog.text


@on_a_loop
async def test_a_pause_outlives_its_learner_until_training_is_resumed(tmp_path: Path) -> None:
    # Nothing is closed: the learner is killed after its answer.
    async with a_run(tmp_path, SETTINGS) as run:
        await begun(run)
        await run.pause()
        await run.save()
    async with a_run(tmp_path, SETTINGS, resume=True) as run:
        await run.preparation.restore()
        assert run.lifecycle.state is RunState.PAUSED
        updates = await run.resume()
        assert run.training is not None
        assert updates == run.training.trainer.updates
        assert run.lifecycle.state is not RunState.PAUSED
    async with a_run(tmp_path, SETTINGS, resume=True) as run:
        await run.preparation.restore()
        assert run.lifecycle.state is not RunState.PAUSED


@pytest.mark.parametrize("has_begun", [True, False])
@on_a_loop
async def test_the_next_learner_ends_a_stopped_run(tmp_path: Path, has_begun: bool) -> None:
    async with a_run(tmp_path, SETTINGS) as run:
        if has_begun:
            await begun(run)
            await run.save()
        # Killed before it has saved anything.
        await asyncio.to_thread(run.lifecycle.commands.write, stopped=True)
    assert not (tmp_path / "outcome.json").exists()
    async with a_run(tmp_path, SETTINGS, resume=True) as run:
        await run.preparation.restore()
        if run.training is not None:
            updates = run.training.trainer.updates
            run.training.publisher.close()
        await run.lifecycle.ended.wait()
        assert run.lifecycle.state is RunState.STOPPED
        if run.training is not None:
            assert run.training.trainer.updates == updates
    ended = Outcome.read(tmp_path)
    assert ended is not None
    assert ended.state is RunState.STOPPED


@on_a_loop
async def test_a_run_that_has_ended_and_is_continued_does_not_end_again(tmp_path: Path) -> None:
    async with a_run(tmp_path, SETTINGS) as run:
        await begun(run)
        assert await run.lifecycle.stop() is RunState.STOPPED
        assert run.training is not None
        run.training.publisher.close()
        await run.lifecycle.ended.wait()
        assert await run.lifecycle.stop() is RunState.STOPPED
    async with a_run(tmp_path, SETTINGS, resume=True) as run:
        await run.preparation.restore()
        assert run.lifecycle.wants_actors
        assert not run.lifecycle.commands.stopped


@on_a_loop
async def test_a_command_that_cannot_be_written_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async with a_run(tmp_path, SETTINGS) as run:
        await begun(run)
        monkeypatch.setattr("learner_service.run.outcome.write_twice", refuse)
        for command in (run.pause, run.lifecycle.stop):
            with pytest.raises(UnavailableError, match=r"command.*No space left on device"):
                await command()
        assert run.lifecycle.wants_actors
        assert run.lifecycle.state is not RunState.PAUSED


@on_a_loop
async def test_there_is_nothing_to_pause_before_training(tmp_path: Path) -> None:
    async with a_run(tmp_path, SETTINGS) as run:
        with pytest.raises(ConflictError, match="no training"):
            await run.pause()
    assert not (tmp_path / "commands.json").exists()
