"""Settings of on-policy runs: settings that cannot work or have no effect are reported before the start."""

from typing import Any

import pytest

from actorq.config import settings
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
    ("changes", "fact"),
    [
        (
            {"actor": {"segment_length": 9}},
            r"actor\.segment_length \* environments_per_actor.*ppo\.rollout_size.*64.* 9 \* 8",
        ),
        ({"ppo": {"batch_size": 65}}, r"ppo\.batch_size.*ppo\.rollout_size.*64.* 65"),
        ({"queue": {"synchronous": True}, "actors": 3}, r"queue\.synchronous.*ppo\.rollout_size.* 96.* 64"),
        (
            {"queue": {"synchronous": True}, "actor": {"segment_length": 4, "max_steps_per_policy": 8}},
            r"actor\.max_steps_per_policy.* 0 .*queue\.synchronous.* 8",
        ),
        (
            {"actor": {"segment_length": 4, "max_steps_per_policy": 7}},
            r"actor\.max_steps_per_policy.* 8.* 7",
        ),
        ({"queue": {"waiting_rollouts": 0.5}}, r"queue\.waiting_rollouts.* 1.* 0\.5"),
        (
            # Four segments for the rollouts plus one, of 8 * 5 rows each.
            {"replay": {"capacity": 199}},
            r"replay\.capacity.* 200 .*queue\.waiting_rollouts.*1.* 64 .* 199",
        ),
        ({"sparsity": {"method": "rlx2"}}, r"sparsity\.method.*rlx2.*ppo"),
        ({"dynamic_capacity": {"enabled": True}}, r"dynamic_capacity\.enabled.*ppo"),
        ({"multi_step": True}, "multi_step.*ppo"),
    ],
)
def test_refuses_settings_that_never_fill_a_rollout_or_have_no_effect(changes: dict[str, Any], fact: str) -> None:
    with pytest.raises(UserError, match=fact) as caught:
        ppo(**changes)
    assert "\n" not in str(caught.value)


def test_every_replay_setting_is_listed_as_used_or_unused_by_queues() -> None:
    of_queues = {"replay.capacity", "replay.clip_rewards", "replay.flush_s", "replay.min_free_bytes"}
    of_replays = {name for name in REPLAY_ONLY if name.startswith("replay.")}
    assert of_queues.isdisjoint(of_replays)
    assert of_queues | of_replays == {f"replay.{name}" for name in ReplayConfig.model_fields}


def test_accepts_a_queue_with_room_for_the_waiting_rollouts() -> None:
    config = ppo(queue={"synchronous": True}, actors=2, replay={"capacity": 200})
    assert config.queue.waiting_rows(config.actor.segment_length, 8, 64, 1) == 200
    assert config.queue.waiting_rows(config.actor.segment_length, 8, 64, 4) == 5 * 8 * 8
    with pytest.raises(ValueError, match=r"replay\.capacity.* 320 "):
        config.check_rollouts(64, 32, frame_stack=4)


def test_settings_of_a_replay_do_not_limit_a_queue() -> None:
    config = ppo(replay={"capacity": 1_000, "min_size": 900}, rate_limiter={"error_buffer": 1.0})
    assert config.on_policy is config.ppo
    assert RunConfig().on_policy is None


def test_a_resumed_on_policy_run_cannot_change_its_horizon_settings() -> None:
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
