"""Settings of on-policy runs: what could never work, or would have no effect, is told before the start."""

from typing import Any

import pytest

from actorq.config import settings
from actorq.config.on_policy import waiting_rows
from actorq.config.run_config import RunConfig
from actorq.config.sections import ReplayConfig
from actorq.config.unread import REPLAY_ONLY
from actorq.errors import UserError


def ppo(**changes: Any) -> RunConfig:
    """CartPole with rollouts of 64 steps: segments of 4 steps of 8 environments."""
    tree: dict[str, Any] = {"algorithm": "ppo", "actor": {"segment_length": 4}, **changes}
    tree["ppo"] = {"rollout_size": 64, "batch_size": 32, **changes.get("ppo", {})}
    return settings.build(RunConfig, tree)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"actor": {"segment_length": 9}},
            "actor.segment_length * environments_per_actor must be at most ppo.rollout_size (64), got 9 * 8: a rollout "
            "consists of whole segments",
        ),
        ({"ppo": {"batch_size": 65}}, "ppo.batch_size must be at most ppo.rollout_size (64), got 65"),
        (
            {"queue": {"synchronous": True}, "actors": 3},
            "queue.synchronous: ppo.rollout_size must be a multiple of 96, actors * environments_per_actor * "
            "actor.segment_length, got 64",
        ),
        (
            {"queue": {"synchronous": True}, "actor": {"segment_length": 4, "max_steps_per_policy": 8}},
            "actor.max_steps_per_policy must be 0 with queue.synchronous, got 8: each actor waits after its share of a "
            "rollout",
        ),
        (
            {"actor": {"segment_length": 4, "max_steps_per_policy": 7}},
            "actor.max_steps_per_policy must be at least 8, or 0, got 7: the learner publishes after each rollout, "
            "which takes so many steps of each environment",
        ),
        ({"queue": {"waiting_rollouts": 0.5}}, "greater than or equal to 1, got 0.5"),
        (
            # Four segments for the rollouts, and one more, of 8 * 5 rows.
            {"replay": {"capacity": 199}},
            "replay.capacity must be at least 200 rows, for queue.waiting_rollouts (1) and the rollout in use with 64 "
            "environment steps each, got 199",
        ),
        ({"sparsity": {"method": "rlx2"}}, "sparsity.method rlx2: expected an algorithm with a replay, got ppo"),
        ({"dynamic_capacity": {"enabled": True}}, "dynamic_capacity.enabled: expected an algorithm with a replay"),
        ({"multi_step": True}, "multi_step: expected an algorithm with a replay, got ppo, which is on-policy"),
    ],
)
def test_what_could_never_fill_a_rollout_or_has_no_meaning_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        ppo(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_of_each_setting_of_the_replay_it_is_said_whether_a_queue_has_it() -> None:
    of_queues = {"replay.capacity", "replay.clip_rewards", "replay.flush_s", "replay.min_free_bytes"}
    of_replays = {name for name in REPLAY_ONLY if name.startswith("replay.")}
    assert of_queues.isdisjoint(of_replays)
    assert of_queues | of_replays == {f"replay.{name}" for name in ReplayConfig.model_fields}


def test_what_fits_is_taken() -> None:
    config = ppo(queue={"synchronous": True}, actors=2, replay={"capacity": 200})
    assert waiting_rows(config.queue, config.actor, 8, 64, 1) == 200
    assert waiting_rows(config.queue, config.actor, 8, 64, 4) == 5 * 8 * 8
    with pytest.raises(ValueError, match="at least 320 rows"):
        config.check_rollouts(64, 32, frame_stack=4)


def test_settings_of_a_replay_do_not_limit_a_queue() -> None:
    config = ppo(replay={"capacity": 1_000, "min_size": 900}, rate_limiter={"error_buffer": 1.0})
    assert config.on_policy is config.ppo
    assert RunConfig().on_policy is None


def test_the_horizon_is_what_a_resumed_run_keeps() -> None:
    assert ppo(ppo={"epochs": 10, "discount": 0.99, "gae_lambda": 0.95}).horizon == {
        "actor.segment_length": 4,
        "ppo.rollout_size": 64,
        "ppo.epochs": 10,
        "ppo.discount": 0.99,
        "ppo.gae_lambda": 0.95,
    }
    assert set(RunConfig(algorithm="impala").horizon) == {
        *("actor.segment_length", "impala.rollout_size", "impala.discount", "impala.trace_lambda"),
    }
    assert RunConfig().horizon == {}
