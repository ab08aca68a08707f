"""Sequences of steps from the replay, for policies with memory."""

from learner_service.replay.recurrent.buffer import SequenceReplay
from learner_service.replay.recurrent.sampler import SequenceSampler
from learner_service.replay.recurrent.sequences import SequenceShape, empty_sequences, transitions_of
