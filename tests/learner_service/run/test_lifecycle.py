"""How a run ends, is interrupted, and is restored."""

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from actorq.domain.status import RunState
from actorq.domain.trajectory import Episode
from actorq.errors import ConflictError, InvalidInputError, UnavailableError, UserError
from actorq.v1 import learner_pb2
from learner_service.algorithms.dqn import DQN
from learner_service.report import Reporter
from learner_service.run.lifecycle import Lifecycle
from learner_service.run.outcome import Outcome
from learner_service.servicer import LearnerServicer
from tests.learner_service.learner_parts import DEADLINE_S, SPEC, config, evaluation, on_a_loop, segment, store, until
from tests.learner_service.run.run_parts import a_run, opened


@on_a_loop
async def test_a_finished_run_admits_no_actor_and_grants_no_credit(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        stream = await opened(run)
        judge = await opened(run, "judge", "evaluator")
        judge.changed.clear()
        credit = stream.credit
        run.lifecycle.finish(RunState.STOPPED)
        with pytest.raises(UnavailableError, match="over"):
            run.connections.join("b", 1, "actor")
        with pytest.raises(ConflictError, match="no training"):
            await run.save()
        await store(run, stream, segment(1))
        assert (stream.acknowledged, stream.credit) == (1, credit)
        # No quantizer would receive the last policy.
        assert run.training is not None
        run.training.publisher.close()
        await run.lifecycle.ended.wait()
        for each in (stream, judge):
            assert (each.stop, each.changed.is_set()) == (True, True)
            run.connections.close_stream(each)
        assert run.lifecycle.state is RunState.STOPPED


@on_a_loop
async def test_a_learner_that_is_told_to_end_while_its_run_ends_ends_the_run(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.lifecycle.finish(RunState.STOPPED)
        run.lifecycle.interrupt()
        assert not run.lifecycle.interrupted
        await run.lifecycle.ended.wait()
        assert run.lifecycle.state is RunState.STOPPED
    assert (tmp_path / "outcome.json").exists()


@on_a_loop
async def test_a_learner_that_moves_opens_no_stream_and_builds_no_training(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.connections.join("a", 1, "actor")
        run.lifecycle.interrupt()
        with pytest.raises(UnavailableError, match="moving"):
            await run.connections.open_stream("a", 1, SPEC)
        assert run.training is None


@on_a_loop
async def test_an_interrupted_run_is_saved_before_its_streams_are_closed_and_is_not_over(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        stream = await opened(run)
        credit = stream.credit
        await store(run, stream, segment(1))
        assert run.training is not None
        run.training.publisher.close()
        # The only thread that could save is busy until the streams have been checked.
        go_on, loop = threading.Event(), asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        taken = loop.run_in_executor(None, go_on.wait, DEADLINE_S)
        run.lifecycle.interrupt()
        assert run.lifecycle.state is RunState.INTERRUPTED
        for refused in (lambda: run.connections.join("b", 1, "actor"), run.lifecycle.require_here):
            with pytest.raises(UnavailableError, match="moving"):
                refused()
        for command in (run.pause, run.resume, run.lifecycle.stop):
            with pytest.raises(UnavailableError, match="moving"):
                await command()
        # What is on its way is stored, and no credit follows.
        await store(run, stream, segment(2))
        assert (stream.acknowledged, stream.credit <= credit + 1) == (2, True)
        assert stream.fault is None
        go_on.set()
        await taken
        await run.lifecycle.ended.wait()
        assert isinstance(stream.fault, UnavailableError)
        assert "moving" in str(stream.fault)
        assert (run.lifecycle.state, run.lifecycle.state.final, run.lifecycle.wants_actors, stream.stop) == (
            RunState.INTERRUPTED,
            False,
            True,
            False,
        )
        assert list((tmp_path / "checkpoints").iterdir())
        assert not (tmp_path / "outcome.json").exists()
    async with a_run(tmp_path, resume=True) as run:
        await run.preparation.restore()
        assert run.connections.join("a", 1, "actor").resume_after_sequence == 2
        assert run.lifecycle.state is RunState.COLLECTING


ENDS = pytest.mark.parametrize(
    "end", [Lifecycle.interrupt, lambda lifecycle: lifecycle.finish(RunState.BUDGET_ENDED)], ids=["leaves", "ends"]
)


@on_a_loop
@ENDS
async def test_networks_that_have_diverged_are_not_saved(tmp_path: Path, end: Callable[[Lifecycle], None]) -> None:
    async with a_run(tmp_path, config(replay={"capacity": 2_000, "min_size": 8})) as run:
        stream = await opened(run)
        await store(run, stream, segment(1), segment(2))
        assert run.training is not None
        trainer = run.training.trainer
        await until(stream, lambda: trainer.updates > 0)
        _, saved = await run.save()
        await run.pause()
        assert isinstance(run.training.algorithm, DQN)
        run.training.algorithm.networks["actor"].parameters[0].vector.fill_(float("nan"))
        await run.resume()
        await store(run, stream, segment(3), segment(4))
        async with asyncio.timeout(DEADLINE_S):
            while trainer.fault is None:
                await asyncio.sleep(0.01)
        end(run.lifecycle)
        assert run.lifecycle.wants_actors
        assert isinstance(run.lifecycle.fault, InvalidInputError)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"{saved:012d}"]
    assert not (tmp_path / "outcome.json").exists()


@on_a_loop
@ENDS
async def test_updates_that_fail_while_the_learner_ends_are_not_saved(
    tmp_path: Path, end: Callable[[Lifecycle], None]
) -> None:
    failing = config(algorithm="own_algorithms:ThatFailsLater", replay={"capacity": 2_000, "min_size": 8})
    async with a_run(tmp_path, failing) as run:
        await store(run, await opened(run), segment(1), segment(2))
        assert run.training is not None
        run.training.publisher.close()
        algorithm: Any = run.training.algorithm
        assert await asyncio.to_thread(algorithm.begun.wait, DEADLINE_S)
        end(run.lifecycle)
        algorithm.told.set()
        await run.lifecycle.ended.wait()
        assert isinstance(run.lifecycle.fault, ZeroDivisionError)
        assert run.lifecycle.wants_actors
    assert not list((tmp_path / "checkpoints").iterdir())
    assert not (tmp_path / "outcome.json").exists()


@on_a_loop
async def test_watchers_of_an_interrupted_learner_are_told_that_it_moves(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        watch = aiter(LearnerServicer(run, Reporter(run)).WatchStatus(learner_pb2.WatchStatusRequest(), None))
        assert (await anext(watch)).status.state == learner_pb2.RUN_STATE_WAITING_FOR_ACTORS
        run.lifecycle.interrupt()
        await run.lifecycle.ended.wait()
        assert (await anext(watch)).status.state == learner_pb2.RUN_STATE_INTERRUPTED
        with pytest.raises(UnavailableError, match="moving"):
            await anext(watch)


@on_a_loop
async def test_an_interrupted_learner_leaves_the_end_of_the_run_to_the_next_one(tmp_path: Path) -> None:
    ending = config(max_environment_steps=8, target_return=10.0)
    async with a_run(tmp_path, settings=ending) as run:
        stream, judge = await opened(run), await opened(run, "judge", "evaluator")
        assert run.training is not None
        run.training.publisher.close()
        run.lifecycle.interrupt()
        await store(run, stream, segment(1, episodes=(Episode(9.0, 9, 0),)))
        with pytest.raises(UnavailableError, match="moving"):
            run.connections.evaluated(judge, evaluation(1, 1, 10.0))
        await run.lifecycle.ended.wait()
        assert (run.lifecycle.state, judge.acknowledged, run.records.evaluations.count) == (RunState.INTERRUPTED, 0, 0)
    async with a_run(tmp_path, resume=True, settings=ending) as run:
        await run.preparation.restore()
        judge = await opened(run, "judge", "evaluator")
        assert run.training is not None
        run.training.publisher.close()
        run.connections.evaluated(judge, evaluation(1, 1, 10.0))
        await run.lifecycle.ended.wait()
        assert run.lifecycle.state is RunState.SOLVED


@on_a_loop
async def test_a_learner_that_is_told_to_end_while_it_restores_ends_the_build_first(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        stream = await opened(run)
        await store(run, stream, segment(1))
    async with a_run(tmp_path, resume=True) as run:
        restoring = asyncio.create_task(run.preparation.restore())
        await asyncio.sleep(0)
        run.lifecycle.interrupt()
        await restoring
        assert run.training is not None
        run.training.publisher.close()
        await run.lifecycle.ended.wait()
        assert run.training.trainer.updates == 0
        assert run.training.replay.total_transitions == 8


@on_a_loop
async def test_the_time_in_which_a_learner_moves_belongs_to_the_run(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.lifecycle.interrupt()
        await run.lifecycle.ended.wait()
    assert json.loads((tmp_path / "clock.json").read_text())["ended"] is False


@on_a_loop
async def test_a_run_ends_when_its_seconds_are_used_up_and_goes_on_with_more(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(max_seconds=1e-3)) as run:
        # Not before it can write its end.
        run.beat()
        assert run.lifecycle.outcome is None
        await opened(run)
        run.beat()
        await run.lifecycle.ended.wait()
        assert run.lifecycle.state is RunState.BUDGET_ENDED
    ended = Outcome.read(tmp_path)
    assert ended is not None
    assert ended.holds_for(config(max_seconds=1e-3))
    assert not ended.holds_for(config(max_seconds=60.0))
    assert not ended.holds_for(config())


@on_a_loop
async def test_a_run_that_is_solved_at_the_end_of_its_budget_is_solved(tmp_path: Path) -> None:
    for first, second in ((RunState.BUDGET_ENDED, RunState.SOLVED), (RunState.SOLVED, RunState.BUDGET_ENDED)):
        async with a_run(tmp_path / first.value) as run:
            run.lifecycle.finish(first)
            run.lifecycle.finish(second)
            await run.lifecycle.ended.wait()
            assert run.lifecycle.state is RunState.SOLVED
    async with a_run(tmp_path / "stopped") as run:
        run.lifecycle.finish(RunState.STOPPED)
        run.lifecycle.finish(RunState.SOLVED)
        await run.lifecycle.ended.wait()
        assert run.lifecycle.state is RunState.STOPPED


@on_a_loop
async def test_a_run_that_cannot_be_restored_ends_with_its_fault(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.connections.close_stream(await opened(run))
        await run.save()
    wider = config(dqn={"hidden_sizes": (16,), "batch_size": 8, "n_step": 3})
    async with a_run(tmp_path, resume=True, settings=wider) as run:
        # One that waited on would delay the next learner.
        watching = aiter(LearnerServicer(run, Reporter(run)).WatchStatus(learner_pb2.WatchStatusRequest(), None))
        told = asyncio.ensure_future(anext(watching))
        await run.preparation.restore()
        with pytest.raises(UnavailableError, match="failed"):
            await asyncio.wait_for(told, DEADLINE_S)
        assert run.lifecycle.ended.is_set()
        assert isinstance(run.lifecycle.fault, UserError)
        assert "checkpoint" in str(run.lifecycle.fault)
        assert run.training is None


@on_a_loop
async def test_waits_for_the_restore_end_when_the_run_is_restored(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        others = asyncio.all_tasks()
        await run.lifecycle.until_restored()
        # Canceled tasks end in the loop's next round.
        await asyncio.sleep(0)
        assert asyncio.all_tasks() <= others
