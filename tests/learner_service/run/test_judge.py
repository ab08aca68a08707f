"""Which evaluations count, and which one ends the run."""

import asyncio
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from actorq.domain.status import RunState
from actorq.domain.trajectory import Episode
from actorq.errors import CorruptedError, InvalidInputError
from learner_service.report import Reporter
from tests.learner_service.learner_parts import (
    DEADLINE_S,
    SPEC,
    acknowledged,
    config,
    evaluation,
    on_a_loop,
    segment,
    store,
)
from tests.learner_service.run.run_parts import a_run, opened


@on_a_loop
async def test_with_auto_an_evaluation_of_any_scheme_counts_and_otherwise_the_runs_or_fp32(tmp_path: Path) -> None:
    for scheme, others, refused in (("auto", ("int4", "int8-static", "fp32"), "auto"), ("int8", ("fp32",), "int4")):
        async with a_run(tmp_path / scheme, settings=config(scheme=scheme)) as run:
            judge = await opened(run, "judge", "evaluator")
            for sequence, other in enumerate(others, start=1):
                run.connections.evaluated(judge, replace(evaluation(sequence, 1, 10.0), scheme=other))
            await acknowledged(judge, len(others))
            assert [point["scheme"] for point in run.records.evaluations.curve] == list(others)
            with pytest.raises(InvalidInputError, match=f"version 1 '{refused}'"):
                run.connections.evaluated(judge, replace(evaluation(9, 1, 10.0), scheme=refused))


@on_a_loop
async def test_a_solved_run_shows_the_evaluation_that_solved_it(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(target_return=10.0)) as run:
        actor, judge = await opened(run), await opened(run, "judge", "evaluator")
        assert run.training is not None
        run.training.publisher.close()
        await store(run, actor, segment(1, episodes=(Episode(9.0, 9, 0),)))
        run.connections.evaluated(judge, evaluation(1, 1, 9.0))
        run.connections.evaluated(judge, evaluation(2, 2, 10.0))
        # One that was under way when the run was solved.
        run.connections.evaluated(judge, evaluation(3, 3, 2.0))
        await run.lifecycle.ended.wait()
        assert run.records.evaluations.count == 3
        assert run.judge.evaluation == evaluation(2, 2, 10.0)


@on_a_loop
async def test_a_return_that_is_the_target_reaches_it(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(target_return=200.0)) as run:
        actor, judge = await opened(run), await opened(run, "judge", "evaluator")
        await store(run, actor, segment(1, episodes=(Episode(90.0, 90, 0),)))
        run.connections.evaluated(judge, evaluation(1, 1, 199.9))
        await acknowledged(judge, 1)
        assert run.lifecycle.outcome is None
        run.connections.evaluated(judge, evaluation(2, 1, 200.0))
        await acknowledged(judge, 2)
        assert run.lifecycle.outcome is RunState.SOLVED
        assert run.training is not None
        run.training.publisher.close()
        await run.lifecycle.ended.wait()


