"""The common base of the roles in a run: joins the learner, watches policies, and uploads."""

import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from actor_service.environments import check_modules, describe_environment
from actor_service.policies.comparison import PolicyCheck
from actor_service.policies.policy import OnnxPolicy, check_state
from actor_service.policies.subscription import Subscription
from actor_service.roles.actor_role import ActorRole, Host
from actor_service.uploader import Uploader
from actorq import __version__
from actorq.client import LearnerClient, QuantizerClient
from actorq.domain.columns import state_size_in
from actorq.domain.policy import Policy, PolicyDescriptor
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import ActorReport, Membership
from actorq.errors import ConflictError, UnavailableError
from actorq.transport.reconnect import keep_connected

_log = logging.getLogger(__name__)


class Participant(ActorRole):
    """Takes part in a learner's run until the run is over or `drain` is called.

    One thread does the role's work, one uploads, two receive policies, one chooses the scheme, and one is the watchdog.

    allowed_modules: environment modules that this process imports if the learner names them.
    """

    def __init__(self, host: Host, learner: LearnerClient, allowed_modules: Collection[str] = ()) -> None:
        super().__init__(host)
        self._learner = learner
        self._allowed_modules = allowed_modules
        # The learner assigns the incarnation. The nonce identifies this process until the first answer.
        self._incarnation = 0
        self._nonce = 1 + secrets.randbits(63)
        self._membership: Membership | None = None
        self._uploader: Uploader | None = None
        self._subscription: Subscription | None = None
        self._flush_until = 0.0
        self._unsent = 0
        self._acknowledged_before = 0
        self._fault: BaseException | None = None
        self._activity = "joining"
        self._thread = threading.Thread(target=self._run, name=self.role, daemon=True)

    def start(self) -> None:
        """Join the run and begin."""
        super().start()
        self._thread.start()

    def drain(self, flush_s: float) -> None:
        """See `ActorRole.drain`. An environment step also ends within `flush_s`. With 0, no queued items are sent."""
        self._flush_until = time.monotonic() + flush_s if flush_s else 0.0
        if not self._stop.is_set():
            self._acknowledged_before = self.acknowledged
        self._stop.set()
        self._slot.close()
        if self._uploader is not None:
            self._uploader.wake()

    def abandon(self) -> None:
        """Do not wait for the queued items in a drain, because no learner stores them."""
        self._flush_until = 0.0
        if self._uploader is not None:
            self._uploader.abandon()

    def drained(self, timeout_s: float) -> tuple[int, int]:
        """Wait for the end of a drain. Returns the numbers of segments stored since its start and not sent."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        unsent = self._uploader.queued if self._uploader is not None and self._thread.is_alive() else self._unsent
        return self.acknowledged - self._acknowledged_before, unsent

    @property
    def acknowledged(self) -> int:
        """Number of items that the learner has stored."""
        return self._uploader.acknowledged if self._uploader else 0

    def _prepare(self, spec: EnvironmentSpec, membership: Membership) -> None:
        """Make the objects that the learner's directives need. Called before the first directive can arrive."""

    def _work(self, spec: EnvironmentSpec, membership: Membership, uploader: Uploader) -> None:
        """Do the role's work until `_stop` is set."""
        raise NotImplementedError

    def _evaluate_soon(self, version: int) -> None:
        """Evaluate this version soon, as the learner asks."""

    def _is_wanted(self, descriptor: PolicyDescriptor) -> bool:
        return True

    def _subscribe(self, spec: EnvironmentSpec, scheme: str, batch: int, needs: Collection[str] = ()) -> None:
        """Start to load policies into the slot. Unwanted policies may be skipped."""
        self._activity = "waiting for a policy"

        assert self._membership is not None
        state_size = state_size_in(self._membership.run.columns)

        def loader(needs: Collection[str]) -> Callable[[Policy], OnnxPolicy]:
            def load(policy: Policy) -> OnnxPolicy:
                loaded = self._host.load(policy, spec, batch, needs)
                check_state(loaded, state_size)
                return loaded

            return load

        check = PolicyCheck(loader(()), self._slot.wake, bool(spec.sizes), self._arithmetic.inexact_schemes)
        load, choose = loader(needs), partial(self._select, spec)
        self._subscription = Subscription(
            self._connect, self._slot, load, self._fail, check, scheme, choose, self._is_wanted
        )
        self._subscription.start()

    def _connect(self) -> QuantizerClient:
        """A client that accepts only policies of this run."""
        assert self._membership is not None
        client = self._open_client()
        client.run_id = self._membership.run.run_id
        return client

    @property
    def _acting_scheme(self) -> str:
        assert self._membership is not None
        return self._subscription.scheme if self._subscription else self._membership.run.scheme

    def _run(self) -> None:
        try:
            count_retry = self.counts.learner_retries.add
            keep_connected(self._join_first, self._stop, self._learner.peer, random.Random(), on_retry=count_retry)
            if self._membership is not None:
                self._participate(self._membership)
        except BaseException as error:
            self._fault = self._fault or error
        finally:
            self._leave()
            self._host.on_end(self._fault)

    def _join(self) -> Membership:
        known, policy = self._membership, self._slot.peek()
        epoch, newest_version = known.epoch if known else 0, policy.descriptor.version if policy else 0
        membership = self._learner.join(
            self.name, self._incarnation, self.role, __version__, self._nonce, epoch, newest_version
        )
        if membership.epoch < epoch:
            raise UnavailableError(
                f"the learner has epoch {membership.epoch} of the run, and a learner of epoch {epoch} has continued "
                "it: end the older learner"
            )
        self._incarnation = membership.incarnation
        if known is not None and membership.run.run_id != known.run.run_id:
            raise ConflictError(
                f"the learner now has run {membership.run.run_id}; this actor joined {known.run.run_id}"
            )
        self._membership = membership
        return membership

    def _join_first(self, connected: Callable[[], None]) -> None:
        self._join()
        connected()

    def _participate(self, membership: Membership) -> None:
        run = membership.run
        self._quantizer.run_id = run.run_id
        _log.info("joined run %s as %s %d on %s", run.run_id, self.role, membership.actor_index, run.environment_id)
        check_modules(run.environment_id, run.environment_arguments, self._allowed_modules)
        with self._own_call:
            self._spec = describe_environment(
                run.environment_id, self._host.backend, run.environment_arguments, factory=self._host.factory
            )
        self._take_part(self._spec, membership)

    def _take_part(self, spec: EnvironmentSpec, membership: Membership) -> None:
        """Open the actor's stream for this environment, and do the role's work."""
        run = membership.run
        # An evaluator uses the actors' batch size for `auto`, so that it evaluates the scheme that the actors use.
        self._environments = run.environments_per_actor
        self._prepare(spec, membership)
        self._uploader = self._host.uploader(
            self._learner,
            self.name,
            self._join,
            self._next_report,
            on_stop=self._run_is_over,
            on_evaluate=self._evaluate_soon,
            on_fault=self._fail,
            on_retry=self.counts.learner_retries.add,
            on_share=self._set_share,
        )
        self._uploader.start(spec, run.queue_segments, run.report_period_s)
        self._work(spec, membership, self._uploader)

    def _set_share(self, steps: int) -> None:
        """Apply a new limit of steps with one policy from the learner.

        Called on the uploader's thread. 0: the limit from Join.
        """

    def _report(self) -> ActorReport:
        watched = self._subscription
        return replace(
            super()._report(),
            queued_segments=self._uploader.queued if self._uploader else 0,
            waited_seconds=self._uploader.waited_s if self._uploader else 0.0,
            avoided_scheme=watched.avoided if watched else "",
            scheme_error=watched.check.newest.error if watched and watched.check.newest else 0.0,
        )

    def _next_report(self) -> ActorReport:
        """The report for the learner. It contains each activation once."""
        return replace(self._report(), activation_seconds=self._slot.pop_activations())

    def _run_is_over(self) -> None:
        if not self._stop.is_set():
            _log.info("the run is over")
            self.run_is_over = True
        self.drain(flush_s=0.0)
        self.abandon()

    def _fail(self, error: BaseException) -> None:
        self._fault = self._fault or error
        self.drain(flush_s=0.0)

    def _leave(self) -> None:
        self._activity = "leaving"
        self._close_watchdog()
        if self._subscription is not None:
            self._subscription.close()
        self._quantizer.close()
        if self._uploader is not None:
            self._unsent = self._uploader.flush(max(0.0, self._flush_until - time.monotonic()))
            if self._unsent:
                _log.info("%d segments were not stored before the actor ended", self._unsent)
            # At the end of a drain, no time is left to wait for the learner's acknowledgments.
            self._uploader.close(patience_s=0.0 if self._unsent and self._flush_until else 2.0)
