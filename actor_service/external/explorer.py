"""The explorer role for simulators: they connect to this actor, and their episodes are the run's training data."""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from actor_service.counts import ActorCounts
from actor_service.external.acting.evaluation import MarkedEpisodes
from actor_service.external.acting.exploration import row_exploration
from actor_service.external.acting.loop import SimulatorActing
from actor_service.external.acting.pace import PolicyPace
from actor_service.external.acting.segments import Outbox, SegmentForm
from actor_service.external.acting.sizes import SizedLoader
from actor_service.external.streams.door import Door, Host
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actor_service.roles.actor_role import Host as RoleHost
from actor_service.roles.explorer import Explorer
from actor_service.roles.participant import Participant
from actor_service.uploader import Uploader
from actorq.client import LearnerClient
from actorq.domain.columns import state_size_in, state_size_of
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import ActorSelfStatus, Exploration, Membership
from actorq.domain.trajectory import Episode, Evaluation
from actorq.errors import ConflictError, UnavailableError, UserError
from actorq.transport.reconnect import keep_connected
from actorq.wire import EvaluateRequest

_log = logging.getLogger(__name__)
# Seconds for the outbox to hand over its last segments.
_HANDOVER_S = 2.0

MakeEvaluator = Callable[[EnvironmentSpec, MarkedEpisodes, Callable[[BaseException | None], None]], Participant]
"""Makes the evaluator of a run with this environment. The last argument is called at its end."""


class WakingSlot(PolicySlot):
    """A slot that also wakes the acting loop of simulators. on_put: called after each new policy, from any thread."""

    def __init__(self, counts: ActorCounts, on_put: Callable[[], None]) -> None:
        super().__init__(counts)
        self._on_put = on_put

    def put(self, policy: OnnxPolicy) -> None:
        """Make this the newest policy."""
        super().put(policy)
        self._on_put()


