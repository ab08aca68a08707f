"""A training with multi-step targets and a replay of dynamic capacity, built, trained, saved and restored."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from actorq import wire
from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.columns import GREEDY_ACTIONS
from actorq.domain.goals import HindsightColumns
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import DynamicCapacityStatus
from actorq.domain.trajectory import PolicySpan, Segment
from actorq.errors import InvalidInputError, UserError
from learner_service.actors.members import Member
from learner_service.replay import ReplayBuffer
from learner_service.run.connections import membership
from learner_service.training.checkpoint import LearnerState
from learner_service.training.training import Training, build_training
from tests.builders.identities import claimed
from tests.builders.segments import without
from tests.learner_service.algorithms.algorithm_parts import hidden
from tests.learner_service.learner_parts import await_samples, store_segment

ACTOR = Member("actor-0", "actor", 0, incarnation=1)
ARMS = EnvironmentSpec("Arms-v0", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", (-1.0,), (1.0,)))


def settings(algorithm: str = "td3", dynamic: bool | None = True, **changes: Any) -> RunConfig:
    """Both mechanisms are on: the oldest transitions are checked every 64 steps, and targets have 3 steps after 128
    steps.
    """
    # With bounds, XQC does not scale rewards.
    bounds = {"value_min": -10.0, "value_max": 10.0} if algorithm == "xqc" else {}
    tree: dict[str, Any] = {
        "algorithm": algorithm,
        "environment": "Arms-v0",
        "environments_per_actor": 2,
        algorithm: {} if algorithm == "d4pg" else {**hidden(algorithm, 8), "batch_size": 8, **bounds},
        "replay": {"capacity": 2_000, "min_size": 64, "prioritized": True},
        "rate_limiter": {"samples_per_insert": 4.0, "error_buffer": 512.0},
        "actor": {"segment_length": 4 if algorithm != "d4pg" else 5},
        "max_environment_steps": 1_280,
        "multi_step": True,
        "multi_step_returns": {"n_step": 3, "after": 0.1},
        "dynamic_capacity": {
            "enabled": dynamic, "threshold": 1e-3, "min_size": 32, "period_steps": 64, "oldest": 16, "dropped": 0.25,
        },
    }  # fmt: skip
    return RunConfig.model_validate({**tree, **changes})


@pytest.fixture
def client() -> Iterator[QuantizerClient]:
    with QuantizerClient("127.0.0.1:1") as nobody:
        yield nobody


Build = Callable[..., Training]


@pytest.fixture
def build(client: QuantizerClient, tmp_path: Path) -> Iterator[Build]:
    built: list[Training] = []

    def make(config: RunConfig, state: LearnerState | None = None, spec: EnvironmentSpec = ARMS) -> Training:
        training, graph = build_training(
            config, spec, tmp_path, wire.Opening("run", "int8"), client, state, save, lambda _: None
        )
        built.append(training)
        outputs = (
            ["actions", "greedy_actions"]
            if config.algorithm in ("sac", "xqc") and config.dynamic_capacity.enabled
            else ["actions"]
        )
        assert [output.name for output in onnx.load_from_string(graph.model).graph.output] == outputs
        return training

    def save(updates: int) -> Path:
        return Path(str(updates))

    yield make
    for training in built:
        training.close()


def insert(training: Training, sequences: range) -> None:
    """Eight transitions each."""
    for sequence in sequences:
        assert training.replay.limiter.try_reserve(8)
        store_segment(training.intake, ACTOR, segment(sequence), 8)


def segment(sequence: int) -> Segment:
    rng, shape = np.random.default_rng(sequence), (4, 2)
    return Segment(
        sequence=sequence,
        spans=(PolicySpan(0, 1, "int8"),),
        columns={
            "observations": rng.standard_normal((5, 2, 3), np.float32),
            "actions": rng.uniform(-1, 1, (4, 2, 2)).astype(np.float32),
            "rewards": np.ones(shape, np.float32),
            "terminated": np.zeros(shape, np.bool_),
            "truncated": np.zeros(shape, np.bool_),
            "valid": np.ones(shape, np.bool_),
            "ages": np.zeros(2, np.uint8),
            "greedy_actions": rng.uniform(-1, 1, (4, 2, 2)).astype(np.float32),
        },
    )


@pytest.mark.parametrize("bounds", [{}, {"value_min": -10.0, "value_max": 10.0}], ids=["scaled", "bounded"])
def test_the_replay_scales_the_rewards_of_an_algorithm_with_a_bound(build: Build, bounds: dict[str, float]) -> None:
    section = {"policy_sizes": (8,), "critic_sizes": (8,), "batch_size": 8, **bounds}
    training = build(settings("xqc", multi_step=None, xqc=section))
    insert(training, range(1, 10))
    assert isinstance(training.replay, ReplayBuffer)
    batch, _ = training.replay.draw(8)
    # Each step has a reward of 1. The largest return of 36 steps is a sum of powers of 0.99.
    returns = np.cumsum(0.99 ** np.arange(36))
    divisor = max(float(np.std(returns)), float(returns[-1]) / 5) if not bounds else 1.0
    np.testing.assert_allclose(batch.returns, 1 / divisor, rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["td3", "sac", "d4pg", "xqc"])
def test_the_distance_is_that_of_the_policy_without_noise(build: Build, algorithm: str) -> None:
    training = build(settings(algorithm, multi_step=None))
    assert training.dynamic_capacity is not None
    insert(training, range(1, 10))
    assert training.dynamic_capacity.status() == DynamicCapacityStatus(72, None, 0, 0)
    training.dynamic_capacity.check()
    oldest = [segment(number) for number in (1, 2)]
    with torch.no_grad():
        seen = torch.from_numpy(np.concatenate([each.observations[:4].reshape(8, 3) for each in oldest]))
        acted = training.algorithm.policy(seen).numpy()
    greedy = np.concatenate([np.asarray(each.columns["greedy_actions"]).reshape(8, 2) for each in oldest])
    expected = float(np.square(acted - greedy).mean()) / 2
    # A quarter of 72 is 18: three segments of 8.
    status = training.dynamic_capacity.status()
    assert status.distance == pytest.approx(expected, rel=1e-5)
    assert status == DynamicCapacityStatus(48, status.distance, 1, 24)


def test_the_trainer_checks_the_distance_when_it_is_due(build: Build) -> None:
    training = build(settings())
    assert training.dynamic_capacity is not None
    insert(training, range(1, 10))
    training.trainer.start()
    await_samples(training.replay.limiter, 512)
    training.trainer.pause()
    assert training.trainer.fault is None
    status = training.dynamic_capacity.status()
    assert (status.transitions, status.drops, status.dropped_transitions) == (48, 1, 24)
    # 56 more transitions do not complete a period, 64 do.
    insert(training, range(10, 15))
    samples = training.replay.limiter.samples
    training.trainer.resume()
    await_samples(training.replay.limiter, samples + 64)
    training.trainer.pause()
    assert training.dynamic_capacity.status().drops == 1
    insert(training, range(15, 17))
    samples = training.replay.limiter.samples
    training.trainer.resume()
    await_samples(training.replay.limiter, samples + 64)
    training.trainer.pause()
    assert training.dynamic_capacity.status().drops == 2
    assert training.replay.total_transitions == 128


@pytest.mark.parametrize("algorithm", ["td3", "sac", "xqc"])
def test_targets_become_longer_and_windows_are_for_entropies(build: Build, algorithm: str) -> None:
    training = build(settings(algorithm, dynamic=False), spec=ARMS)
    assert training.dynamic_capacity is None
    assert isinstance(training.replay, ReplayBuffer)
    for sequence in range(1, 17):
        if sequence == 16:
            batch, _ = training.replay.draw(64)
            assert (float(batch.returns.max()), training.multi_step_since) == (1.0, None)
            assert "between_discounts" not in batch
        assert training.replay.limiter.try_reserve(8)
        store_segment(training.intake, ACTOR, without(segment(sequence), GREEDY_ACTIONS), 8)
    batch, _ = training.replay.draw(64)
    assert float(batch.returns.max()) == pytest.approx(1 + 0.99 + 0.99**2)
    assert training.multi_step_since == 128
    assert ("between_discounts" in batch) == (algorithm in ("sac", "xqc"))
    training.trainer.start()
    await_samples(training.replay.limiter, 256)
    training.trainer.pause()
    assert training.trainer.fault is None


def test_dynamic_capacity_and_longer_returns_continue_after_a_restart(build: Build) -> None:
    training = build(settings())
    insert(training, range(1, 18))
    training.trainer.start()
    await_samples(training.replay.limiter, 64)
    training.trainer.pause()
    assert training.dynamic_capacity is not None
    status = training.dynamic_capacity.status()
    assert (status.drops, training.multi_step_since) == (1, 136)
    state = training.state(training.trainer.updates, {})
    assert "multi_step_since" in state.values["limiter"]
    left = training.replay.transitions
    training.close()
    again = build(settings(), LearnerState(state.updates, state.tensors, json.loads(json.dumps(state.values))))
    assert again.dynamic_capacity is not None
    assert again.dynamic_capacity.status() == status
    assert not again.dynamic_capacity.due
    assert (again.replay.transitions, again.multi_step_since) == (left, 136)


def test_a_segment_without_greedy_actions_is_refused_and_releases_its_credit(build: Build) -> None:
    training = build(settings())
    assert training.replay.limiter.try_reserve(8)
    with pytest.raises(InvalidInputError, match=r"greedy_actions.*none"):
        store_segment(training.intake, ACTOR, without(segment(1), GREEDY_ACTIONS), 8)
    with pytest.raises(Exception, match="8 of 0"):
        training.replay.limiter.release(8)


def test_a_users_mistake_in_dynamic_capacity_is_refused_and_leaves_nothing_open(build: Build) -> None:
    with pytest.raises(UserError, match=r"dynamic_capacity\.min_size.*1600"):
        build(settings(dynamic_capacity={"min_size": 1_600, "enabled": True}))
    build(settings()).close()
    with pytest.raises(UserError, match=r"greedy.*--dynamic-capacity"):
        build(settings(dynamic=False))
    build(settings())


def test_actors_send_greedy_actions_if_the_capacity_is_dynamic(tmp_path: Path) -> None:
    identity = claimed(tmp_path, resume=False)
    goals = HindsightColumns(4).names
    for config, columns in ((settings(), (GREEDY_ACTIONS,)), (settings(dynamic=None), ())):
        joined = membership(config, identity, ACTOR, 0, 0)
        # Those of goals are for environments that have some.
        assert joined.run.columns == (*columns, *goals)
        assert joined.exploration == config.exploration_of(0, 0)
