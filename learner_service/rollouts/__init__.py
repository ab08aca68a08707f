"""The one-pass queue of on-policy algorithms: returns the newest transitions as rollouts, each once."""

from learner_service.replay.reward_scale import RewardScale
from learner_service.rollouts.mismatch import Mismatch
from learner_service.rollouts.queue import RolloutQueue
from learner_service.rollouts.versions import PublishedVersions

__all__ = ["Mismatch", "PublishedVersions", "RewardScale", "RolloutQueue"]
