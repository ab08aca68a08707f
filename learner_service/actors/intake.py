"""Checks the segments of actors, stores each exactly once in the replay, and keeps statistics."""

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import columns_of
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Evaluation, Segment
from actorq.errors import InvalidInputError
from actorq.statefiles.highwater import LEAP
from learner_service.actors.credits import ActorStream
from learner_service.actors.members import Member
from learner_service.actors.plausibility import Plausibility
from learner_service.actors.ranges import ObservedRanges
from learner_service.actors.schemes import acting_schemes
from learner_service.replay import OfflineReplay, SegmentBuffer
from learner_service.reporting.meters import MOST_STALE, Episodes, StalenessHistogram
from learner_service.rollouts import PublishedVersions

_MOST_LOST = 2**62
# Segments of an actor whose ranges are recorded: the first ones, then one out of this many. Recording all would slow
# down inserts of large segments.
_FIRST_SEGMENTS, _EACH_SEGMENT = 4, 16

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IntakeStatistics:
    """Statistics of stored data: episodes, their recent mean return, staleness in versions, and transitions by scheme.

    stored_segments, duplicate_segments, lost_segments, left_out (calibration rows): counts since this process started.
    exploring_returns: the lowest and the highest return of all episodes; None before the first.
    agent_returns: the recent mean return of each agent, by name; empty for a single agent and before the first episode.
    """

    episodes: int = 0
    mean_return: float | None = None
    staleness_p50: float = 0.0
    staleness_p99: float = 0.0
    transitions_by_scheme: dict[str, int] = field(default_factory=dict)
    stored_segments: int = 0
    duplicate_segments: int = 0
    lost_segments: int = 0
    exploring_returns: tuple[float, float] | None = None
    left_out: int = 0
    agent_returns: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False)
