"""Takes what actors send: checks it against the run, stores it exactly once, and keeps the run's statistics."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actorq.errors import InvalidInputError
from actorq.trajectory import EnvironmentSpec, Segment
from learner_service.members import Member
from learner_service.replay import ReplayBuffer
from learner_service.schemes import acting_schemes
from learner_service.statistics import Episodes, StalenessHistogram

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IntakeStatistics:
    """What has been stored: episodes and their mean return lately, staleness in versions, transitions by scheme.

    stored_segments, duplicate_segments: since this process started.
    """

    episodes: int
    mean_return: float | None
    staleness_p50: float
    staleness_p99: float
    transitions_by_scheme: dict[str, int]
    stored_segments: int = 0
    duplicate_segments: int = 0


NOTHING_STORED = IntakeStatistics(0, None, 0.0, 0.0, {})


class Intake:
    """Stores segments in the replay. Thread-safe.

    scheme: the run's; segments may come from policies of all its `acting_schemes`.
    published_version: tells the newest version, against which staleness is measured.
    """

    def __init__(
        self, spec: EnvironmentSpec, replay: ReplayBuffer, scheme: str, published_version: Callable[[], int]
    ) -> None:
        self._spec = spec
        self._replay = replay
        self._scheme = scheme
        self._acting_schemes = acting_schemes(scheme)
        self._published_version = published_version
        self._lock = threading.Lock()
        self._episodes = Episodes()
        self._staleness = StalenessHistogram()
        self._by_scheme: dict[str, int] = {}
        self._stored_segments = 0
        self._duplicate_segments = 0

    def insert(self, member: Member, segment: Segment, reserved: int) -> None:
        """Store a segment under its credit of `reserved` transitions; a duplicate is dropped.

        Raises InvalidInputError, and stores nothing, when the segment does not fit the run; the replay knows whether it
        is to tell greedy actions.
        """
        try:
            segment.check(self._spec)
            if segment.steps * segment.environments > reserved:
                raise InvalidInputError(
                    f"segment: at most {reserved} transitions have credit, got {segment.steps} x {segment.environments}"
                )
            self._check_policies(segment)
        except InvalidInputError:
            self._replay.limiter.release(reserved)
            raise
        if self._replay.insert(segment, member.source(segment.sequence), reserved) is None:
            self.note_duplicate(member, segment)
            return
        with self._lock:
            self._count(segment)

    def note_duplicate(self, member: Member, segment: Segment) -> None:
        """A segment came that is stored already."""
        _log.info("%s sent segment %d again: dropped", member.name, segment.sequence)
        with self._lock:
            self._duplicate_segments += 1

    def resume_after(self, member: Member) -> int:
        """The highest sequence that is stored of this incarnation, 0 when there is none."""
        source = member.source(0)
        return self._replay.last_sequences().get((source.actor_key, source.incarnation), 0)

    def statistics(self) -> IntakeStatistics:
        """What has been stored so far."""
        with self._lock:
            return IntakeStatistics(
                episodes=self._episodes.count,
                mean_return=self._episodes.mean_return,
                staleness_p50=self._staleness.percentile(50),
                staleness_p99=self._staleness.percentile(99),
                transitions_by_scheme=dict(self._by_scheme),
                stored_segments=self._stored_segments,
                duplicate_segments=self._duplicate_segments,
            )

    def state(self) -> dict[str, Any]:
        """The statistics for a checkpoint."""
        with self._lock:
            return {
                "episodes": self._episodes.state(),
                "staleness": self._staleness.state(),
                "transitions_by_scheme": dict(self._by_scheme),
            }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        with self._lock:
            self._episodes.load_state(state["episodes"])
            self._staleness.load_state(state["staleness"])
            self._by_scheme.update(state["transitions_by_scheme"])

    def account_for(self, stored: int) -> None:
        """After a crash the log has transitions that the last checkpoint has not counted.

        They are shared out among the schemes as those that were counted; before any was, they are the run's.
        """
        with self._lock:
            counted = sum(self._by_scheme.values())
            missing = stored - counted
            if missing <= 0:
                return
            shares = {scheme: missing * count // counted for scheme, count in self._by_scheme.items() if count}
            most = max(shares, key=lambda scheme: self._by_scheme[scheme], default=self._scheme)
            shares[most] = shares.get(most, 0) + missing - sum(shares.values())
            for scheme, share in shares.items():
                self._by_scheme[scheme] = self._by_scheme.get(scheme, 0) + share

    def _count(self, segment: Segment) -> None:
        self._stored_segments += 1
        steps = segment.valid.sum(axis=1)
        self._staleness.add(self._published_version() - segment.policy_versions().repeat(steps))
        stops = [span.first_step for span in segment.spans[1:]] + [segment.steps]
        for span, stop in zip(segment.spans, stops, strict=True):
            acted = int(steps[span.first_step : stop].sum())
            self._by_scheme[span.scheme] = self._by_scheme.get(span.scheme, 0) + acted
        for episode in segment.episodes:
            self._episodes.add(episode.episode_return)

    def _check_policies(self, segment: Segment) -> None:
        # No upper bound: after a crash the learner may have forgotten versions that actors already have.
        for span in segment.spans:
            if span.version < 1:
                raise InvalidInputError(f"segment: policy versions must be at least 1, got {span.version}")
            if span.scheme not in self._acting_schemes:
                raise InvalidInputError(
                    f"segment: must come from {' or '.join(self._acting_schemes)} policies, got {span.scheme!r}"
                )
