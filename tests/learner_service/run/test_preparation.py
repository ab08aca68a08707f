"""The environment spec of a run: the first that fits, until an operator resets it."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest

from actorq.domain.environments import EnvironmentArguments
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import RunState
from actorq.errors import ConflictError, InvalidInputError, UnavailableError
from learner_service.report import Reporter
from tests.learner_service.learner_parts import (
    SPEC,
    acknowledged,
    config,
    evaluation,
    on_a_loop,
    room_for,
    segment,
    store,
)
from tests.learner_service.run.run_parts import a_run, opened

PENDULUM = EnvironmentSpec("Pendulum-v1", ArraySpec((3,), "float32"), ArraySpec((1,), "float32"))
# Of the run's environment, but such that DQN cannot learn it.
CONTINUOUS = replace(PENDULUM, environment_id="CartPole-v1")
SPEC_FILES = ("environment.copy.json", "environment.json")
WIDE = replace(SPEC, observations=ArraySpec((6,), "float32"), reward_threshold=500.0)


def of_environment(directory: Path) -> set[str]:
    """The files of the run's environment."""
    return {name for name in ("environment.json", "replay") if (directory / name).exists()}


@pytest.mark.parametrize(
    ("spec", "fact"),
    [
        (CONTINUOUS, "dqn .*discrete"),
        (replace(SPEC, observations=ArraySpec((-4,), "float32")), "negative dimension"),
        (replace(SPEC, observations=ArraySpec((4_000_000,), "float32")), r"15\.3 MiB"),
    ],
)
@on_a_loop
async def test_a_spec_that_cannot_be_built_is_refused_and_leaves_nothing(
    spec: EnvironmentSpec, fact: str, tmp_path: Path
) -> None:
    async with a_run(tmp_path) as run:
        with pytest.raises(InvalidInputError, match=fact):
            await opened(run, "wrong", spec=spec)
        assert (run.lifecycle.fault, run.lifecycle.ended.is_set()) == (None, False)
        assert run.records.members.connected("actor") == 0
        assert of_environment(tmp_path) == set()
        status = Reporter(run).status()
        assert (status.state, status.refused_environments) == (RunState.WAITING_FOR_ACTORS, 1)
        assert status.problem.startswith("wrong: ")
        assert "\n" not in status.problem
        await opened(run)
        assert run.training is not None
        assert Reporter(run).status().problem == ""
        assert of_environment(tmp_path) == {"environment.json", "replay"}


@pytest.mark.parametrize("existed", [False, True])
@on_a_loop
async def test_a_build_that_fails_removes_its_replay_but_none_that_was_there(existed: bool, tmp_path: Path) -> None:
    if existed:
        (tmp_path / "replay").mkdir()
    async with a_run(tmp_path) as run:
        with room_for(4096), pytest.raises(InvalidInputError, match="replay"):
            await opened(run)
    assert of_environment(tmp_path) == ({"replay"} if existed else set())


