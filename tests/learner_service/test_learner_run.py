"""A run without a network: who gets which place in it, and what its first actor brings to light."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from learner_parts import SPEC, config, evaluation, on_a_loop, segment

from actorq.client import QuantizerClient
from actorq.config import RunConfig
from actorq.errors import ConflictError, InvalidInputError, UnavailableError, UserError
from actorq.policy import FidelityReport, LayerReport, PolicyDescriptor
from actorq.status import ActorReport, Receipt, RunState
from actorq.telemetry.process_stats import measure_process
from actorq.trajectory import ArraySpec, EnvironmentSpec, Role
from learner_service.report import Reporter
from learner_service.run import Run

PENDULUM = EnvironmentSpec("Pendulum-v1", ArraySpec((3,), "float32"), ArraySpec((1,), "float32"), discrete_actions=0)


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
        assert [(status.name, status.connected) for status in run.members.statuses()] == [("second", True)]
        assert stream.credit > 0
        run.insert(stream, segment(1))
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
async def test_an_environment_that_the_algorithm_cannot_learn_is_the_runs_fault(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(environment="Pendulum-v1", algorithm="dqn")) as run:
        run.join("a", 1, "actor")
        with pytest.raises(UserError, match="discrete"):
            await run.open_stream("a", 1, PENDULUM)
        assert isinstance(run.fault, UserError)
        assert run.over.is_set()
        # Nothing of it is kept for the next learner.
        assert run.identity.read_environment() is None
        assert run.members.connected("actor") == 0


@on_a_loop
async def test_a_build_that_breaks_unexpectedly_is_the_runs_fault_too(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.join("a", 1, "actor")
        with pytest.raises(RuntimeError, match="negative dimension"):
            await run.open_stream("a", 1, replace(SPEC, observations=ArraySpec((-4,), "float32")))
        assert isinstance(run.fault, RuntimeError)
        assert run.over.is_set()


@on_a_loop
async def test_an_actor_in_another_environment_is_refused_and_no_fault(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.join("a", 1, "actor")
        with pytest.raises(ConflictError, match="the run is on CartPole-v1, got Pendulum-v1"):
            await run.open_stream("a", 1, PENDULUM)
        assert run.fault is None
        assert not run.over.is_set()


@on_a_loop
async def test_a_run_with_an_algorithm_of_ones_own_is_resumed_under_the_name_that_it_was_given(tmp_path: Path) -> None:
    own = config(algorithm="own_algorithms:PatientDQN")
    async with a_run(tmp_path, settings=own) as run:
        run.join("a", 1, "actor")
        run.insert(await run.open_stream("a", 1, SPEC), segment(1))
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
        for sequence in (1, 2):
            run.insert(actor, segment(sequence))
        run.evaluated(judge, evaluation(1, 1, 10.0))
        # The same once more: its acknowledgement was lost.
        run.evaluated(judge, evaluation(1, 1, 10.0))
        assert (actor.acknowledged, judge.acknowledged, run.evaluations.count) == (2, 1, 1)
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
            assert [point["scheme"] for point in run.evaluations.curve] == list(others)
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
        assert run.emitted is policies[1]
        assert Reporter(run).status().emitted is policies[1]
        state = run.training.quantization_aware.state()
        assert (state["scheme"], state["layers"]) == ("int4", [["advantage", "int8 per tensor", ""]])
        # Reports change which one it is, and the next receipt tells the training.
        run.note_report(stream, ActorReport(1, "int8", 0, 0.0, 0, (), process))
        assert run.emitted is policies[0]
        run.take_receipt(Receipt(2, policies, 0.001, 1, process))
        assert run.training.quantization_aware.state()["scheme"] == "int8"


@on_a_loop
async def test_a_run_that_is_over_takes_nobody_in_and_grants_nothing(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.join("a", 1, "actor")
        stream = await run.open_stream("a", 1, SPEC)
        credit = stream.credit
        run.finish(RunState.STOPPED)
        with pytest.raises(UnavailableError, match="the run is over"):
            run.join("b", 1, "actor")
        with pytest.raises(ConflictError, match="there is no training to control"):
            await run.save()
        run.insert(stream, segment(1))
        assert (stream.acknowledged, stream.credit) == (1, credit)
        # There is no quantizer that would take the last policy.
        assert run.training is not None
        run.training.publisher.close()
        await run.over.wait()
        assert stream.stop
        assert run.state is RunState.STOPPED
        run.close_stream(stream)
