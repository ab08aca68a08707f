"""Takes what actors send: checks it against the run, stores it exactly once, and keeps the run's statistics."""

import logging
import threading
from collections.abc import Callable

from actorq.errors import InvalidInputError
from actorq.trajectory import EnvironmentSpec, Segment
from learner_service.members import Member
from learner_service.replay import ReplayBuffer
from learner_service.statistics import Episodes, StalenessHistogram

_log = logging.getLogger(__name__)


class Intake:
    """Stores segments in the replay. Thread-safe.

    published_version: tells the newest version, against which staleness is measured.
    """

    def __init__(
        self, spec: EnvironmentSpec, replay: ReplayBuffer, scheme: str, published_version: Callable[[], int]
    ) -> None:
        self._spec = spec
        self._replay = replay
        self._scheme = scheme
        self._published_version = published_version
        self._lock = threading.Lock()
        self.episodes = Episodes()
        self.staleness = StalenessHistogram()
        self.transitions_by_scheme: dict[str, int] = {}

    def insert(self, member: Member, segment: Segment, reserved: int) -> None:
        """Store a segment under its credit of `reserved` transitions; a duplicate is dropped.

        Raises InvalidInputError, and stores nothing, when the segment does not fit the run.
        """
        try:
            segment.check(self._spec)
            self._check_policies(segment)
        except InvalidInputError:
            self._replay.limiter.release(reserved)
            raise
        if self._replay.insert(segment, member.source(segment.sequence), reserved) is None:
            _log.info("%s sent segment %d again: dropped", member.name, segment.sequence)
            return
        with self._lock:
            steps = segment.valid.sum(axis=1)
            behind = self._published_version() - segment.policy_versions().repeat(steps)
            self.staleness.add(behind)
            for span, stop in zip(segment.spans, [s.first_step for s in segment.spans[1:]] + [None], strict=True):
                acted = int(steps[span.first_step : stop].sum())
                self.transitions_by_scheme[span.scheme] = self.transitions_by_scheme.get(span.scheme, 0) + acted
            for episode in segment.episodes:
                self.episodes.add(episode.episode_return)

    def resume_after(self, member: Member) -> int:
        """The highest sequence that is stored of this incarnation, 0 when there is none."""
        source = member.source(0)
        return self._replay.last_sequences().get((source.actor_key, source.incarnation), 0)

    def account_for(self, stored: int) -> None:
        """After a crash the log has transitions that the last checkpoint has not counted: only our scheme's get in."""
        missing = stored - sum(self.transitions_by_scheme.values())
        if missing:
            self.transitions_by_scheme[self._scheme] = self.transitions_by_scheme.get(self._scheme, 0) + missing

    def _check_policies(self, segment: Segment) -> None:
        # No upper bound: after a crash the learner may have forgotten versions that actors already have.
        for span in segment.spans:
            if span.version < 1:
                raise InvalidInputError(f"segment: policy versions must be at least 1, got {span.version}")
            if span.scheme != self._scheme:
                raise InvalidInputError(f"segment: must come from {self._scheme} policies, got {span.scheme!r}")
