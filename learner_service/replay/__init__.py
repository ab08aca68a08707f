"""The replay room: what actors sent, kept and handed to the learner.

store         a columnar ring in memory-mapped files; what is committed survives a kill
              (files, columns, directory and sequences are its parts)
samplers      which rows: uniform or prioritised, over a sum tree
n_step        rows into n-step transitions, and into stacks of frames
delayed       returns that become longer in the course of a run
moments       mean and variance of what was stored, for the normalizer
rate_limiter  who may go on: samples per insert
buffer        all of these behind one lock; the interface of the trainer and the intake
dynamic_capacity  drops what is too far from the policy
prefetch      draws the trainer's next batch ahead
"""

from learner_service.replay.buffer import ReplayBuffer
from learner_service.replay.delayed import DelayedReturns
from learner_service.replay.dynamic_capacity import DynamicCapacity
from learner_service.replay.moments import ObservationMoments
from learner_service.replay.n_step import NStepBatch, Returns, WindowBatch, assemble, empty_batch
from learner_service.replay.prefetch import Drawn, Prefetcher
from learner_service.replay.rate_limiter import RateLimiter
from learner_service.replay.samplers import PrioritizedSampler, Sampled, Sampler, UniformSampler
from learner_service.replay.sequences import SegmentSource
from learner_service.replay.store import Inserted, ReplayStore

__all__ = [
    "DelayedReturns",
    "Drawn",
    "DynamicCapacity",
    "Inserted",
    "NStepBatch",
    "ObservationMoments",
    "Prefetcher",
    "PrioritizedSampler",
    "RateLimiter",
    "ReplayBuffer",
    "ReplayStore",
    "Returns",
    "Sampled",
    "Sampler",
    "SegmentSource",
    "UniformSampler",
    "WindowBatch",
    "assemble",
    "empty_batch",
]
