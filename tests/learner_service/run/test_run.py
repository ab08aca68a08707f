"""A run without a network: how its parts work together, and how the next learner continues."""

import os
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from actorq.domain.policy import FidelityReport, LayerReport, PolicyDescriptor
from actorq.domain.processes import NodeEnergy
from actorq.domain.status import ActorReport, Receipt
from actorq.domain.trajectory import Role
from actorq.errors import UnavailableError, UserError
from actorq.telemetry.process_stats import measure_process
from learner_service.metrics import learner_metrics
from learner_service.report import Reporter
from learner_service.run.records import Records
from learner_service.run.scaling import ScalingSignal
from tests.builders.clocks import ManualClock
from tests.learner_service.learner_parts import (
    DEADLINE_S,
    acknowledged,
    config,
    evaluation,
    on_a_loop,
    room_for,
    segment,
    store,
    until,
)
from tests.learner_service.run.run_parts import a_run, opened


@on_a_loop
async def test_a_run_with_an_outside_algorithm_is_resumed_with_the_same_algorithm_only(tmp_path: Path) -> None:
    own = config(algorithm="own_algorithms:PatientDQN")
    async with a_run(tmp_path, settings=own) as run:
        await store(run, await opened(run), segment(1))
        await run.save()
    async with a_run(tmp_path, resume=True, settings=own) as run:
        await run.preparation.restore()
        assert run.training is not None
        assert run.training.replay.total_transitions == 8
    with pytest.raises(UserError, match="--algorithm own_algorithms:PatientDQN"):
        async with a_run(tmp_path, resume=True):
            pass


def emitted(scheme: str, layer: str = "torso.2") -> PolicyDescriptor:
    weights = "float32" if scheme == "fp32" else "int8 per tensor"
    fidelity = FidelityReport(1, 0.0, 0.0, 0.0, 0.0, 1.0, (LayerReport(layer, weights),))
    return PolicyDescriptor("run", 1, 0, scheme, b"", 1, 1, 0.0, fidelity)


@on_a_loop
async def test_training_follows_the_policy_that_most_actors_run(tmp_path: Path) -> None:
    settings = config(scheme="auto", dqn={"hidden_sizes": (32, 32), "batch_size": 8, "n_step": 3})
    process = measure_process("actor-0", "actor")
    async with a_run(tmp_path, settings=settings) as run:
        stream = await opened(run, "actor-0")
        assert run.training is not None
        run.records.record_report(stream.member, ActorReport(1, "int4", 0, 0.0, 0, (), process))
        policies = (emitted("int8"), emitted("int4", layer="advantage"))
        run.records.record_receipt(Receipt(1, policies, 0.001, 1, process))
        assert run.records.emitted is policies[1]
        assert Reporter(run).status().emitted is policies[1]
        state = run.training.quantization_aware.state()
        assert (state["scheme"], state["layers"]) == ("int4", [["advantage", "int8 per tensor", ""]])
        # Reports change the representative policy, and the next receipt passes it to the training.
        run.records.record_report(stream.member, ActorReport(1, "int8", 0, 0.0, 0, (), process))
        assert run.records.emitted is policies[0]
        run.records.record_receipt(Receipt(2, policies, 0.001, 1, process))
        assert run.training.quantization_aware.state()["scheme"] == "int8"


@on_a_loop
async def test_a_checkpoint_counts_on_flushed_transitions_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Nothing is flushed before the checkpoint, for any duration of the test.
    settings = config(replay={"capacity": 2_000, "min_size": 64, "flush_s": 60.0})
    async with a_run(tmp_path, settings=settings) as run:
        stream = await opened(run)
        await store(run, stream, segment(1), segment(2))
        assert run.training is not None
        before = run.training.storage().unflushed_transitions
        path, _ = await run.save()
        assert (before, run.training.storage().unflushed_transitions) == (16, 0)
    # A lost replay. The run's count of transitions continues.
    for column in (tmp_path / "replay").iterdir():
        column.unlink()
    async with a_run(tmp_path, resume=True) as run:
        await run.preparation.restore()
        assert run.training is not None
        assert (run.training.replay.total_transitions, run.training.replay.transitions) == (16, 0)
        assert not run.training.replay.limiter.can_sample(1)
    assert [line for line in caplog.messages if re.match("replay: .*16 transitions", line)]
    assert path.exists()


@on_a_loop
async def test_a_full_disk_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with a_run(tmp_path) as run:
        stream, judge = await opened(run), await opened(run, "judge", "evaluator")
        with room_for(0):
            run.beat()
            run.connections.evaluated(judge, evaluation(1, 1, 10.0))
            await until(judge, lambda: judge.fault is not None)
            with pytest.raises(UnavailableError, match="save again"):
                await run.save()
        assert isinstance(judge.fault, UnavailableError)
        assert "cannot be written" in str(judge.fault)
        assert (judge.acknowledged, run.records.evaluations.count, run.lifecycle.fault) == (0, 0, None)
        run.connections.close_stream(judge)
        judge = await opened(run, "judge", "evaluator")
        run.connections.evaluated(judge, evaluation(1, 1, 10.0))
        await acknowledged(judge, 1)
        # It survives a power cut once the log is synced.
        assert judge.durable == 0
        run.beat()
        await until(judge, lambda: judge.durable >= 1)
        await store(run, stream, segment(1))
        assert (await run.save())[0].exists()
    assert not [record for record in caplog.records if record.exc_info]


