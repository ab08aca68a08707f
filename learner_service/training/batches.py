"""The data of a trainer: batches sampled from the replay, or rollouts from the one-pass queue."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from actorq.config.run_config import RunConfig
from learner_service.algorithms.base import Algorithm, Learned, OnPolicyAlgorithm, RecurrentAlgorithm
from learner_service.batch import Batch
from learner_service.replay import Drawn, DynamicCapacity, Prefetcher, ReplayBuffer, SegmentBuffer
from learner_service.rollouts import Mismatch, RolloutQueue
from learner_service.training.device import allocator_for

# Most updates per call of the algorithm, within one publication period. Sampling many minibatches at once spreads the
# cost of the sum tree.
_MOST_UPDATES_PER_SAMPLE = 8


def alike(senders: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
    """Ascending indexes of at most `size` rows.

    Each sender, uint64[B], gets equally many rows if possible, evenly spaced.
    """
    if len(senders) <= size:
        return np.arange(len(senders))
    by_actor = np.argsort(senders, kind="stable")
    sorted_senders = senders[by_actor]
    starts = np.flatnonzero(np.append(True, sorted_senders[1:] != sorted_senders[:-1]))
    counts = np.diff(starts, append=len(senders))
    shares = np.zeros_like(counts)
    # Senders are handled in order of their row counts, so that larger senders get the rows that smaller ones leave
    # over.
    for done, actor in enumerate(np.argsort(counts, kind="stable")):
        shares[actor] = min(counts[actor], size // (len(counts) - done))
        size -= shares[actor]
    places = np.arange(len(senders)) - np.repeat(starts, counts)
    share, count = np.repeat(shares, counts), np.repeat(counts, counts)
    # Every place at which the number of chosen rows rises.
    chosen = places * share // count != (places - 1) * share // count
    return np.sort(by_actor[chosen])


class Batches(Protocol):
    """Fetches data from the run's buffer and lets the algorithm learn from them, on the trainer's thread."""

    buffer: SegmentBuffer
    normalizes_first: bool = False
    """Whether the normalizer is set before the first update too."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are kept for batches; 0 by default."""
        return 0

    @property
    def steps(self) -> int:
        """Environment steps of the run up to the fetched data; by default all stored steps."""
        return self.buffer.total_transitions

    @abstractmethod
    def fetch(self, timeout: float) -> bool:
        """Fetch data for the next `learn`, once the limiter allows it. Returns False after `timeout` seconds."""

    def prepare(self) -> None:
        """Called between `fetch` and `learn`."""
        return

    @abstractmethod
    def learn(self, progress: float) -> Learned:
        """Make all updates on the fetched data. progress: used share of the run's environment steps."""

    def finish(self) -> None:
        """Called after each `learn` with a finite loss."""
        return

    @abstractmethod
    def observed(self, size: int) -> NDArray[Any] | None:
        """At most `size` of the newest observations, [B, *policy_observation], with equal shares of all actors; or
        None.
        """

    def observed_states(self, size: int) -> NDArray[np.float32] | None:
        """The states of a policy with memory before the observations of `observed`, float32[B, S]; None without."""
        return None

    def is_due(self, before: int, updates: int) -> bool:
        """Whether to publish a policy, after `learn` has raised the updates from `before`; by default always."""
        return True

    def published(self, version: int, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Record a published version."""
        return

    def discard(self) -> None:
        """Drop data that were fetched ahead, before the state is saved."""
        return

    def close(self) -> None:
        """End all threads."""
        return

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON values, without the buffer's state."""
        return {}


class SampledBatches(Batches):
    """Minibatches of several updates, for an off-policy algorithm. dynamic_capacity: drops old transitions."""

    normalizes_first: bool = True

    def __init__(
        self,
        config: RunConfig,
        algorithm: Algorithm,
        replay: ReplayBuffer,
        device: torch.device,
        dynamic_capacity: DynamicCapacity | None = None,
    ) -> None:
        """device: of the algorithm. Batches for a GPU are in pinned memory."""
        self.buffer: ReplayBuffer = replay
        self._algorithm = algorithm
        self._dynamic_capacity = dynamic_capacity
        self._period = config.publication.period_updates
        # Sequences need no larger draws.
        self._memory = memory = config.memory
        self._updates = 1 if memory else min(_MOST_UPDATES_PER_SAMPLE, self._period)
        rows, transitions = self._updates * algorithm.batch_size, None
        if memory:
            rows = memory.sequences(algorithm.batch_size)
            transitions = rows * memory.sequence_length
        self._prefetcher = Prefetcher(replay, rows, allocator_for(device), transitions)
        self._drawn: Drawn | None = None
        self._priorities = np.empty(0, np.float32)

    @property
    def steps(self) -> int:
        """Steps of the run's schedules; of an offline run, updates."""
        return self.buffer.progress

    @property
    def nbytes(self) -> int:
        """Bytes of the batch in use and the batch drawn ahead."""
        return self._prefetcher.nbytes

    def fetch(self, timeout: float) -> bool:
        """Fetch the batch that was drawn ahead, and draw the next one."""
        self._drawn = self._prefetcher.next_batch(timeout)
        return self._drawn is not None

    def prepare(self) -> None:
        """Drop transitions that are too far from the policy."""
        if self._dynamic_capacity is not None and self._dynamic_capacity.due:
            # Finish the draw in progress first. Otherwise the timing of threads decides whether it contains dropped
            # transitions.
            self._prefetcher.settle()
            self._dynamic_capacity.check()

    def learn(self, progress: float) -> Learned:
        """Make the updates on the batch."""
        drawn = self._drawn
        assert drawn is not None
        losses = self._algorithm.update(drawn.batch, drawn.sampled.weights)
        self._priorities = losses.priorities
        return Learned(losses.loss, self._updates, losses.figures)

    def observed(self, size: int) -> NDArray[Any] | None:
        """Some observations of the newest batch."""
        if self._drawn is None:
            return None
        observations: NDArray[Any] = self._drawn.batch.observations
        if self._memory:
            return observations[self._trained(self._drawn, size)]
        return observations[alike(self.buffer.senders(self._drawn.sampled), size)]

    def observed_states(self, size: int) -> NDArray[np.float32] | None:
        """The present policy's states before these observations; None without memory."""
        if self._drawn is None or not self._memory:
            return None
        states = cast(RecurrentAlgorithm, self._algorithm).states(self._drawn.batch)
        return states[self._trained(self._drawn, size)]

    def _trained(self, drawn: Drawn, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The sequences and places of at most `size` trained steps, with equal shares of all actors."""
        sequences, steps = np.nonzero(drawn.batch.mask)
        chosen = alike(self.buffer.senders(drawn.sampled)[sequences], size)
        return sequences[chosen], steps[chosen] + self._memory.burn_in

    def finish(self) -> None:
        """Update the priorities of the transitions."""
        assert self._drawn is not None
        self._prefetcher.update_priorities(self._drawn, self._priorities)

    def is_due(self, before: int, updates: int) -> bool:
        """Every `publication.period_updates` updates."""
        return updates // self._period > before // self._period

    def discard(self) -> None:
        """Drop the batch that was drawn ahead."""
        self._prefetcher.discard()

    def close(self) -> None:
        """End the prefetcher's thread."""
        self._prefetcher.close()


class RolloutBatches(Batches):
    """Rollouts for an on-policy algorithm. A policy is published after each rollout."""

    def __init__(
        self, config: RunConfig, algorithm: OnPolicyAlgorithm, queue: RolloutQueue, device: torch.device
    ) -> None:
        self.buffer = self.queue = queue
        self._has_memory = bool(config.memory)
        self.mismatch = Mismatch(algorithm.log_probabilities, queue.versions, device, config.memory.state_size)
        self._algorithm = algorithm
        self._rollout: tuple[Batch, ...] = ()

    @property
    def steps(self) -> int:
        """Environment steps up to the rollout. Later steps may be stored, more of them after a restart."""
        return self.queue.taken_transitions

    def fetch(self, timeout: float) -> bool:
        """Fetch the next rollout from the queue."""
        # The memory of the last rollout is freed before the next rollout.
        self._rollout = ()
        self._rollout = self.queue.next_rollout(timeout) or ()
        return bool(self._rollout)

    def prepare(self) -> None:
        """Measure the difference between the rollout and the policy, which computes in FP32 here."""
        self.mismatch.measure(self._rollout)

    def learn(self, progress: float) -> Learned:
        """Learn from the rollout."""
        return self._algorithm.learn(self._rollout, progress)

    def observed(self, size: int) -> NDArray[Any] | None:
        """Some observations before valid steps of the newest rollout."""
        if not self._rollout:
            return None
        return np.concatenate([each.observations[places] for each, places in self._observed(size)])

    def observed_states(self, size: int) -> NDArray[np.float32] | None:
        """The present policy's states before these observations; None without memory."""
        if not self._rollout or not self._has_memory:
            return None
        algorithm = cast(RecurrentAlgorithm, self._algorithm)
        return np.concatenate([algorithm.states(each)[places] for each, places in self._observed(size)])

    def _observed(self, size: int) -> Iterator[tuple[Batch, tuple[NDArray[np.int64], NDArray[np.int64]]]]:
        """The trajectories of the newest rollout, each with the steps and environments of chosen transitions."""
        senders = [each.senders[each.valid] for each in self._rollout]
        chosen = alike(np.concatenate(senders), size)
        starts = np.cumsum([0, *map(len, senders)])
        for each, start, stop in zip(self._rollout, starts[:-1], starts[1:], strict=True):
            steps, environments = np.nonzero(each.valid)
            places = chosen[(start <= chosen) & (chosen < stop)] - start
            yield each, (steps[places], environments[places])

    def published(self, version: int, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Count the lag of transitions from this version too."""
        self.queue.published(version)
        self.mismatch.published(version, parameters)

    def state(self) -> dict[str, Any]:
        """The means of the mismatch."""
        return {"mismatch": self.mismatch.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.mismatch.load_state(state["mismatch"])


def dynamic_capacity(
    config: RunConfig, algorithm: Algorithm, replay: ReplayBuffer, device: torch.device
) -> DynamicCapacity | None:
    """The replay's dynamic capacity; None if it is off. Raises UserError as `RunConfig.dynamic_capacity_of` does."""
    settings = config.dynamic_capacity_of(replay.spec)
    if settings is None:
        return None

    def act(observations: NDArray[Any]) -> NDArray[Any]:
        with torch.no_grad():
            actions: NDArray[Any] = algorithm.policy(torch.from_numpy(observations).to(device)).cpu().numpy()
        return actions

    return DynamicCapacity(replay, settings, act)
