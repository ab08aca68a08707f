"""A run that begins from another one: it goes on from its own files, and does not need the other run any more."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.errors import InvalidInputError, UserError
from actorq.rundirectory import RunDirectory
from learner_service.run.run import Run
from learner_service.training.checkpoint import LearnerState, find_newest
from tests.learner_service.learner_parts import SPEC, config, on_a_loop, segment, store, until
from tests.learner_service.run.run_parts import a_run, opened
from tests.learner_service.run.test_preparation import WIDE


async def trained(directory: Path, segments: int = 2) -> Path:
    """A run with a checkpoint. Returns its folder."""
    async with a_run(directory) as run:
        stream = await opened(run)
        for sequence in range(1, segments + 1):
            await until(stream, lambda sequence=sequence: stream.credit >= sequence)  # type: ignore[misc]
            await store(run, stream, segment(sequence))
        await run.save()
    return directory


@on_a_loop
async def test_a_learner_without_a_launcher_records_its_configuration(tmp_path: Path) -> None:
    async with a_run(tmp_path / "run"):
        assert settings.build(RunConfig, RunDirectory(tmp_path / "run").config_tree()) == config()


def begun(directory: Path, **changes: Any) -> RunConfig:
    return config(init_from=str(directory), seed=7, **changes)


def newest(directory: Path) -> LearnerState:
    state = find_newest(directory / "checkpoints").state
    assert state is not None
    return state


def parameters(run: Run) -> torch.Tensor:
    assert run.training is not None
    return run.training.algorithm.state()["online.parameters"]


@on_a_loop
async def test_the_first_checkpoint_of_the_run_has_the_networks_of_the_other(tmp_path: Path) -> None:
    other = await trained(tmp_path / "other")
    async with a_run(tmp_path / "run", begun(other)) as run:
        await opened(run)
        first = newest(tmp_path / "run")
        assert first.updates == 0
        assert torch.equal(first.tensors["online.parameters"], newest(other).tensors["online.parameters"])
        assert run.training is not None
        assert run.training.replay.total_transitions == 0
    assert run.records.identity.run_id not in (other / "run.json").read_text()


@on_a_loop
async def test_a_resumed_run_goes_on_from_its_own_checkpoint_without_the_other_run(tmp_path: Path) -> None:
    other = await trained(tmp_path / "other")
    async with a_run(tmp_path / "run", begun(other)) as run:
        await store(run, await opened(run), segment(1))
        assert run.training is not None
        online = run.training.algorithm.networks["actor"].parameters[0].vector  # type: ignore[attr-defined]
        online.fill_(0.5)
        await run.save()
    shutil.rmtree(other)
    async with a_run(tmp_path / "run", begun(other), resume=True) as run:
        await run.preparation.restore()
        assert run.lifecycle.fault is None
        assert torch.equal(parameters(run), torch.full_like(parameters(run), 0.5))
        assert run.training is not None
        assert run.training.replay.total_transitions == 8


@on_a_loop
async def test_a_run_that_was_killed_before_its_first_actor_begins_again(tmp_path: Path) -> None:
    other = await trained(tmp_path / "other")
    async with a_run(tmp_path / "run", begun(other)):
        pass
    async with a_run(tmp_path / "run", begun(other), resume=True) as run:
        await opened(run)
        assert torch.equal(parameters(run), newest(other).tensors["online.parameters"])


@on_a_loop
async def test_the_replay_is_copied_once(tmp_path: Path) -> None:
    other = await trained(tmp_path / "other", segments=10)
    settings = begun(other, init_replay=True)
    async with a_run(tmp_path / "run", settings) as run:
        stream = await opened(run)
        assert run.training is not None
        assert run.training.replay.transitions == 80
        await store(run, stream, segment(1))
    # Also when no checkpoint of the run is left.
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    async with a_run(tmp_path / "run", settings, resume=True) as run:
        await run.preparation.restore()
        assert run.training is not None
        assert (run.training.replay.transitions, run.training.replay.total_transitions) == (88, 8)
        assert torch.equal(parameters(run), newest(other).tensors["online.parameters"])


@on_a_loop
async def test_after_a_reset_of_its_environment_the_run_begins_from_the_other_again(tmp_path: Path) -> None:
    other = await trained(tmp_path / "other", segments=10)
    async with a_run(tmp_path / "run", begun(other, init_replay=True)) as run:
        await opened(run)
        await run.preparation.reset(discard=True)
        await opened(run, "b")
        assert run.training is not None
        assert (run.training.replay.transitions, run.training.replay.total_transitions) == (80, 0)
        assert torch.equal(parameters(run), newest(other).tensors["online.parameters"])


@on_a_loop
async def test_an_actor_with_other_spaces_is_refused_and_the_next_one_may_fit(tmp_path: Path) -> None:
    other = await trained(tmp_path / "other", segments=10)
    async with a_run(tmp_path / "run", begun(other, init_replay=True)) as run:
        with pytest.raises(InvalidInputError, match=r"init_from: observations: expected float32\[6\] .*float32\[4\]"):
            await opened(run, "wrong", spec=WIDE)
        assert not (tmp_path / "run" / "replay").exists()
        await opened(run, "right", spec=SPEC)
        assert run.training is not None
        assert run.training.replay.transitions == 80


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"dqn": {"hidden_sizes": (8, 8), "batch_size": 8, "n_step": 3}}, "dqn.hidden_sizes 8,8 .*got 8 "),
        ({"init_from": "/nowhere"}, "/nowhere, which does not exist"),
    ],
)
@on_a_loop
async def test_a_learner_with_a_wrong_source_writes_nothing(changes: dict[str, Any], fact: str, tmp_path: Path) -> None:
    other = await trained(tmp_path / "other")
    settings = config(**{"init_from": str(other), **changes})
    with pytest.raises(UserError, match=f"init_from: .*{fact}"):
        async with a_run(tmp_path / "run", settings):
            pass
    assert [path.name for path in (tmp_path / "run").rglob("*") if path.is_file()] == ["learner.lock"]