@on_a_loop
async def test_the_requested_actors_can_fill_the_replay_for_the_first_update(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(replay={"capacity": 2_000, "min_size": 600})) as run:
        stream = await opened(run)
        for number in range(1, 26):
            await store(run, stream, segment(number))
        clock = ManualClock()
        run.records.scaling = ScalingSignal(run.records.config.rate_limiter.samples_per_insert, clock)
        for second in range(24):
            clock.now = second
            if second % 8 == 7:
                await store(run, stream, segment(26 + second // 8))
            run.records.scaling.record_report("a", 1, 0.0)
            run.beat()
        # Almost 400 of 600 transitions in a minute, by actors with one transition per second, or half of one: a segment
        # has eight.
        assert 7 <= run.records.scaling.desired_actors <= 13


@on_a_loop
async def test_the_next_learner_continues_the_energy_account(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        await opened(run)
        meter = replace(measure_process("meter-0", "meter"), node="elsewhere")
        for kwh in (0.0, 0.5):
            energy = NodeEnergy("elsewhere", kwh, 0.0, 0.0, 0.0, 100.0 * kwh, "RAPL")
            run.records.resources.report_energy(energy, (replace(meter, cpu_seconds=20.0 * kwh),))
        before = run.records.resources.energy().kwh
        assert before > 0
        await run.save()
    async with a_run(tmp_path, resume=True) as run:
        assert run.records.resources.energy().kwh >= before


@on_a_loop
async def test_reports_have_resource_use_and_activation_times(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        roles: tuple[Role, ...] = ("evaluator", "actor")
        for role in roles:
            stream = await opened(run, role, role)
            for _ in range(2):
                run.records.record_report(
                    stream.member, ActorReport(1, "int8", 8, 1.0, 0, (0.5,), measure_process(role, role))
                )
                run.records.scaling.observe(0, 0.0, 0, 1)
            # Only actors wait for credit.
            assert run.records.scaling.blocked_fraction == (0.0 if role == "actor" else None)
            run.connections.close_stream(stream)
        status = Reporter(run).status()
        assert {process.name for process in status.processes} == {"learner", *roles}
        assert status.activation_s == 0.5


@on_a_loop
async def test_a_scrape_while_the_run_is_restored_does_not_see_counters_at_0(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        await opened(run)
        reporter = Reporter(run)
        assert list(learner_metrics(run, reporter))
    async with a_run(tmp_path, resume=True) as run:
        reporter = Reporter(run)
        assert list(learner_metrics(run, reporter)) == []
        await run.preparation.restore()
        assert list(learner_metrics(run, reporter))


@on_a_loop
async def test_the_summary_has_the_memory_of_an_actor_with_the_name_of_the_learner(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        for name in ("actor-0", "learner"):
            run.records.resources.record(measure_process(name, "actor"))
        assert Reporter(run).summary()["peak_memory_mb"].keys() == {"actor-0", "actor/learner", "learner/learner"}


@on_a_loop
async def test_a_learner_without_its_clock_continues_at_the_newest_known_time(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        judge = await opened(run, "judge", "evaluator")
        run.connections.evaluated(judge, evaluation(1, 1, 10.0))
        await acknowledged(judge, 1)
        values = {**run.records.values(), "elapsed_s": 1e6}
        lives: tuple[dict[str, object], ...] = ({}, values)
        for restored in lives:
            (tmp_path / "clock.json").unlink(missing_ok=True)
            records = Records(run.records.config, run.records.identity, restored, "")
            assert (records.clock.elapsed_s >= 1e6) is bool(restored)
            records.close()


@on_a_loop
async def test_writes_of_each_second_do_not_pile_up_before_segments_on_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, go_on, fsync = [], threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        written.append(descriptor)
        go_on.wait(DEADLINE_S)
        fsync(descriptor)

    async with a_run(tmp_path) as run:
        stream = await opened(run)
        monkeypatch.setattr(os, "fsync", slow)
        for _ in range(20):
            run.beat()
        go_on.set()
        await store(run, stream, segment(1))
        once = len(written)
        assert 0 < once < 10
        run.beat()
        await store(run, stream, segment(2))
        assert len(written) > once


@on_a_loop
async def test_unsent_versions_are_not_reported_as_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for resume in (False, True, True):
        async with a_run(tmp_path, resume=resume) as run:
            if resume:
                await run.preparation.restore()
            else:
                await store(run, await opened(run), segment(1))
            run.lifecycle.interrupt()
            await run.lifecycle.ended.wait()
    assert not [record.getMessage() for record in caplog.records if "published.json" in record.getMessage()]
