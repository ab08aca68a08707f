"""A run without a network: who gets which place in it, and how it ends or is interrupted."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.policy import FidelityReport, LayerReport, PolicyDescriptor
from actorq.domain.status import ActorReport, Receipt, RunState
from actorq.domain.trajectory import Role
from actorq.errors import ConflictError, InvalidInputError, UnavailableError, UserError
from actorq.telemetry.energy import NodeEnergy
from actorq.telemetry.process_stats import measure_process
from actorq.v1 import learner_pb2
from learner_service.actors.credits import ActorStream
from learner_service.reporting.report import Reporter
from learner_service.run.records import Records
from learner_service.run.run import Run
from learner_service.servicer import LearnerServicer
from tests.learner_service.learner_parts import (
    DEADLINE_S,
    SPEC,
    acknowledged,
    config,
    evaluation,
    on_a_loop,
    room_for,
    segment,
    store,
)


@asynccontextmanager
async def a_run(directory: Path, resume: bool = False, settings: RunConfig | None = None) -> AsyncIterator[Run]:
    """A run whose quantizer is away."""
    with QuantizerClient("127.0.0.1:1") as client:
        run = Run(settings or config(), directory, client, resume)
        try:
            yield run
        finally:
            await run.close()


async def seeds(directory: Path, settings: RunConfig | None = None, resume: bool = False) -> list[int]:
    """Of actors 0 and 1, an evaluator 0, and another life of actor 0."""
    async with a_run(directory, resume, settings) as run:
        joins: list[tuple[str, int, Role]] = [
            ("a", 1, "actor"),
            ("b", 1, "actor"),
            ("judge", 1, "evaluator"),
            ("a", 2, "actor"),
        ]
        return [run.join(name, incarnation, role).seed for name, incarnation, role in joins]


@on_a_loop
async def test_the_same_place_in_the_same_run_has_the_same_seed_and_any_other_another(tmp_path: Path) -> None:
    one = await seeds(tmp_path / "one")
    assert len(set(one)) == 4
    assert await seeds(tmp_path / "two") == one
    other_seed = await seeds(tmp_path / "three", config(seed=2))
    other_life = await seeds(tmp_path / "one", resume=True)
    assert len({*one, *other_seed, *other_life}) == 12


@on_a_loop
async def test_joining_again_in_one_life_gives_the_same_seed(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        assert run.join("a", 1, "actor") == run.join("a", 1, "actor")


@on_a_loop
async def test_an_actor_that_leaves_during_the_build_does_not_take_the_training_with_it(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        for name in ("first", "second"):
            run.join(name, 1, "actor")
        first = asyncio.create_task(run.open_stream("first", 1, SPEC))
        second = asyncio.create_task(run.open_stream("second", 1, SPEC))
        await asyncio.sleep(0)
        assert run.training is None
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        stream = await second
        assert run.training is not None
        assert run.fault is None
        assert [(status.name, status.connected) for status in run.records.members.statuses()] == [("second", True)]
        assert stream.credit > 0
        await store(run, stream, segment(1))
        assert run.training.replay.total_transitions == 8
        run.close_stream(stream)


@on_a_loop
async def test_a_training_whose_only_actor_left_is_there_for_the_next(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.join("first", 1, "actor")
        first = asyncio.create_task(run.open_stream("first", 1, SPEC))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        run.join("second", 1, "actor")
        run.close_stream(await run.open_stream("second", 1, SPEC))
        assert run.state is RunState.COLLECTING


@on_a_loop
async def test_a_run_with_an_algorithm_of_ones_own_is_resumed_under_the_name_that_it_was_given(tmp_path: Path) -> None:
    own = config(algorithm="own_algorithms:PatientDQN")
    async with a_run(tmp_path, settings=own) as run:
        run.join("a", 1, "actor")
        await store(run, await run.open_stream("a", 1, SPEC), segment(1))
        await run.save()
    async with a_run(tmp_path, resume=True, settings=own) as run:
        await run.restore()
        assert run.training is not None
        assert run.training.replay.total_transitions == 8
    with pytest.raises(UserError, match="resume with --algorithm own_algorithms:PatientDQN, or start a new run"):
        async with a_run(tmp_path, resume=True):
            pass


@on_a_loop
async def test_nobody_joins_a_restored_run_before_it_knows_what_it_has_stored(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.join("a", 1, "actor")
        run.join("judge", 1, "evaluator")
        actor, judge = await run.open_stream("a", 1, SPEC), await run.open_stream("judge", 1, SPEC)
        await store(run, actor, segment(1), segment(2))
        run.evaluated(judge, evaluation(1, 1, 10.0))
        # The same once more: its acknowledgement was lost.
        run.evaluated(judge, evaluation(1, 1, 10.0))
        await acknowledged(judge, 1)
        assert (actor.acknowledged, judge.acknowledged, run.records.evaluations.count) == (2, 1, 1)
        for stream in (actor, judge):
            run.close_stream(stream)
    async with a_run(tmp_path, resume=True) as run:
        joins: list[tuple[str, Role]] = [("a", "actor"), ("judge", "evaluator")]
        for name, role in joins:
            with pytest.raises(UnavailableError, match="the learner is restoring its run"):
                run.join(name, 1, role)
        await run.restore()
        assert run.join("a", 1, "actor").resume_after_sequence == 2
        assert run.join("a", 2, "actor").resume_after_sequence == 0
        assert run.join("judge", 1, "evaluator").resume_after_sequence == 1


def emitted(scheme: str, layer: str = "torso.2") -> PolicyDescriptor:
    weights = "float32" if scheme == "fp32" else "int8 per tensor"
    fidelity = FidelityReport(1, 0.0, 0.0, 0.0, 0.0, 1.0, (LayerReport(layer, weights),))
    return PolicyDescriptor("run", 1, 0, scheme, b"", 1, 1, 0.0, fidelity)


@on_a_loop
async def test_with_auto_an_evaluation_of_any_scheme_counts_and_otherwise_the_runs_or_fp32(tmp_path: Path) -> None:
    for scheme, others, refused in (("auto", ("int4", "int8-static", "fp32"), "auto"), ("int8", ("fp32",), "int4")):
        async with a_run(tmp_path / scheme, settings=config(scheme=scheme)) as run:
            run.join("judge", 1, "evaluator")
            judge = await run.open_stream("judge", 1, SPEC)
            for sequence, other in enumerate(others, start=1):
                run.evaluated(judge, replace(evaluation(sequence, 1, 10.0), scheme=other))
            await acknowledged(judge, len(others))
            assert [point["scheme"] for point in run.records.evaluations.curve] == list(others)
            with pytest.raises(InvalidInputError, match=rf"of a published .* policy, got .* of version 1 '{refused}'"):
                run.evaluated(judge, replace(evaluation(9, 1, 10.0), scheme=refused))


@on_a_loop
async def test_training_follows_the_policy_that_most_actors_run(tmp_path: Path) -> None:
    settings = config(scheme="auto", dqn={"hidden_sizes": (32, 32), "batch_size": 8, "n_step": 3})
    process = measure_process("actor-0", "actor")
    async with a_run(tmp_path, settings=settings) as run:
        run.join("a", 1, "actor")
        stream = await run.open_stream("a", 1, SPEC)
        assert run.training is not None
        run.note_report(stream, ActorReport(1, "int4", 0, 0.0, 0, (), process))
        policies = (emitted("int8"), emitted("int4", layer="advantage"))
        run.take_receipt(Receipt(1, policies, 0.001, 1, process))
        assert run.records.emitted is policies[1]
        assert Reporter(run).status().emitted is policies[1]
        state = run.training.quantization_aware.state()
        assert (state["scheme"], state["layers"]) == ("int4", [["advantage", "int8 per tensor", ""]])
        # Reports change which one it is, and the next receipt tells the training.
        run.note_report(stream, ActorReport(1, "int8", 0, 0.0, 0, (), process))
        assert run.records.emitted is policies[0]
        run.take_receipt(Receipt(2, policies, 0.001, 1, process))
        assert run.training.quantization_aware.state()["scheme"] == "int8"


@on_a_loop
async def test_a_run_that_is_over_takes_nobody_in_and_grants_nothing(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.join("a", 1, "actor")
        stream = await run.open_stream("a", 1, SPEC)
        run.join("judge", 1, "evaluator")
        judge = await run.open_stream("judge", 1, SPEC)
        judge.changed.clear()
        credit = stream.credit
        run.finish(RunState.STOPPED)
        with pytest.raises(UnavailableError, match="the run is over"):
            run.join("b", 1, "actor")
        with pytest.raises(ConflictError, match="there is no training to control"):
            await run.save()
        await store(run, stream, segment(1))
        assert (stream.acknowledged, stream.credit) == (1, credit)
        # There is no quantizer that would take the last policy.
        assert run.training is not None
        run.training.publisher.close()
        await run.ended.wait()
        for each in (stream, judge):
            assert (each.stop, each.changed.is_set()) == (True, True)
            run.close_stream(each)
        assert run.state is RunState.STOPPED


@on_a_loop
async def test_an_interrupted_run_is_saved_before_its_streams_are_closed_and_is_not_over(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.join("a", 1, "actor")
        stream = await run.open_stream("a", 1, SPEC)
        credit = stream.credit
        await store(run, stream, segment(1))
        assert run.training is not None
        run.training.publisher.close()
        # The only thread that could save is taken until the streams have been looked at.
        go_on, loop = threading.Event(), asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        taken = loop.run_in_executor(None, go_on.wait, DEADLINE_S)
        run.interrupt()
        assert run.state is RunState.INTERRUPTED
        for refused in (lambda: run.join("b", 1, "actor"), run.require_here, run.resume):
            with pytest.raises(UnavailableError, match="the learner is moving"):
                refused()
        # What is on its way is stored, and no credit follows.
        await store(run, stream, segment(2))
        assert (stream.acknowledged, stream.credit <= credit + 1) == (2, True)
        assert stream.fault is None
        go_on.set()
        await taken
        await run.ended.wait()
        assert isinstance(stream.fault, UnavailableError)
        assert "the learner is moving" in str(stream.fault)
        assert (run.state, run.state.final, run.wants_actors, stream.stop) == (RunState.INTERRUPTED, False, True, False)
        assert list((tmp_path / "checkpoints").iterdir())
        assert not (tmp_path / "outcome.json").exists()
        run.close_stream(stream)
    async with a_run(tmp_path, resume=True) as run:
        await run.restore()
        assert run.join("a", 1, "actor").resume_after_sequence == 2
        assert run.state is RunState.COLLECTING


@on_a_loop
async def test_who_watches_an_interrupted_learner_is_told_that_it_moves(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        watch = aiter(LearnerServicer(run, Reporter(run)).WatchStatus(learner_pb2.WatchStatusRequest(), None))
        assert (await anext(watch)).status.state == learner_pb2.RUN_STATE_WAITING_FOR_ACTORS
        run.interrupt()
        await run.ended.wait()
        assert (await anext(watch)).status.state == learner_pb2.RUN_STATE_INTERRUPTED
        with pytest.raises(UnavailableError, match="the learner is moving"):
            await anext(watch)


@on_a_loop
async def test_an_interrupted_learner_leaves_the_end_of_the_run_to_the_next_one(tmp_path: Path) -> None:
    ending = config(max_environment_steps=8, target_return=10.0)
    async with a_run(tmp_path, settings=ending) as run:
        run.join("a", 1, "actor")
        run.join("judge", 1, "evaluator")
        stream, judge = await run.open_stream("a", 1, SPEC), await run.open_stream("judge", 1, SPEC)
        assert run.training is not None
        run.training.publisher.close()
        run.interrupt()
        await store(run, stream, segment(1))
        with pytest.raises(UnavailableError, match="the learner is moving"):
            run.evaluated(judge, evaluation(1, 1, 10.0))
        await run.ended.wait()
        assert (run.state, judge.acknowledged, run.records.evaluations.count) == (RunState.INTERRUPTED, 0, 0)
        for each in (stream, judge):
            run.close_stream(each)
    async with a_run(tmp_path, resume=True, settings=ending) as run:
        await run.restore()
        run.join("judge", 1, "evaluator")
        judge = await run.open_stream("judge", 1, SPEC)
        assert run.training is not None
        run.training.publisher.close()
        run.evaluated(judge, evaluation(1, 1, 10.0))
        await run.ended.wait()
        assert run.state is RunState.SOLVED
        run.close_stream(judge)


@on_a_loop
async def test_a_solved_run_shows_the_evaluation_that_solved_it(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(target_return=10.0)) as run:
        run.join("a", 1, "actor")
        run.join("judge", 1, "evaluator")
        actor, judge = await run.open_stream("a", 1, SPEC), await run.open_stream("judge", 1, SPEC)
        assert run.training is not None
        run.training.publisher.close()
        await store(run, actor, segment(1))
        run.evaluated(judge, evaluation(1, 1, 9.0))
        run.evaluated(judge, evaluation(2, 2, 10.0))
        # One that was under way when the run was solved.
        run.evaluated(judge, evaluation(3, 3, 2.0))
        await run.ended.wait()
        assert run.records.evaluations.count == 3
        assert run.evaluation == evaluation(2, 2, 10.0)
        for stream in (actor, judge):
            run.close_stream(stream)


@on_a_loop
async def test_a_learner_that_is_told_to_end_while_it_restores_ends_the_build_first(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.join("a", 1, "actor")
        stream = await run.open_stream("a", 1, SPEC)
        await store(run, stream, segment(1))
        run.close_stream(stream)
    async with a_run(tmp_path, resume=True) as run:
        restoring = asyncio.create_task(run.restore())
        await asyncio.sleep(0)
        run.interrupt()
        await restoring
        assert run.training is not None
        run.training.publisher.close()
        await run.ended.wait()
        assert run.training.trainer.updates == 0
        assert run.training.replay.total_transitions == 8


@on_a_loop
async def test_the_time_in_which_a_learner_moves_belongs_to_the_run(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.interrupt()
        await run.ended.wait()
    assert json.loads((tmp_path / "clock.json").read_text())["ended"] is False


@on_a_loop
async def test_an_actor_hears_what_survives_a_power_cut(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(replay={"capacity": 2_000, "min_size": 64, "flush_s": 0.05})) as run:
        run.join("a", 1, "actor")
        stream = await run.open_stream("a", 1, SPEC)
        await store(run, stream, segment(1), segment(2))
        async with asyncio.timeout(DEADLINE_S):
            while stream.durable < 2:
                stream.changed.clear()
                await stream.changed.wait()
        run.close_stream(stream)
        run.join("a", 1, "actor")
        assert (await run.open_stream("a", 1, SPEC)).durable == 2


@on_a_loop
async def test_a_gap_that_an_actor_cannot_fill_is_counted_and_the_stream_goes_on_behind_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_run(tmp_path) as run:
        run.join("a", 1, "actor")
        await store(run, await run.open_stream("a", 1, SPEC), segment(1))
        assert run.join("a", 1, "actor").resume_after_sequence == 1
        assert (await run.open_stream("a", 1, SPEC, lost_through=5)).acknowledged == 5
        assert "a: 4 acknowledged segments after number 1 are lost" in [record.message for record in caplog.records]
        # Told once, whatever the actor says when it comes again.
        assert run.join("a", 1, "actor").resume_after_sequence == 5
        stream = await run.open_stream("a", 1, SPEC, lost_through=5)
        await store(run, stream, segment(6))
        assert run.join("a", 1, "actor").resume_after_sequence == 6
        assert (await run.open_stream("a", 1, SPEC, lost_through=5)).acknowledged == 6
        assert run.training is not None
        assert run.training.storage().lost_segments == 4


@on_a_loop
async def test_a_checkpoint_counts_on_flushed_transitions_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Nothing is flushed before the checkpoint, however long the test takes.
    settings = config(replay={"capacity": 2_000, "min_size": 64, "flush_s": 60.0})
    async with a_run(tmp_path, settings=settings) as run:
        run.join("a", 1, "actor")
        stream = await run.open_stream("a", 1, SPEC)
        await store(run, stream, segment(1), segment(2))
        assert run.training is not None
        before = run.training.replay.storage().unflushed_transitions
        path, _ = await run.save()
        assert (before, run.training.replay.storage().unflushed_transitions) == (16, 0)
    # A lost replay. The run's count of transitions continues.
    for column in (tmp_path / "replay").iterdir():
        column.unlink()
    async with a_run(tmp_path, resume=True) as run:
        await run.restore()
        assert run.training is not None
        assert (run.training.replay.total_transitions, run.training.replay.transitions) == (16, 0)
        assert not run.training.replay.limiter.can_sample(1)
    assert "replay: the run's earlier 16 transitions are lost" in [record.message for record in caplog.records]
    assert path.exists()


async def settled(stream: ActorStream) -> None:
    """Wait until a stream has failed."""
    async with asyncio.timeout(DEADLINE_S):
        while stream.fault is None:
            stream.changed.clear()
            await stream.changed.wait()


@on_a_loop
async def test_a_full_disk_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with a_run(tmp_path) as run:
        run.join("a", 1, "actor")
        run.join("judge", 1, "evaluator")
        stream = await run.open_stream("a", 1, SPEC)
        judge = await run.open_stream("judge", 1, SPEC)
        with room_for(0):
            run.beat()
            run.evaluated(judge, evaluation(1, 1, 10.0))
            await settled(judge)
            with pytest.raises(UnavailableError, match="make room and save again"):
                await run.save()
        assert isinstance(judge.fault, UnavailableError)
        assert "cannot be written" in str(judge.fault)
        assert (judge.acknowledged, run.records.evaluations.count, run.fault) == (0, 0, None)
        run.close_stream(judge)
        run.join("judge", 1, "evaluator")
        judge = await run.open_stream("judge", 1, SPEC)
        run.evaluated(judge, evaluation(1, 1, 10.0))
        await acknowledged(judge, 1)
        # It survives a power cut once the log is synced.
        assert judge.durable == 0
        run.beat()
        async with asyncio.timeout(DEADLINE_S):
            while judge.durable < 1:
                judge.changed.clear()
                await judge.changed.wait()
        await store(run, stream, segment(1))
        assert (await run.save())[0].exists()
    assert not [record for record in caplog.records if record.exc_info]


@on_a_loop
async def test_an_actor_that_joins_again_takes_only_the_random_steps_that_are_left(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(exploration={"random_steps": 80})) as run:
        first = run.join("a", 1, "actor").exploration
        # 80 steps of the run, in 4 actors of 2 environments.
        assert first is not None
        assert first.random_steps == 10
        stream = await run.open_stream("a", 1, SPEC)
        for number in range(1, 6):
            await store(run, stream, segment(number))
        again = run.join("a", 1, "actor").exploration
        assert again is not None
        assert again.random_steps == 5
        run.close_stream(stream)


@on_a_loop
async def test_energy_goes_on_in_the_next_learner(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.join("a", 1, "actor")
        stream = await run.open_stream("a", 1, SPEC)
        meter = replace(measure_process("meter-0", "meter"), node="elsewhere")
        for kwh in (0.0, 0.5):
            energy = NodeEnergy("elsewhere", kwh, 0.0, 0.0, 0.0, 100.0 * kwh, "RAPL")
            run.records.resources.report_energy(energy, (replace(meter, cpu_seconds=20.0 * kwh),))
        before = run.records.resources.energy().kwh
        assert before > 0
        await run.save()
        run.close_stream(stream)
    async with a_run(tmp_path, resume=True) as run:
        assert run.records.resources.energy().kwh >= before


@on_a_loop
async def test_a_run_that_is_solved_at_the_end_of_its_budget_is_solved(tmp_path: Path) -> None:
    for first, second in ((RunState.BUDGET_ENDED, RunState.SOLVED), (RunState.SOLVED, RunState.BUDGET_ENDED)):
        async with a_run(tmp_path / first.value) as run:
            run.finish(first)
            run.finish(second)
            await run.ended.wait()
            assert run.state is RunState.SOLVED
    async with a_run(tmp_path / "stopped") as run:
        run.finish(RunState.STOPPED)
        run.finish(RunState.SOLVED)
        await run.ended.wait()
        assert run.state is RunState.STOPPED


@on_a_loop
async def test_a_return_that_is_the_target_reaches_it(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(target_return=200.0)) as run:
        run.join("a", 1, "actor")
        run.join("judge", 1, "evaluator")
        actor, judge = await run.open_stream("a", 1, SPEC), await run.open_stream("judge", 1, SPEC)
        await store(run, actor, segment(1))
        run.evaluated(judge, evaluation(1, 1, 199.9))
        await acknowledged(judge, 1)
        assert run.outcome is None
        run.evaluated(judge, evaluation(2, 1, 200.0))
        await acknowledged(judge, 2)
        assert run.outcome is RunState.SOLVED
        assert run.training is not None
        run.training.publisher.close()
        await run.ended.wait()
        run.close_stream(actor)
        run.close_stream(judge)


@on_a_loop
async def test_reports_tell_what_processes_use_and_how_soon_policies_act(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        roles: tuple[Role, ...] = ("evaluator", "actor")
        for role in roles:
            run.join(role, 1, role)
            stream = await run.open_stream(role, 1, SPEC)
            for _ in range(2):
                run.note_report(stream, ActorReport(1, "int8", 8, 1.0, 0, (0.5,), measure_process(role, role)))
                run.records.scaling.observe(0, 0.0, 1)
            # Only actors wait for credit.
            assert run.records.scaling.status().blocked_fraction == (0.0 if role == "actor" else None)
            run.close_stream(stream)
        status = Reporter(run).status()
        assert {usage.process.name for usage in status.processes} == {"learner", *roles}
        assert status.activation_s == 0.5


@on_a_loop
async def test_a_learner_whose_clock_is_lost_goes_on_at_the_newest_time_that_it_knows(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.join("judge", 1, "evaluator")
        judge = await run.open_stream("judge", 1, SPEC)
        run.evaluated(judge, evaluation(1, 1, 10.0))
        await acknowledged(judge, 1)
        values = {**run.records.values(), "elapsed_s": 1e6}
        lives: tuple[dict[str, object], ...] = ({}, values)
        for restored in lives:
            (tmp_path / "clock.json").unlink(missing_ok=True)
            records = Records(run.records.config, run.records.identity, restored, "")
            assert (records.clock.elapsed_s >= 1e6) is bool(restored)
            records.close()
        run.close_stream(judge)


@on_a_loop
async def test_a_run_that_cannot_be_restored_ends_with_its_fault(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.join("a", 1, "actor")
        run.close_stream(await run.open_stream("a", 1, SPEC))
        await run.save()
    wider = config(dqn={"hidden_sizes": (16,), "batch_size": 8, "n_step": 3})
    async with a_run(tmp_path, resume=True, settings=wider) as run:
        await run.restore()
        assert run.ended.is_set()
        assert isinstance(run.fault, UserError)
        assert "the checkpoint does not fit the configured networks" in str(run.fault)
        assert run.training is None


@on_a_loop
async def test_an_evaluation_that_comes_again_is_acknowledged_and_counts_once(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.join("judge", 1, "evaluator")
        judge = await run.open_stream("judge", 1, SPEC)
        for sequence in (1, 2, 1, 2):
            run.evaluated(judge, evaluation(sequence, 1, 10.0 * sequence))
        await acknowledged(judge, 2)
        assert run.records.evaluations.count == 2
        assert judge.received == 2
        judge.changed.clear()
        run.evaluated(judge, evaluation(2, 1, 20.0))
        async with asyncio.timeout(DEADLINE_S):
            await judge.changed.wait()
        assert (judge.acknowledged, run.records.evaluations.count) == (2, 2)
        run.close_stream(judge)
