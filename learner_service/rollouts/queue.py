"""The one-pass queue of an on-policy algorithm: returns stored segments as rollouts, oldest first, each once.

Used segments stay in the replay's ring until newer segments overwrite them. A checkpoint has the index of the next
unused segment. Therefore a restarted learner learns again exactly from the segments that its checkpoint has not used.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.trajectory import Segment
from learner_service.batch import Batch
from learner_service.replay import ObservationMoments, RateLimiter, ReplayStore, SegmentBuffer
from learner_service.replay.reward_scale import RewardScale, Source
from learner_service.replay.storage.columns import TERMINATED, TRUNCATED, VALID
from learner_service.replay.storage.directory import Record
from learner_service.replay.storage.store import Inserted
from learner_service.rollouts.versions import PublishedVersions

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Trace:
    """Consecutive segments of an actor. rows: int64[T + 1, N], the last one with the bootstrap observations."""

    source: Source
    sequences: range
    rows: NDArray[np.int64]


class RolloutQueue(SegmentBuffer):
    """Stores segments and hands them out as rollouts. Call `next_rollout` and `published` on one thread.

    The limiter counts environment steps here, resets included, so that a rollout of whole segments is exact.
    """

    def __init__(
        self,
        store: ReplayStore,
        limiter: RateLimiter,
        rollout_size: int,
        versions: PublishedVersions,
        clip_rewards: float | None = None,
        reward_scale: RewardScale | None = None,
        moments: ObservationMoments | None = None,
    ) -> None:
        """All stored segments wait at first; `load_state_dict` leaves out the used ones.

        limiter: made by `RateLimiter.of_queue`.
        rollout_size: least environment steps per rollout.
        versions: the published versions. A segment with a lag above their `max_lag` is dropped.
        clip_rewards: bound of rewards on both sides of 0, before the scale; None for no bound.
        reward_scale: scales rewards; None to leave them.
        """
        super().__init__(store, limiter, moments)
        self.rollout_size = rollout_size
        self.versions = versions
        self._epochs = int(limiter.samples_per_insert)
        self._clip_rewards = clip_rewards
        self._reward_scale = reward_scale
        self._waiting: deque[Record] = deque()
        self._withdrawn = 0
        self.taken_transitions = 0
        """Total transitions of the run up to the newest rollout that this process has used."""
        self._wait_from(next_segment=0, used=0, dropped=0)

    @property
    def waiting_transitions(self) -> int:
        """Transitions that are stored and not yet used."""
        with self._lock:
            return sum(record.transitions for record in self._waiting)

    @property
    def dropped_transitions(self) -> int:
        """Transitions that were dropped because of their lag, over the whole run."""
        with self._lock:
            return self._dropped + self._dropped_ahead

    def published(self, version: int) -> None:
        """Record a published version."""
        with self._lock:
            self.versions.add(version)

    def next_rollout(self, timeout: float) -> tuple[Batch, ...] | None:
        """The next rollout, once there are enough environment steps.

        None after `timeout` seconds, and when too few steps remain because segments were dropped. The consecutive
        segments of an actor are joined in time. Those with equal numbers of steps are joined along N. Each batch has T
        steps, time-major:

        observations:      [T + 1, N, *policy_observation]: single observations, or stacks; the last row only bootstraps
        actions:           [T, N, *action]; continuous actions as drawn: see `Segment.actions`
        rewards:           float32[T, N], clipped or normalized if the run asks for it
        terminated:        bool[T, N], the environment reached a terminal state: do not bootstrap past it
        truncated:         bool[T, N], the episode was cut by a time limit: bootstrap with observation t + 1
        valid:             bool[T, N], false if the step only reset the environment: observation t + 1 begins an episode
        policy_versions:   int64[T, N], the version that acted
        senders:           uint64[T, N], numbers that identify the actors
        log_probabilities: float32[T, N], log mu(a | s) of the quantized policy that acted
        and the run's other further columns that batches have.
        Columns of segments, such as the state of a recurrent policy, are [1, N, ...]: of the first segment.
        """
        if not self.limiter.await_sample(self.rollout_size * self._epochs, timeout):
            return None
        with self._lock:
            records = self._next_records()
            rollout = self._assembled(records) if records else None
            withdrawn, self._withdrawn = self._withdrawn, 0
        if withdrawn:
            self.limiter.withdraw(withdrawn)
        if records:
            self.limiter.sample(self._steps(records) * self._epochs)
        return rollout

    def state_dict(self) -> dict[str, Any]:
        """As in `SegmentBuffer`, with the next unused segment, the counts of steps, and the published versions."""
        with self._lock:
            return {
                **self._common_state(),
                "next_segment": self._next_segment,
                "used": self._used,
                "dropped": self._dropped,
                "versions": self.versions.state(),
                "reward_scale": self._reward_scale and self._reward_scale.state(),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As in `SegmentBuffer`. The segments that the checkpoint has not learned from wait again."""
        with self._lock:
            self._load_common_state(state)
            self.versions.load_state(state["versions"])
            if self._reward_scale and state["reward_scale"]:
                self._reward_scale.load_state(state["reward_scale"])
            self._wait_from(state["next_segment"], state["used"], state["dropped"])

    def begin_from(self, state: dict[str, Any]) -> None:
        """As in `SegmentBuffer`, with the scale of rewards."""
        super().begin_from(state)
        with self._lock:
            if self._reward_scale and state.get("reward_scale"):
                self._reward_scale.begin_from(state["reward_scale"])

    def _wait_from(self, next_segment: int, used: int, dropped: int) -> None:
        # The files of the replay may have been removed, or be older than the checkpoint.
        directory = self._store.directory
        self._next_segment = min(next_segment, directory.head)
        self._used, self._dropped, self._dropped_ahead, self._withdrawn = used, dropped, 0, 0
        self._waiting = deque(record for record in directory.live if record.index >= self._next_segment)
        if missing := directory.head - self._next_segment - len(self._waiting):
            _log.warning("queue: %d unused segments are overwritten or damaged", missing)
        self.limiter.load_state_dict({"inserts": used + self._steps(self._waiting), "samples": used * self._epochs})

    def _on_insert(self, segment: Segment, inserted: Inserted) -> int:
        live = self._store.segments.live
        self._waiting.append(live[-1])
        while inserted.evicted and self._waiting[0].index < live[0].index:
            record = self._waiting.popleft()
            _log.warning("queue: segment %d was overwritten before its use; raise replay.capacity", record.index)
            self._drop(record)
        return segment.steps * segment.environments // self.spec.agent_count

    def _forget(self, damaged: tuple[tuple[int, int], ...]) -> None:
        starts = {start for start, _ in damaged}
        for record in [record for record in self._waiting if record.start in starts]:
            self._waiting.remove(record)
            self._withdrawn += self._steps((record,))

    def _drop(self, record: Record) -> None:
        self._dropped_ahead += record.transitions
        self._withdrawn += self._steps((record,))

    def _steps(self, records: Iterable[Record]) -> int:
        """Environment steps of segments, resets included. The agents of an environment take a step together."""
        return sum(record.steps * record.environments for record in records) // self.spec.agent_count

    def _next_records(self) -> list[Record]:
        """Take the segments of the next rollout out of the queue; none if there are not enough."""
        taken: list[Record] = []
        steps = 0
        while self._waiting and steps < self.rollout_size:
            record = self._waiting[0]
            if self._drop_damaged(np.array([record.start])):
                continue
            self._waiting.popleft()
            versions = self._store.policy_versions[record.step_rows[:-1, 0]]
            if int(self.versions.lag(versions).max()) > self.versions.max_lag:
                self._drop(record)
            else:
                taken.append(record)
                steps += self._steps((record,))
        if steps < self.rollout_size:
            self._waiting.extendleft(reversed(taken))
            return []
        self._next_segment, self._used = taken[-1].index + 1, self._used + steps
        self._dropped, self._dropped_ahead = self._dropped + self._dropped_ahead, 0
        # Rewards are counted here and not when they are stored, so that a restarted learner normalizes like the killed
        # learner.
        self._count(taken)
        self.taken_transitions = taken[-1].cumulative_transitions
        return taken

    def _assembled(self, records: Sequence[Record]) -> tuple[Batch, ...]:
        traces = self._traces(records)
        if self._reward_scale is not None:
            for trace in traces:
                flags = self._store.flags[rows := trace.rows[:-1]]
                ends = flags & (TERMINATED | TRUNCATED) != 0
                self._reward_scale.update(trace.source, trace.sequences, self._rewards(rows), flags & VALID != 0, ends)
        by_steps: dict[int, list[NDArray[np.int64]]] = {}
        for trace in traces:
            by_steps.setdefault(len(trace.rows), []).append(trace.rows)
        return tuple(self._trajectories(np.concatenate(rows, axis=1)) for rows in by_steps.values())

    def _traces(self, records: Sequence[Record]) -> list[_Trace]:
        """The segments, with consecutive segments of an actor joined."""
        traces: list[_Trace] = []
        for record in sorted(records, key=lambda record: (record.source[:2], record.index)):
            source, rows, sequence = record.source[:2], record.step_rows, record.source.sequence
            last = traces[-1] if traces else None
            if last and last.source == source and np.array_equal(self._store.next_rows[last.rows[-2]], rows[0]):
                joined = np.concatenate((last.rows[:-1], rows))
                traces[-1] = _Trace(source, range(last.sequences.start, sequence + 1), joined)
            else:
                traces.append(_Trace(source, range(sequence, sequence + 1), rows))
        return traces

    def _rewards(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        rewards, bound = self._store.rewards[rows], self._clip_rewards
        return rewards if bound is None else np.clip(rewards, -bound, bound)

    def _trajectories(self, rows: NDArray[np.int64]) -> Batch:
        store, acted = self._store, rows[:-1]
        flags, rewards = store.flags[acted], self._rewards(acted)
        return Batch(
            observations=self._observations(rows.ravel()).reshape(*rows.shape, *self.spec.policy_observations.shape),
            actions=store.actions[acted],
            rewards=rewards if self._reward_scale is None else self._reward_scale.scaled(rewards),
            terminated=flags & TERMINATED != 0,
            truncated=flags & TRUNCATED != 0,
            valid=flags & VALID != 0,
            policy_versions=store.policy_versions[acted],
            senders=store.directory.senders(store.generations[acted]),
            **{column.name: store.further[column.name][acted] for column in store.batched},
            **{name: store.further[name][rows[:1]] for name in store.of_segments},
        )