@on_a_loop
async def test_an_evaluation_after_a_lost_one_is_refused(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        judge = await opened(run, "judge", "evaluator")
        with pytest.raises(CorruptedError, match="sequences 1 to 1 "):
            run.connections.evaluated(judge, evaluation(2, 1, 20.0))
        for sequence in (1, 2):
            run.connections.evaluated(judge, evaluation(sequence, 1, 10.0 * sequence))
        await acknowledged(judge, 2)
        assert run.records.evaluations.count == 2


@on_a_loop
async def test_a_repeated_evaluation_is_acknowledged_and_counts_once(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        judge = await opened(run, "judge", "evaluator")
        for sequence in (1, 2, 1, 2):
            run.connections.evaluated(judge, evaluation(sequence, 1, 10.0 * sequence))
        await acknowledged(judge, 2)
        assert run.records.evaluations.count == 2
        assert judge.received == 2
        judge.changed.clear()
        run.connections.evaluated(judge, evaluation(2, 1, 20.0))
        async with asyncio.timeout(DEADLINE_S):
            await judge.changed.wait()
        assert (judge.acknowledged, run.records.evaluations.count) == (2, 2)


@on_a_loop
async def test_one_evaluator_alone_ends_no_run_whose_actors_are_far_below(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "learner_service.run.judge")
    async with a_run(tmp_path, settings=config(target_return=50.0)) as run:
        actor, judge = await opened(run), await opened(run, "judge", "evaluator")
        await store(run, actor, segment(1, episodes=(Episode(10.0, 10, 0),)))
        for sequence in (1, 2, 3):
            run.connections.evaluated(judge, evaluation(sequence, sequence, 60.0))
            await acknowledged(judge, sequence)
        assert run.lifecycle.outcome is None
        assert re.match(r"version 3, by judge: .*60\.0", Reporter(run).status().flagged_evaluation)
        # An honest run may wait like that: it is no warning.
        assert {each.levelname for each in caplog.records if "unconfirmed" in each.getMessage()} == {"INFO"}
        # It may be exported when the budget ends.
        assert run.judge.flagged == ""
        # The actors come closer: the best one is at most two spreads below.
        await store(run, actor, segment(2, episodes=(Episode(20.0, 20, 0),)))
        run.connections.evaluated(judge, evaluation(4, 4, 60.0))
        await acknowledged(judge, 4)
        assert run.lifecycle.outcome is RunState.SOLVED
        assert Reporter(run).status().flagged_evaluation == ""


@on_a_loop
async def test_an_evaluation_counts_as_soon_as_the_actors_come_closer(tmp_path: Path) -> None:
    """So a run that begins with good networks ends with their evaluation, whatever becomes of later policies."""
    async with a_run(tmp_path, settings=config(target_return=50.0)) as run:
        actor, judge = await opened(run), await opened(run, "judge", "evaluator")
        await store(run, actor, segment(1, episodes=(Episode(10.0, 10, 0),)))
        for sequence, mean in ((1, 60.0), (2, 30.0)):
            run.connections.evaluated(judge, evaluation(sequence, sequence, mean))
            await acknowledged(judge, sequence)
        run.beat()
        assert run.lifecycle.outcome is None
        await store(run, actor, segment(2, episodes=(Episode(20.0, 20, 0),)))
        run.beat()
        assert run.lifecycle.outcome is RunState.SOLVED
        assert run.judge.evaluation is not None
        assert run.judge.evaluation.policy_version == 1
        assert Reporter(run).status().flagged_evaluation == ""


@on_a_loop
async def test_an_evaluation_from_before_a_reset_of_the_environment_never_counts(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(target_return=50.0)) as run:
        actor, judge = await opened(run), await opened(run, "judge", "evaluator")
        await store(run, actor, segment(1, episodes=(Episode(10.0, 10, 0),)))
        run.connections.evaluated(judge, evaluation(1, 1, 60.0))
        await acknowledged(judge, 1)
        await run.preparation.reset(discard=True)
        run.beat()
        await store(run, await opened(run, "b"), segment(1, episodes=(Episode(60.0, 60, 0),)))
        run.beat()
        assert run.lifecycle.outcome is None


@on_a_loop
async def test_a_second_evaluator_confirms_an_evaluation(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(target_return=50.0)) as run:
        actor, judge = await opened(run), await opened(run, "judge", "evaluator")
        other = await opened(run, "other", "evaluator")
        await store(run, actor, segment(1, episodes=(Episode(10.0, 10, 0),)))
        run.connections.evaluated(judge, evaluation(1, 1, 60.0))
        await acknowledged(judge, 1)
        assert run.lifecycle.outcome is None
        run.connections.evaluated(other, evaluation(1, 1, 60.0))
        await acknowledged(other, 1)
        assert run.lifecycle.outcome is RunState.SOLVED


@on_a_loop
async def test_a_success_rate_that_is_the_target_reaches_it_whatever_the_return(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(target_success=0.75)) as run:
        spec = replace(SPEC, reward_threshold=1.0)
        actor, judge = await opened(run, spec=spec), await opened(run, "judge", "evaluator", spec)
        await store(run, actor, segment(1, episodes=(Episode(9.0, 9, 0, True),)))
        assert run.judge.target_return is None
        for sequence, successes in enumerate([(True, False, False, True), (True, True, False, True)], 1):
            assert run.lifecycle.outcome is None
            found = replace(evaluation(sequence, 1, *(2.0,) * 4), successes=successes)
            run.connections.evaluated(judge, found)
            await acknowledged(judge, sequence)
        assert run.lifecycle.outcome is RunState.SOLVED
        summary = Reporter(run).summary()
        assert summary["target_success"] == 0.75
        assert summary["evaluation"]["success_rate"] == 0.75
        assert [point["success_rate"] for point in summary["evaluations"]] == [0.5, 0.75]
        assert run.training is not None
        run.training.publisher.close()
        await run.lifecycle.ended.wait()


@on_a_loop
async def test_a_success_target_without_reported_successes_is_shown_in_the_status(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(target_success=0.75)) as run:
        await opened(run)
        judge = await opened(run, "judge", "evaluator")
        run.connections.evaluated(judge, evaluation(1, 1, 2.0))
        await acknowledged(judge, 1)
        assert "target_success" in Reporter(run).status().flagged_evaluation
