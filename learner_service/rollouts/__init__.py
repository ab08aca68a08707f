"""The one-pass queue of on-policy algorithms: hands out the newest transitions as rollouts, each once.

queue         hands out stored segments as rollouts
versions      the newest published versions, which decide what is too old
mismatch      how far the data are from the learner's policy
reward_scale  scales rewards by the deviation of discounted returns
"""

from learner_service.rollouts.mismatch import Mismatch
from learner_service.rollouts.queue import RolloutQueue
from learner_service.rollouts.reward_scale import RewardScale
from learner_service.rollouts.versions import PublishedVersions

__all__ = ["Mismatch", "PublishedVersions", "RewardScale", "RolloutQueue"]