@on_a_loop
async def test_an_environment_that_cannot_be_written_leaves_the_replay_closed(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        (tmp_path / "environment.json").mkdir()
        with pytest.raises(InvalidInputError, match=r"environment\.json"):
            await opened(run)
        (tmp_path / "environment.json").rmdir()
        run.connections.close_stream(await opened(run))
        assert run.preparation.known == SPEC


@on_a_loop
async def test_an_environment_with_other_arguments_is_refused(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        heavy = replace(SPEC, environment_arguments=EnvironmentArguments({"gravity": 20.0}))
        with pytest.raises(ConflictError, match=r"environment_arguments\.keywords {'gravity': 20\.0}"):
            await opened(run, "heavy", spec=heavy)
        run.connections.close_stream(await opened(run))


@on_a_loop
async def test_actors_that_wait_while_a_wrong_spec_is_built_are_not_refused_with_it(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        wrong = asyncio.create_task(opened(run, "wrong", spec=CONTINUOUS))
        good = asyncio.create_task(opened(run, "good"))
        with pytest.raises(InvalidInputError, match="discrete"):
            await wrong
        run.connections.close_stream(await good)
        assert run.preparation.known == SPEC


@on_a_loop
async def test_an_actor_in_another_environment_is_refused_with_what_differs(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        with pytest.raises(ConflictError, match=r"CartPole-v1, .*Pendulum-v1"):
            await opened(run, "other", spec=PENDULUM)
        run.connections.close_stream(await opened(run))
        with pytest.raises(ConflictError) as refused:
            await opened(run, "wide", spec=WIDE)
        assert re.match(
            r"environment: .*CartPole-v1.*observations\.shape \(6,\) .*\(4,\).*reward_threshold 500\.0 .*None"
            r".*actorq reset-environment$",
            str(refused.value),
        )
        status = Reporter(run).status()
        assert (status.problem, status.refused_environments) == (f"wide: {refused.value}", 2)
        assert (run.lifecycle.fault, run.lifecycle.ended.is_set()) == (None, False)


def test_differences_of_large_specs_fit_a_bounded_line() -> None:
    many = tuple(float(number) for number in range(10_000))
    one = replace(SPEC, observations=ArraySpec((10_000,), "float32", many, many))
    assert len(one.differences(SPEC)) < 1_000


@on_a_loop
async def test_a_problem_has_no_control_characters_of_its_sender(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        with pytest.raises(ConflictError):
            await opened(run, spec=replace(SPEC, environment_id="\x1b[2J\nlearner: all is well" + 9_000 * "x"))
        assert run.preparation.problem.isprintable()
        assert len(run.preparation.problem) <= 500


@on_a_loop
async def test_after_a_reset_the_next_spec_is_used_and_all_actors_rejoin(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        stream = await opened(run, spec=WIDE)
        assert (await run.preparation.reset(discard=False)).spec == WIDE
        assert run.lifecycle.state is RunState.WAITING_FOR_ACTORS
        assert isinstance(stream.fault, UnavailableError)
        assert "reset" in str(stream.fault)
        assert of_environment(tmp_path) == set()
        assert of_environment(tmp_path / "before-reset-1") == {"environment.json", "replay"}
        stream_after = await opened(run, "b")
        # The stream of before has no part in the credits of now.
        run.connections.close_stream(stream)
        await store(run, stream_after, segment(1))
        assert run.training is not None
        assert run.training.replay.total_transitions == 8
    async with a_run(tmp_path, resume=True) as run:
        await run.preparation.restore()
        assert run.preparation.known == SPEC


@on_a_loop
async def test_a_run_with_progress_is_reset_only_with_discard(tmp_path: Path) -> None:
    settings = config(replay={"capacity": 2_000, "min_size": 8})
    async with a_run(tmp_path, settings=settings) as run:
        stream = await opened(run)
        run.connections.join("judge", 1, "evaluator")
        judge = await run.connections.open_stream("judge", 1, SPEC)
        await store(run, stream, segment(1))
        run.connections.evaluated(judge, evaluation(1, 1, 10.0))
        await acknowledged(judge, 1)
        version = run.training.publisher.version if run.training else 0
        with pytest.raises(ConflictError, match=r"\d+ updates, 8 transitions"):
            await run.preparation.reset(discard=False)
        assert stream.fault is None
        path, _ = await run.save()
        reset = await run.preparation.reset(discard=True)
        assert reset.set_aside == tmp_path / "before-reset-1"
        kept = {each.name for each in reset.set_aside.iterdir()}
        assert kept == {"checkpoints", *SPEC_FILES, "evaluations.jsonl", "replay"}
        assert (reset.set_aside / "checkpoints" / path.name / "state.json").exists()
        for each in (stream, judge):
            run.connections.close_stream(each)
        # Incarnations that still live continue their numbers, and versions are above the earlier ones.
        assert run.connections.join("a", 1, "actor").resume_after_sequence == 1
        assert run.connections.join("judge", 1, "evaluator").resume_after_sequence == 1
        stream = await run.connections.open_stream("a", 1, WIDE)
        assert run.training is not None
        assert run.training.publisher.version > version
        assert (run.records.evaluations.count, run.training.trainer.updates) == (0, 0)


@pytest.mark.parametrize("moved", range(5))
@on_a_loop
async def test_a_learner_that_dies_in_a_reset_resumes_and_can_be_reset_again(moved: int, tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        stream = await opened(run)
        await store(run, stream, segment(1))
        await run.save()
    aside = tmp_path / "before-reset-1"
    aside.mkdir()
    for name in ("checkpoints", "replay", *SPEC_FILES)[:moved]:
        (tmp_path / name).rename(aside / name)
    async with a_run(tmp_path, resume=True) as run:
        await run.preparation.restore()
        assert run.lifecycle.fault is None
        reset = await run.preparation.reset(discard=True)
        assert reset.set_aside == (None if moved == 4 else tmp_path / "before-reset-2")
        run.connections.close_stream(await opened(run, spec=WIDE))
        assert run.preparation.known == WIDE


@on_a_loop
async def test_a_run_is_not_reset_while_it_is_restored(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.connections.close_stream(await opened(run))
    async with a_run(tmp_path, resume=True) as run:
        restoring = asyncio.create_task(run.preparation.restore())
        with pytest.raises(UnavailableError, match="restoring"):
            await run.preparation.reset(discard=True)
        await restoring
        assert of_environment(tmp_path) == {"environment.json", "replay"}
        assert (await run.preparation.reset(discard=True)).spec == SPEC


@on_a_loop
async def test_resetting_a_run_without_an_environment_does_nothing(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        reset = await run.preparation.reset(discard=False)
        assert (reset.set_aside, reset.spec) == (None, None)


@on_a_loop
async def test_a_run_that_is_over_or_interrupted_is_not_reset(tmp_path: Path) -> None:
    async with a_run(tmp_path / "over") as run:
        run.lifecycle.finish(RunState.STOPPED)
        await run.lifecycle.ended.wait()
        with pytest.raises(ConflictError, match="stopped"):
            await run.preparation.reset(discard=True)
    async with a_run(tmp_path / "interrupted") as run:
        run.lifecycle.interrupt()
        with pytest.raises(UnavailableError, match="moving"):
            await run.preparation.reset(discard=True)
        await run.lifecycle.ended.wait()


@on_a_loop
async def test_while_an_environment_is_being_decided_nothing_is_reset_and_a_learner_that_leaves_waits_for_it(
    tmp_path: Path,
) -> None:
    async with a_run(tmp_path) as run:
        opening = asyncio.create_task(opened(run))
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="being decided"):
            await run.preparation.reset(discard=True)
        run.lifecycle.interrupt()
        with pytest.raises(UnavailableError, match="moving"):
            await opening
        await run.lifecycle.ended.wait()
        assert run.training is not None
        assert run.training.trainer.updates == 0
    assert of_environment(tmp_path) == {"environment.json", "replay"}


@on_a_loop
async def test_a_training_that_cannot_begin_is_the_runs_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the first version cannot be made")

    monkeypatch.setattr("learner_service.training.trainer.snapshot_parameters", broken)
    async with a_run(tmp_path) as run:
        with pytest.raises(RuntimeError):
            await opened(run, "actor")
        assert str(run.lifecycle.fault) == "the first version cannot be made"
        assert run.lifecycle.ended.is_set()
