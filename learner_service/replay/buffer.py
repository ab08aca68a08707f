"""The replay buffer: store, sampler and rate limiter behind one lock, for the trainer and the intake."""

from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import GREEDY_ACTIONS, Array
from actorq.domain.trajectory import Segment
from learner_service.batch import Batch
from learner_service.replay.delayed import DelayedReturns
from learner_service.replay.hindsight import OtherGoals
from learner_service.replay.moments import ObservationMoments
from learner_service.replay.n_step import Allocate, Returns, assemble, empty_batch
from learner_service.replay.rate_limiter import RateLimiter
from learner_service.replay.reward_scale import RewardScale
from learner_service.replay.samplers import Sampled, Sampler
from learner_service.replay.segment_buffer import SegmentBuffer
from learner_service.replay.storage.columns import TERMINATED, TRUNCATED, VALID
from learner_service.replay.storage.directory import Record
from learner_service.replay.storage.store import Inserted, ReplayStore


class ReplayBuffer(SegmentBuffer):
    """Stores segments and samples batches. Thread-safe. Before a sample call `limiter.await_sample`."""

    def __init__(
        self,
        store: ReplayStore,
        sampler: Sampler,
        limiter: RateLimiter,
        returns: Returns | DelayedReturns,
        moments: ObservationMoments | None = None,
        goals: OtherGoals | None = None,
        reward_scale: RewardScale | None = None,
    ) -> None:
        """The limiter starts with the transitions of this run that the store already has.

        moments: count these at first use, or after `load_state_dict`. goals: for drawn transitions, with hindsight.
        reward_scale: drawn returns are divided by its divisor at the time; None to leave them.
        """
        super().__init__(store, limiter, moments)
        self._sampler = sampler
        self._returns = returns
        self._goals = goals
        self._reward_scale = reward_scale
        limiter.load_state_dict({"inserts": store.total_transitions, "samples": limiter.samples})
        segments = store.segments
        damaged = segments.damaged or segments.dropped
        stored = segments.checked_transitions if damaged else segments.transitions
        if stored > store.total_transitions:
            # The other transitions are from another run. `init_replay` has copied them.
            limiter.begin_with(max(0, store.total_transitions + limiter.min_size_to_sample - stored))
        else:
            self._await_enough(stored)

    @property
    def progress(self) -> int:
        """Steps of the run's schedules so far: all inserted transitions."""
        return self.total_transitions

    def empty_batch(self, size: int, allocate: Allocate = np.empty) -> Batch:
        """Columns with room for every batch of `size` transitions; see `n_step.empty_batch`."""
        return empty_batch(self.spec, size, self._returns.longest, self._store.batched, allocate)

    @property
    def multi_step_since(self) -> int | None:
        """Transitions inserted before the first draw of longer returns; None before it, and without delayed returns."""
        return self._returns.since if isinstance(self._returns, DelayedReturns) else None

    def draw(self, size: int, out: Batch | None = None) -> tuple[Batch, Sampled]:
        """Draw `size` n-step transitions, into `out` as in `assemble`. Raises ConflictError when there are none.

        This method does not count samples: call `limiter.sample` for each batch that is used in an update.
        """
        with self._lock:
            sampled = self._sampler.sample(size)
            while self._drop_damaged(sampled.rows):
                sampled = self._sampler.sample(size)
            returns = self._returns.at(self.progress)
            batch = assemble(self._store, sampled.rows, returns, out)
            if self._goals is not None:
                self._goals.replace(self._store, sampled, returns, batch)
            self._scale(batch)
            return batch, sampled

    def senders(self, sampled: Sampled) -> NDArray[np.uint64]:
        """Numbers that identify the actors of drawn rows, uint64[B]; arbitrary for removed segments."""
        with self._lock:
            return self._store.directory.senders(sampled.generations)

    def observation_moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """As in `SegmentBuffer`, of all stored observations."""
        with self._lock:
            self._count_missed()
        return super().observation_moments()

    def oldest_greedy_actions(self, size: int) -> tuple[NDArray[np.generic], Array]:
        """Observations [B, *policy_observation] and greedy actions [B, *action] of up to `size` oldest transitions."""
        with self._lock:
            rows = self._outermost_rows(size, newest=False)
            return self._observations(rows), self._store.further[GREEDY_ACTIONS][rows]

    def drop_oldest(self, transitions: int, keep: int) -> int:
        """Drop whole segments, oldest first, until at least `transitions` are gone. Keeps the last `keep` transitions.

        Returns the number of dropped transitions. They stay dropped after a kill of this process.
        """
        with self._lock:
            before = self._store.transitions
            self._sampler.on_drop(self._store.segments.drop_oldest(transitions, keep))
            return before - self._store.transitions

    def update_priorities(self, sampled: Sampled, priorities: NDArray[np.float32]) -> None:
        """Set priorities float32[B] of the rows of `sampled`, usually absolute TD errors; see `Sampler.update`."""
        with self._lock:
            self._sampler.update(sampled, priorities)

    def state_dict(self) -> dict[str, Any]:
        """As in `SegmentBuffer`, with the sampler's state."""
        with self._lock:
            delayed = {"multi_step_since": self.multi_step_since} if isinstance(self._returns, DelayedReturns) else {}
            scale = {"reward_scale": self._reward_scale.state()} if self._reward_scale else {}
            state = {**self._common_state(), "sampler": self._sampler.state(), **delayed, **scale}
        return {**self.limiter.state_dict(), **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As in `SegmentBuffer`. Later inserts are in the store. Later samples no longer count.

        The moments count the observations that were stored after the checkpoint, so each counts exactly once. They miss
        observations that were stored and then evicted or dropped after the checkpoint. The same is true of the rewards.
        """
        with self._lock:
            self._load_common_state(state)
            if self._reward_scale and state.get("reward_scale"):
                self._reward_scale.load_state(state["reward_scale"], self._store.total_transitions)
            self._count_missed()
            if isinstance(self._returns, DelayedReturns):
                self._returns.since = state.get("multi_step_since")
            # Older checkpoints have no sampler state.
            self._sampler.load_state(state.get("sampler", {}))
        self.limiter.load_state_dict({**state, "inserts": self.total_transitions})

    def begin_from(self, state: dict[str, Any]) -> None:
        """As in `SegmentBuffer`, with the scale of rewards."""
        super().begin_from(state)
        with self._lock:
            if self._reward_scale and state.get("reward_scale"):
                self._reward_scale.begin_from(state["reward_scale"])

    def _on_insert(self, segment: Segment, inserted: Inserted) -> int:
        self._sampler.on_insert(inserted)
        if not self._store.transitions:
            # Segments with only resets cost no credit, and may have evicted all transitions.
            self._await_enough(0)
        self._count_missed()
        return segment.environment_steps(self.spec.agent_count)

    def _forget(self, damaged: tuple[tuple[int, int], ...]) -> None:
        self._sampler.on_drop(damaged)
        self._await_enough(self._store.segments.checked_transitions)

    def _count_missed(self) -> None:
        """Count all segments that the moments and the scale of rewards do not include yet."""
        if self._moments is not None:
            self._count(self._newer(self._moments.through))
        if self._reward_scale is not None:
            for record in self._newer(self._reward_scale.through):
                self._count_rewards(self._reward_scale, record)

    def _newer(self, through: int) -> list[Record]:
        """The segments after a number of transitions, oldest first."""
        live = self._store.segments.live
        return list(takewhile(lambda record: record.cumulative_transitions > through, reversed(live)))[::-1]

    def _scale(self, batch: Batch) -> None:
        """Divide drawn returns by the divisor of the scale, if there is one."""
        if self._reward_scale is not None:
            # Transitions of another run's replay are counted here.
            self._count_missed()
            batch.returns[:] /= np.float32(self._reward_scale.divisor)

    def _count_rewards(self, scale: RewardScale, record: Record) -> None:
        if self._drop_damaged(np.arange(record.start, record.start + 1)):
            return
        rows = record.step_rows[:-1]
        flags, rewards = self._store.flags[rows], self._store.rewards[rows]
        if (bound := self._returns.longest.clip_rewards) is not None:
            rewards = np.clip(rewards, -bound, bound)
        key, life, sequence = record.source
        ends, through = flags & (TERMINATED | TRUNCATED) != 0, record.cumulative_transitions
        scale.update((key, life), range(sequence, sequence + 1), rewards, flags & VALID != 0, ends, through)

    def _await_enough(self, stored: int) -> None:
        """Sample only with at least `min_size_to_sample` transitions. stored: the usable transitions now."""
        missing = self.limiter.min_size_to_sample - stored
        self.limiter.await_inserts(self._store.total_transitions + missing)
