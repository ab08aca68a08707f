"""The replay: stores the transitions of actors and samples batches for the trainer.

storage       a columnar ring in memory-mapped files; committed segments survive a kill
flusher       flushes the files on its own thread
samplers      choose rows: uniform or prioritized, over a sum tree
n_step        makes n-step transitions and stacks of frames from rows
delayed       returns that become longer in the course of a run
hindsight     other goals for drawn transitions
moments       mean and variance of the stored observations, for the normalizer
rate_limiter  delays the trainer or the actors, to keep the set number of samples per insert
segment_buffer  store, rate limiter and moments behind one lock; the interface for the intake
buffer        all of these behind that lock; the interface for the trainer
dynamic_capacity  drops transitions that are too far from the policy
prefetch      draws the trainer's next batch ahead
"""

from learner_service.replay.buffer import ReplayBuffer
from learner_service.replay.delayed import DelayedReturns
from learner_service.replay.dynamic_capacity import DynamicCapacity
from learner_service.replay.flusher import Flusher
from learner_service.replay.hindsight import OtherGoals
from learner_service.replay.moments import ObservationMoments
from learner_service.replay.n_step import Returns, assemble, empty_batch
from learner_service.replay.prefetch import Drawn, Prefetcher
from learner_service.replay.rate_limiter import RateLimiter
from learner_service.replay.samplers import PrioritizedSampler, Sampled, Sampler, UniformSampler
from learner_service.replay.segment_buffer import SegmentBuffer
from learner_service.replay.storage.sequences import MOST_ACTORS, LastSequences, SegmentSource, actor_key
from learner_service.replay.storage.space import DiskWatch
from learner_service.replay.storage.store import ReplayStore