class SimulatorExplorer(Explorer):
    """Answers simulators with the newest policy, and sends their transitions.

    The first simulator sets the spaces. When the learner refuses them, all simulators get its error, and the next one
    sets the spaces again.

    door: has the streams of simulators. make_evaluator: None for no evaluations.
    """

    def __init__(
        self, host: RoleHost, learner: LearnerClient, door: Door, make_evaluator: MakeEvaluator | None = None
    ) -> None:
        super().__init__(replace(host, load=SizedLoader(host.load)), learner)
        self.door = door
        self._make_evaluator = make_evaluator
        self._evaluator: Participant | None = None
        self._evaluator_ended = threading.Event()
        self._slot = WakingSlot(self.counts, door.wake)
        # Set at the end of the work in one environment.
        self._over = threading.Event()
        self._acting: SimulatorActing | None = None
        self._pace: PolicyPace | None = None
        self._steps_before = 0

    def drain(self, flush_s: float) -> None:
        """See `Participant.drain`. All streams end."""
        super().drain(flush_s)
        self._over.set()
        self.door.end(None if self.run_is_over else UnavailableError("the actor ends: connect again"))
        if self._evaluator is not None:
            self._evaluator.drain(flush_s)

    def abandon(self) -> None:
        """See `Participant.abandon`."""
        super().abandon()
        if self._evaluator is not None:
            self._evaluator.abandon()

    def status(self) -> ActorSelfStatus:
        """The actor's status, with the number of simulators and the newest problem with one."""
        status, door = super().status(), self.door
        text = f"{status.activity}: {door.streams} connected, {door.environments} environments"
        if door.problem:
            text += f"; the last problem: {door.problem}"
        return replace(status, activity=text)

    def evaluate(
        self, wanted: EvaluateRequest, stop: threading.Event, on_episode: Callable[[Episode], None]
    ) -> Evaluation:
        """Raises ConflictError, because this actor has no environments of its own."""
        raise ConflictError(
            f"{self.name} has no environments of its own: connect a simulator with explore=false, or ask another actor"
        )

    def _participate(self, membership: Membership) -> None:
        run = membership.run
        self._quantizer.run_id = run.run_id
        _log.info("joined run %s as %s %d", run.run_id, self.role, membership.actor_index)
        large = tuple(name for name in run.columns if state_size_of(name))
        most = run.segment_length * run.environments_per_actor
        self.door.admit(Host(run.environment_id, run.run_id, run.environment_arguments, large, most))
        while not self._stop.is_set():
            self._activity = "waiting for a simulator"
            spec = self.door.await_spec()
            self._over = threading.Event()
            if spec is None or self._stop.is_set():
                return
            self._spec = spec
            self._take_part(spec, membership)
            if not self._stop.is_set():
                # The learner has refused the spaces.
                self._spec = None
                count_retry = self.counts.learner_retries.add
                keep_connected(self._join_first, self._stop, self._learner.peer, random.Random(), on_retry=count_retry)
                membership = self._membership or membership

    def _work(self, spec: EnvironmentSpec, membership: Membership, uploader: Uploader) -> None:
        run = membership.run
        assert membership.exploration is not None
        seeds = np.random.SeedSequence(membership.seed).spawn(2)
        rng, evaluation_rng = (np.random.default_rng(each) for each in seeds)
        explore = row_exploration(spec, membership.exploration, rng, run.columns)
        states = tuple(name for name in run.columns if state_size_of(name))
        stored = tuple(name for name in explore.columns if name != "actions")
        transitions = run.segment_length * run.environments_per_actor
        form = SegmentForm(
            *(spec, (*stored, *states), state_size_in(states), transitions, run.max_segment_bytes, run.segment_length),
            self._streams,
        )
        self._pace = PolicyPace(run.max_steps_per_policy, run.environments_per_actor, run.policy_patience_s)
        self._pace.set_most_steps(self._share)
        outbox = Outbox(
            uploader,
            self._over,
            run.queue_segments,
            bool(membership.exploration.sampling),
            self.door.wake,
            membership.resume_after_sequence,
            self._streams,
        )
        marked = MarkedEpisodes()
        evaluated = Exploration((), (), sampling=run.evaluation_sampling)
        self._acting = SimulatorActing(
            *(self.door, self._slot, form, explore, marked, self._pace, outbox, self.counts),
            evaluate=row_exploration(spec, evaluated, evaluation_rng, ()) if run.evaluation_sampling else None,
        )
        outbox.start()
        self._start_evaluator(spec, marked)
        try:
            self._subscribe(spec, run.scheme, 1, explore.needs)
            self._activity = "acting for simulators"
            self._acting.run(self._over)
        finally:
            self._over.set()
            outbox.close(_HANDOVER_S)
            self._steps_before, self._acting = self._environment_steps, None
            if not self._stop.is_set():
                self._close_streams()

    def _start_evaluator(self, spec: EnvironmentSpec, marked: MarkedEpisodes) -> None:
        """Start the evaluator, if there is one."""
        ended = self._evaluator_ended = threading.Event()

        def on_end(fault: BaseException | None) -> None:
            if fault is not None and not self._over.is_set():
                _log.warning("this actor sends no evaluations: %s", fault)
            ended.set()

        if self._make_evaluator is not None:
            self._evaluator = self._make_evaluator(spec, marked, on_end)
            self._evaluator.start()

    def _close_streams(self) -> None:
        """Close the streams of a refused environment, so that another one may begin."""
        if self._evaluator is not None:
            self._evaluator.drain(0.0)
            self._evaluator_ended.wait(_HANDOVER_S)
            self._evaluator = None
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()
        if self._uploader is not None:
            self._uploader.close()
        self._slot = WakingSlot(self.counts, self.door.wake)

    def _leave(self) -> None:
        super()._leave()
        if self._evaluator is not None:
            self._evaluator_ended.wait(max(_HANDOVER_S, self._flush_until - time.monotonic()))

    def _fail(self, error: BaseException) -> None:
        """End the work in a refused environment, without the end of the actor."""
        # A stream that another process has taken over has such an error too, but not about the environment.
        refused = isinstance(error, UserError) or (isinstance(error, ConflictError) and ": environment: " in str(error))
        if refused and self._spec is not None and not self._stop.is_set():
            _log.error("the learner refuses the simulators: %s", error)
            assert isinstance(error, Exception)
            self.door.refuse(self._spec, error)
            self._over.set()
            self.door.wake()
        else:
            super()._fail(error)

    def _set_share(self, steps: int) -> None:
        self._share = steps
        if self._pace is not None:
            self._pace.set_most_steps(steps)
            self.door.wake()

    def _streams(self) -> int:
        return self.door.streams

    @property
    def _environment_steps(self) -> int:
        acting = self._acting
        return self._steps_before + (acting.environment_steps if acting is not None else 0)
