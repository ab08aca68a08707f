"""The one-pass queue of on-policy algorithms: hands out the newest transitions as rollouts, each once.

trajectories  the steps of a rollout, as algorithms read them
"""

from learner_service.rollouts.trajectories import Trajectories

__all__ = ["Trajectories"]
