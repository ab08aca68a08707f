"""The replay: stores the transitions of actors and samples batches for the trainer."""

from learner_service.replay.buffer import ReplayBuffer
from learner_service.replay.delayed import DelayedReturns
from learner_service.replay.dynamic_capacity import DynamicCapacity
from learner_service.replay.flusher import Flusher
from learner_service.replay.hindsight import OtherGoals
from learner_service.replay.moments import ObservationMoments
from learner_service.replay.n_step import Returns, assemble, empty_batch
from learner_service.replay.prefetch import Drawn, Prefetcher
from learner_service.replay.rate_limiter import RateLimiter
from learner_service.replay.recurrent.buffer import SequenceReplay
from learner_service.replay.recurrent.sampler import SequenceSampler
from learner_service.replay.recurrent.sequences import SequenceShape, empty_sequences, transitions_of
from learner_service.replay.samplers import PrioritizedSampler, Sampled, Sampler, UniformSampler
from learner_service.replay.segment_buffer import SegmentBuffer
from learner_service.replay.storage.sequences import MOST_ACTORS, LastSequences, SegmentSource, actor_key
from learner_service.replay.storage.space import DiskWatch
from learner_service.replay.storage.store import ReplayStore
from learner_service.replay.stored.batches import MixedReplay, OfflineReplay, StoredRows, UpdateLimiter
from learner_service.replay.stored.read_only import ReadOnlyStore
