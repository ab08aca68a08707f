"""A run with an on-policy algorithm: memberships, training and end, and restarts of the learner."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actorq.client import LearnerClient
from actorq.config.run_config import RunConfig
from actorq.domain.status import RunState
from actorq.errors import UserError
from learner_service.actors.credits import ActorStream as Stream
from learner_service.report import Reporter
from learner_service.run.identity import check_same_run
from learner_service.run.run import Run
from learner_service.training.training import Training
from tests.learner_service.learner_parts import (
    DEADLINE_S,
    SPEC,
    await_samples,
    drawn_segment,
    on_a_loop,
    reinforce,
    segment,
    store,
    until,
)
from tests.learner_service.learner_servers import ActorStream, joined, running_learner, running_quantizer
from tests.learner_service.run.run_parts import a_run, opened


async def send(run: Run, stream: Stream, sequences: range) -> None:
    """Store drawn segments, each after its credit was granted."""
    for sequence in sequences:
        await until(stream, partial(lambda credit: stream.credit >= credit, sequence))
        await store(run, stream, drawn_segment(sequence))


async def learned(run: Run, rollouts: int) -> Training:
    """The training after so many rollouts of 16 steps and two updates."""
    training = run.training
    assert training is not None
    await asyncio.to_thread(await_samples, training.replay.limiter, rollouts * 16 * 2)
    assert await asyncio.to_thread(training.trainer.pause) == rollouts * 2
    training.trainer.resume()
    return training


@on_a_loop
async def test_actors_draw_actions_and_evaluators_only_on_request(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str, int, float]] = [
        ({}, "", 0, 1.0),
        ({"evaluation": {"sampled": True}}, "clipped", 0, 1.0),
        ({"queue": {"synchronous": True}, "actors": 2}, "", 4, 30.0),
        ({"actor": {"segment_length": 4, "max_steps_per_policy": 20}}, "", 20, 1.0),
    ]
    for number, (changes, sampled, steps, patience) in enumerate(cases):
        async with a_run(tmp_path / str(number), reinforce(**changes)) as run:
            told = run.connections.join("a", 1, "actor")
            assert told.exploration is not None
            assert told.exploration.sampling == "clipped"
            judge = run.connections.join("judge", 1, "evaluator")
            assert judge.exploration is None
            assert (judge.run.evaluation_sampling, judge.run.max_steps_per_policy) == (sampled, steps)
            assert judge.run.policy_patience_s == patience


@pytest.mark.parametrize(("squash", "sampling"), [(False, "clipped"), (True, "squashed")])
@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
@on_a_loop
async def test_built_in_algorithms_define_sampling_in_their_settings(
    tmp_path: Path, algorithm: str, squash: bool, sampling: str
) -> None:
    settings = RunConfig.model_validate({"algorithm": algorithm, algorithm: {"squash": squash}})
    async with a_run(tmp_path, settings) as run:
        told = run.connections.join("a", 1, "actor").exploration
        assert told is not None
        assert told.sampling == sampling


@on_a_loop
async def test_a_run_collects_until_its_first_rollout_and_ends_with_its_budget(tmp_path: Path) -> None:
    async with a_run(tmp_path, reinforce(max_environment_steps=48)) as run:
        stream = await opened(run)
        await send(run, stream, range(1, 2))
        assert run.lifecycle.state is RunState.COLLECTING
        status = Reporter(run).status()
        assert status.rollout_queue is not None
        assert (status.rollout_queue.waiting_transitions, status.rollout_queue.mismatch) == (8, None)
        await send(run, stream, range(2, 7))
        assert run.training is not None
        # There is no quantizer to wait for.
        run.training.publisher.close()
        # The last rollout is used or waits when the run ends.
        await asyncio.wait_for(run.lifecycle.ended.wait(), DEADLINE_S)
        assert run.lifecycle.outcome is RunState.BUDGET_ENDED
        assert run.lifecycle.fault is None
        summary = Reporter(run).summary()
        queue = summary["rollout_queue"]
        used = summary["updates"] // 2 * 16
        assert 16 <= used <= 48
        assert queue["waiting_transitions"] == 48 - used
        assert queue["dropped_transitions"] == 0
        assert queue["divergence"] > 0
        assert 0 <= queue["policy_lag"] <= 2
        # It has the rollout that waits among its inserts.
        assert summary["samples_per_insert"] == pytest.approx(2 * used / 48, abs=1e-3)


@on_a_loop
async def test_one_silent_actor_does_not_stall_the_other(tmp_path: Path) -> None:
    async with a_run(tmp_path, reinforce(max_environment_steps=10_000)) as run:
        for name in ("silent", "busy"):
            run.connections.join(name, 1, "actor")
        silent = await run.connections.open_stream("silent", 1, SPEC)
        assert silent.credit > 0
        busy = await run.connections.open_stream("busy", 1, SPEC)
        await send(run, busy, range(1, 9))
        await learned(run, 4)
        assert run.lifecycle.state is RunState.TRAINING


@on_a_loop
async def test_the_signal_for_scaling_counts_each_transition_once(tmp_path: Path) -> None:
    async with a_run(tmp_path, reinforce()) as run:
        await opened(run)
        assert run.records.scaling.samples_per_insert == 2
        run.beat()


@on_a_loop
async def test_an_interrupted_run_continues_with_its_unused_segments(tmp_path: Path) -> None:
    async with a_run(tmp_path, reinforce()) as run:
        stream = await opened(run)
        await send(run, stream, range(1, 4))
        await learned(run, 1)
        run.lifecycle.interrupt()
        await asyncio.wait_for(run.lifecycle.ended.wait(), DEADLINE_S)
    async with a_run(tmp_path, reinforce(), resume=True) as run:
        await run.preparation.restore()
        training = run.training
        assert training is not None
        queue = training.rollout_queue()
        assert queue is not None
        assert (queue.waiting_transitions, training.trainer.updates) == (8, 2)
        assert run.connections.join("a", 1, "actor").resume_after_sequence == 3
        stream = await run.connections.open_stream("a", 1, SPEC)
        await send(run, stream, range(4, 5))
        await learned(run, 2)
        assert run.lifecycle.fault is None


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"ppo": {"epochs": 4}}, r"ppo\.epochs 10, .* 4; .*--ppo\.epochs 10"),
        ({"ppo": {"gae_lambda": 0.9}}, r"ppo\.gae_lambda 0\.95, .* 0\.9; .*--ppo\.gae-lambda 0\.95"),
        ({"actor": {"segment_length": 64}}, r"actor\.segment_length 32, .* 64; .*--actor\.segment-length 32"),
        ({"ppo": {"rollout_size": 4096}}, r"--ppo\.rollout-size 2048"),
        ({"ppo": {"discount": 0.9}}, r"--ppo\.discount 0\.99"),
    ],
)
def test_a_checkpoint_with_another_horizon_is_not_resumed(changes: dict[str, Any], fact: str) -> None:
    def settings(**changes: Any) -> RunConfig:
        own = {"rollout_size": 2048, "epochs": 10, "gae_lambda": 0.95, "discount": 0.99, **changes.pop("ppo", {})}
        return RunConfig.model_validate({"algorithm": "ppo", "actor": {"segment_length": 32}, "ppo": own, **changes})

    checkpoint = json.loads(json.dumps({"algorithm": "ppo", "horizon": settings().horizon}))
    check_same_run(settings(queue={"max_policy_lag": 3}), checkpoint, None)
    with pytest.raises(UserError, match=fact) as caught:
        check_same_run(settings(**changes), checkpoint, None)
    assert "\n" not in str(caught.value)


def test_a_whole_learner_learns_publishes_and_refuses_segments_without_probabilities(tmp_path: Path) -> None:
    with (
        running_quantizer(tmp_path / "policies") as quantizer,
        running_learner(reinforce(), tmp_path / "run", quantizer) as learner,
        LearnerClient(learner.address) as client,
    ):
        assert client.join("actor-0", 1, "actor", "test").exploration is not None
        stream = ActorStream(client, "actor-0")
        stream.open(SPEC)
        stream.await_credit(2)
        for sequence in (1, 2):
            stream.send_segment(drawn_segment(sequence))
        stream.await_acknowledged(2)
        status = next(status for status in client.watch(0.05) if status.updates == 2 and status.policy_version >= 2)
        assert status.rollout_queue is not None
        assert status.rollout_queue.waiting_transitions == 0
        assert status.rollout_queue.mismatch is not None
        other = joined(client, "actor-1")
        other.await_credit(1)
        other.send_segment(segment(1))
        assert "log_probabilities" in str(other.refusal())
        samples = {sample.name: sample.value for family in learner.service.metrics() for sample in family.samples}
        assert samples["actorq_learner_mismatch"] == pytest.approx(status.rollout_queue.mismatch)
        assert samples["actorq_learner_queue_waiting_transitions"] == 0
        assert samples["actorq_learner_queue_dropped_transitions_total"] == 0
        assert samples["actorq_learner_policy_lag_versions"] == 0
        assert samples["actorq_learner_segments_total"] == 1  # refused is the last label
