"""A run without actors begins with its evaluator, and ends after its updates."""

import asyncio
from pathlib import Path

import pytest

from actorq.domain.status import RunState
from actorq.errors import ConflictError
from learner_service.metrics import learner_metrics
from learner_service.report import Reporter
from tests.learner_service.datasets.dataset_parts import SPEC, stored
from tests.learner_service.datasets.test_of_run import settings
from tests.learner_service.learner_parts import DEADLINE_S, on_a_loop
from tests.learner_service.run.run_parts import a_run, opened


@on_a_loop
async def test_the_evaluator_begins_the_run_and_the_last_update_ends_it(tmp_path: Path) -> None:
    stored(tmp_path / "set")
    async with a_run(tmp_path / "run", settings(tmp_path / "set", offline=True, max_updates=16)) as run:
        assert run.training is None
        await opened(run, "evaluator", "evaluator", SPEC)
        async with asyncio.timeout(DEADLINE_S):
            while run.lifecycle.outcome is None:
                assert run.lifecycle.state is RunState.TRAINING
                run.beat()
                await asyncio.sleep(0.01)
        assert run.lifecycle.outcome is RunState.BUDGET_ENDED
        assert run.training is not None
        assert run.training.trainer.updates == 16
        assert run.training.replay.total_transitions == 0


@on_a_loop
async def test_an_actor_is_refused(tmp_path: Path) -> None:
    stored(tmp_path / "set")
    async with a_run(tmp_path / "run", settings(tmp_path / "set", offline=True)) as run:
        with pytest.raises(ConflictError, match="the run is offline"):
            await opened(run, "actor-0", "actor", SPEC)
        # The alert about missing actors must not fire.
        (actors,) = [each for each in learner_metrics(run, Reporter(run)) if each.name == "actorq_learner_actors"]
        assert [each.labels for each in actors.samples] == [{"role": "evaluator"}]