class Intake:
    """Stores segments in the replay. Thread-safe. published_version: segments of much higher versions are refused."""

    spec: EnvironmentSpec
    replay: SegmentBuffer
    scheme: str
    published_version: Callable[[], int]

    def __post_init__(self) -> None:
        self._acting_schemes = acting_schemes(self.scheme)
        # No thread holds this lock while it waits for the replay's lock or the disk, because the event loop uses it
        # too.
        self._lock = threading.Lock()
        self._episodes = Episodes()
        self._of_agents = {agent: Episodes() for agent in self.spec.agents}
        # Without actors there is nothing to compare evaluations with.
        compares = not (self.spec.environment_arguments.reward_wrappers or isinstance(self.replay, OfflineReplay))
        self._plausibility = Plausibility(self.spec.max_episode_steps, compares, self.spec.agent_count)
        self._staleness = StalenessHistogram()
        self._ranges = ObservedRanges()
        self._versions = PublishedVersions(max_lag=MOST_STALE - 1)
        self._by_scheme: Counter[str] = Counter()
        # Column names of the last segment. All segments of a run have the same columns.
        self._columns_of = lru_cache(maxsize=1)(partial(columns_of, self.spec))
        self._stored_segments = 0
        self._duplicate_segments = 0
        self._lost_segments = 0

    def published(self, version: int) -> None:
        """Record a published version. Staleness is counted from it."""
        with self._lock:
            self._versions.add(version)

    def store(self, stream: ActorStream, decode: Callable[[], Segment], reserved: int) -> bool:
        """Store the segment that `decode` returns. It has a reservation of `reserved` transitions. Drops a duplicate.

        Returns False, and stores nothing, when an earlier segment of the stream was refused. Call on one thread. Raises
        InvalidInputError, and stores nothing, when the segment does not fit the run. The replay checks whether greedy
        actions must be present.
        """
        if stream.refused:
            self.replay.limiter.release(reserved)
            return False
        try:
            segment, member = self._checked(decode, reserved), stream.member
            if self.replay.insert(segment, member.source(segment.sequence), reserved) is None:
                self.record_duplicate(member, segment.sequence)
                return True
            with self._lock:
                self._count(segment)
                if segment.sequence <= _FIRST_SEGMENTS or segment.sequence % _EACH_SEGMENT == 0:
                    self._ranges.update(member.name, segment.observations)
        except BaseException:
            stream.refused = True
            raise
        return True

    def calibration_rows(self, rows: NDArray[np.generic]) -> NDArray[np.bool_]:
        """The observations [B, ...] that measure a policy's fidelity, bool[B]. See `ObservedRanges.inside`."""
        with self._lock:
            return self._ranges.inside(rows)

    def widest(self) -> str:
        """See ObservedRanges."""
        with self._lock:
            return self._ranges.widest()

    def record_duplicate(self, member: Member, sequence: int) -> None:
        """Count a segment that is already stored."""
        _log.info("%s sent segment %d again: dropped", member.name, sequence)
        with self._lock:
            self._duplicate_segments += 1

    def skip_lost(self, member: Member, stored: int, through: int) -> None:
        """Skip the segments after `stored` up to `through`, which both the replay and the actor have lost."""
        lost = through - stored
        _log.warning("%s: %d acknowledged segments after number %d are lost", member.name, lost, stored)
        self.replay.skip(member.source(through))
        with self._lock:
            # A peer may report any number. The sum must fit into a message.
            self._lost_segments = min(self._lost_segments + lost, _MOST_LOST)

    def doubt(self, evaluation: Evaluation) -> str:
        """The reason why an evaluation contradicts the actors' data; empty when it is plausible."""
        with self._lock:
            return self._plausibility.doubt(evaluation)

    def agrees(self, evaluation: Evaluation) -> bool:
        """Whether the actors' episodes confirm an evaluation. See Plausibility."""
        with self._lock:
            return self._plausibility.agrees(evaluation)

    def statistics(self) -> IntakeStatistics:
        """Statistics of the data stored so far."""
        with self._lock:
            return IntakeStatistics(
                episodes=self._episodes.count,
                mean_return=self._episodes.mean_return,
                staleness_p50=self._staleness.percentile(50),
                staleness_p99=self._staleness.percentile(99),
                transitions_by_scheme=dict(self._by_scheme),
                stored_segments=self._stored_segments,
                duplicate_segments=self._duplicate_segments,
                lost_segments=self._lost_segments,
                exploring_returns=self._plausibility.exploring_returns,
                left_out=self._ranges.left_out,
                agent_returns={
                    agent: mean for agent, each in self._of_agents.items() if (mean := each.mean_return) is not None
                },
            )

    def state(self) -> dict[str, Any]:
        """The statistics for a checkpoint."""
        with self._lock:
            return {
                "episodes": self._episodes.state(),
                "plausibility": self._plausibility.state(),
                "staleness": self._staleness.state(),
                "versions": self._versions.state(),
                "transitions_by_scheme": dict(self._by_scheme),
                **(
                    {"agents": {agent: each.state() for agent, each in self._of_agents.items()}}
                    if self._of_agents
                    else {}
                ),
            }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        with self._lock:
            self._episodes.load_state(state["episodes"])
            self._plausibility.load_state(state.get("plausibility"))
            self._staleness.load_state(state["staleness"])
            # Older checkpoints lack these.
            if "versions" in state:
                self._versions.load_state(state["versions"])
            self._by_scheme = Counter(state["transitions_by_scheme"])
            for agent, each in state.get("agents", {}).items():
                self._of_agents[agent].load_state(each)

    def account_for(self, stored: int) -> None:
        """Count the transitions in the replay that the last checkpoint lacks after a crash.

        The schemes share them in proportion to their counted transitions. Without counted transitions, the run's scheme
        gets all.
        """
        with self._lock:
            counted = self._by_scheme.total()
            if (missing := stored - counted) <= 0:
                return
            shares = {scheme: missing * count // counted for scheme, count in self._by_scheme.items() if count}
            most = max(shares, key=lambda scheme: self._by_scheme[scheme], default=self.scheme)
            shares[most] = shares.get(most, 0) + missing - sum(shares.values())
            self._by_scheme.update(shares)

    def _checked(self, decode: Callable[[], Segment], reserved: int) -> Segment:
        """The segment. Releases the reservation when it does not fit the run."""
        try:
            segment = decode()
            segment.check(self.spec, self._columns_of(tuple(segment.columns)))
            environments = segment.environments // self.spec.agent_count
            if segment.steps * environments > reserved:
                raise InvalidInputError(
                    f"segment: at most {reserved} transitions have credit, got {segment.steps} x {environments}"
                )
            self._check_policies(segment)
        except BaseException:
            self.replay.limiter.release(reserved)
            raise
        return segment

    def _count(self, segment: Segment) -> None:
        self._stored_segments += 1
        stops = [span.first_step for span in segment.spans[1:]] + [segment.steps]
        for span, stop in zip(segment.spans, stops, strict=True):
            acted = segment.environment_steps(self.spec.agent_count, span.first_step, stop)
            self._staleness.add(self._versions.lag_of(span.version), acted)
            self._by_scheme[span.scheme] += acted
        self._plausibility.update(segment)
        for episode in segment.episodes:
            self._episodes.add(episode.episode_return)
            for agent, agent_return in zip(self._of_agents, episode.agent_returns, strict=True):
                self._of_agents[agent].add(agent_return)

    def _check_policies(self, segment: Segment) -> None:
        # Accept versions above the published versions, because a run restored from a copy may not know its latest
        # versions.
        highest = self.published_version() + LEAP
        for span in segment.spans:
            if not 1 <= span.version <= highest:
                raise InvalidInputError(f"segment: expected policy versions from 1 to {highest}, got {span.version}")
            if span.scheme not in self._acting_schemes:
                raise InvalidInputError(
                    f"segment: expected a policy scheme of {' or '.join(self._acting_schemes)}, got {span.scheme!r}"
                )
