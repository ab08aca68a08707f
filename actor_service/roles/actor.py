"""An actor process from joining to leaving: what runs on which thread, and how it ends."""

import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from actor_service.acting.exploration import explorer
from actor_service.acting.rollout import Rollout, fitting_segment_length
from actor_service.acting.turns import PolicyTurns
from actor_service.counts import ActorCounts
from actor_service.environments import Backend, check_module, describe_environment, make_environments
from actor_service.policies.auto import AutoSubscription
from actor_service.policies.comparison import PolicyCheck
from actor_service.policies.fallback import FallbackSubscription
from actor_service.policies.policy import OnnxPolicy, PolicySlot, load_policy, policy_outputs
from actor_service.policies.processor import saturating_schemes
from actor_service.policies.selection import Selection, select
from actor_service.roles.budget import CpuBudget
from actor_service.roles.evaluation import MOST_ENVIRONMENTS, Evaluator
from actor_service.roles.hold import PolicyHold
from actor_service.roles.schedule import EvaluationSchedule
from actor_service.roles.video import Video
from actor_service.uploader import Uploader
from actorq import __version__
from actorq.client import LearnerClient, QuantizerClient
from actorq.domain.policy import AUTO, FP32, SCHEMES, Policy, PolicyDescriptor
from actorq.domain.status import ActorReport, ActorSelfStatus, Membership
from actorq.domain.trajectory import EnvironmentSpec, Episode, Evaluation, Role
from actorq.errors import ConflictError, ExhaustedError, UnavailableError, UserError
from actorq.machine import processor_flags
from actorq.telemetry.process_stats import measure_process
from actorq.transport.reconnect import keep_connected
from actorq.watchdog import Watchdog, Watched

_log = logging.getLogger(__name__)

_WAIT_S = 1.0


@dataclass(frozen=True)
class Standalone:
    """What an actor without a learner evaluates in, and how the actors of the run act.

    scheme: of the run.
    environments: how many an actor steps as one batch.
    record: the file for a video of each evaluation, whose episodes are then run one after the other.
    """

    environment_id: str
    scheme: str
    environments: int
    record: Path | None = None


class Actor:
    """Acts or evaluates until the run is over or `drain` is called.

    One thread acts (`run` blocks on it), one uploads, two receive policies, one chooses the scheme where that is
    "auto", and one looks whether the environments hang.

    connect: opens a client of the quantizer; each stream of policies has its own.
    on_end: called once, from any thread, when there is nothing left to do; with the error when there was one.
    backend: who steps the environments.
    environment_timeout_s: that a call to them may take before the process ends itself.
    flags: tells the flags of this processor.
    allowed_modules: modules of environments that the learner may have this process import.
    """

    def __init__(
        self,
        name: str,
        role: Role,
        learner: LearnerClient | None,
        connect: Callable[[], QuantizerClient],
        standalone: Standalone | None,
        on_end: Callable[[BaseException | None], None],
        node: str = "",
        backend: Backend = "python",
        environment_timeout_s: float = 60.0,
        flags: Callable[[], frozenset[str]] = processor_flags,
        allowed_modules: Collection[str] = (),
    ) -> None:
        self.name = name
        self.role = role
        self._learner = learner
        self._connect = connect
        self._quantizer = connect()
        self._on_end = on_end
        self._node = node
        # The learner gives the incarnation; until its first answer came, the nonce tells this process from others.
        self._incarnation = 0
        self._nonce = 1 + secrets.randbits(63)
        self._stop = threading.Event()
        self._flush_s = 0.0
        self._unsent = 0
        self._acknowledged_before = 0
        self.counts = ActorCounts()
        self._slot = PolicySlot(self.counts)
        self._membership: Membership | None = None
        self._scheme = standalone.scheme if standalone else ""
        self._batch = standalone.environments if standalone else 0
        self._backend = backend
        self._allowed_modules = allowed_modules
        self._record = standalone.record if standalone else None
        self._spec = (
            describe_environment(standalone.environment_id, backend, rendered=self._record is not None)
            if standalone
            else None
        )
        # What this processor computes wrongly, as far as its flags tell.
        self._avoided = saturating_schemes(flags())
        self._check: PolicyCheck | None = None
        self._watchdog = Watchdog("an environment", environment_timeout_s, "actor.environment_timeout_s")
        self._own_call, self._requested_call = self._watchdog.watch(), self._watchdog.watch()
        self._rollout: Rollout | None = None
        self._subscription: FallbackSubscription | AutoSubscription | None = None
        self._uploader: Uploader | None = None
        self._schedule: EvaluationSchedule
        self._evaluating = threading.Lock()
        self._last_report = (time.monotonic(), 0)
        self._activity = "joining"
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=role, daemon=True)

    def start(self) -> None:
        """Join the run, unless this actor stands alone, and begin."""
        self._watchdog.start()
        if self._learner is not None:
            self._thread.start()
        else:
            self._activity = "waiting for requests"

    def drain(self, flush_s: float) -> None:
        """Stop acting, send what is queued for at most `flush_s` seconds, then end. Returns at once."""
        self._flush_s = flush_s
        if not self._stop.is_set():
            self._acknowledged_before = self.acknowledged
        self._stop.set()
        self._slot.close()
        if self._uploader is not None:
            self._uploader.wake()
        if self._learner is None:
            self._watchdog.close()
            self._quantizer.close()
            self._on_end(None)

    def abandon(self) -> None:
        """Nobody will store what is queued: a drain need not wait for it."""
        self._flush_s = 0.0
        if self._uploader is not None:
            self._uploader.abandon()

    def drained(self, timeout_s: float) -> tuple[int, int]:
        """Wait for the end of a drain; returns how many segments were stored since, and how many could not be sent."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return self.acknowledged - self._acknowledged_before, self._unsent

    @property
    def acknowledged(self) -> int:
        """How many items the learner has stored."""
        return self._uploader.acknowledged if self._uploader else 0

    def status(self) -> ActorSelfStatus:
        """How this actor is."""
        activity, dropped = self._activity, self.counts.dropped_segments.value
        if dropped:
            activity += f" ({dropped} segments dropped: environments failed in them)"
        return ActorSelfStatus(self.name, activity, self._report(peek=True), self._spec)

    def evaluate(
        self,
        episodes: int,
        scheme: str,
        version: int,
        seed: int,
        stop: threading.Event,
        on_episode: Callable[[Episode], None],
    ) -> Evaluation:
        """Run greedy episodes of one version (0 for the newest) beside the actor's own work; blocks.

        Raises UnavailableError when `stop` is set before they are done.
        """
        if self._spec is None:
            raise ConflictError(f"{self.name} has no environment yet: it is {self._activity}")
        if not self._evaluating.acquire(blocking=False):
            raise ExhaustedError(f"{self.name} runs an evaluation already: try again when it is done")
        try:
            scheme = scheme or (self._subscription.scheme if self._subscription else self._scheme)
            evaluator = self._evaluator(self._spec, episodes, self._requested_call, recorded=self._record is not None)
            try:
                policy = evaluator.load(self._policy(self._spec, scheme, version))
                if self._record is None:
                    return evaluator.run(policy, seed, sequence=0, stop=stop, on_episode=on_episode)
                with Video(self._record, evaluator.pictures_per_second) as video:
                    return evaluator.run(policy, seed, 0, stop, on_episode, video.add)
            finally:
                evaluator.close()
        finally:
            self._evaluating.release()

    def _evaluator(self, spec: EnvironmentSpec, episodes: int, watched: Watched, recorded: bool = False) -> Evaluator:
        count = 1 if recorded else min(episodes, MOST_ENVIRONMENTS)
        with watched:
            environments = make_environments(spec.environment_id, count, self._backend, rendered=recorded)
        return Evaluator(environments, episodes, self.counts, watched)

    def _policy(self, spec: EnvironmentSpec, scheme: str, version: int) -> Policy:
        """A policy of the quantizer; of all schemes the one that is fastest here where it is "auto"."""
        if scheme != AUTO:
            return self._quantizer.get(scheme, version)
        policies = {}
        for name in (scheme for scheme in SCHEMES if scheme not in self._avoided):
            policies[name] = self._quantizer.get(name, version)
            # All of one version, also while newer ones are published.
            version = policies[name].descriptor.version
        selection = self._select(spec, policies.values(), FP32)
        _log.info("auto: %s", selection)
        return policies[selection.scheme]

    def _select(self, spec: EnvironmentSpec, policies: Iterable[Policy], incumbent: str) -> Selection:
        return select(policies, spec.policy_observations, self._batch, policy_outputs(spec), incumbent)

    def _run(self) -> None:
        try:
            assert self._learner is not None
            keep_connected(
                self._join_first,
                self._stop,
                self._learner.peer,
                random.Random(),
                on_retry=self.counts.learner_retries.add,
            )
            if self._membership is not None:
                self._take_part(self._membership)
        except BaseException as error:
            self._fault = self._fault or error
        finally:
            self._leave()
            self._on_end(self._fault)

    def _join(self) -> Membership:
        assert self._learner is not None
        try:
            membership = self._learner.join(self.name, self._incarnation, self.role, __version__, self._nonce)
        except ConflictError as error:
            raise UserError(str(error)) from error
        self._incarnation = membership.incarnation
        known = self._membership
        if known is not None and membership.run.run_id != known.run.run_id:
            raise ConflictError(f"the learner has begun another run, {membership.run.run_id}, after {known.run.run_id}")
        return membership

    def _join_first(self, connected: Callable[[], None]) -> None:
        self._membership = self._join()
        connected()

    def _take_part(self, membership: Membership) -> None:
        run = membership.run
        _log.info("joined run %s as %s %d on %s", run.run_id, self.role, membership.actor_index, run.environment_id)
        check_module(run.environment_id, self._allowed_modules)
        with self._own_call:
            self._spec = describe_environment(run.environment_id, self._backend)
        # The evaluator chooses as actors do, so that it evaluates what they run.
        self._batch = run.environments_per_actor
        target = self._spec.reward_threshold if run.target_return is None else run.target_return
        budget = CpuBudget(run.evaluation_share)
        self._schedule = EvaluationSchedule(run.evaluation_period_updates, budget.has_some, target)
        assert self._learner is not None
        self._uploader = Uploader(
            self._learner,
            self.name,
            self._join,
            self._report,
            on_stop=self._run_is_over,
            on_evaluate=self._evaluate_soon,
            on_fault=self._fail,
            on_retry=self.counts.learner_retries.add,
        )
        self._uploader.start(self._spec, run.queue_segments, run.report_period_s)
        if self.role == "evaluator":
            self._evaluate_forever(self._spec, membership, self._uploader)
        else:
            self._act(self._spec, membership, self._uploader)

    def _act(self, spec: EnvironmentSpec, membership: Membership, uploader: Uploader) -> None:
        run, count = membership.run, membership.run.environments_per_actor
        assert membership.exploration is not None
        seeds = np.random.SeedSequence(membership.seed).generate_state(2)
        environment_seed, exploration_seed = (int(seed) for seed in seeds)
        explore = explorer(spec, membership.exploration, np.random.default_rng(exploration_seed))
        with self._own_call:
            environments = make_environments(run.environment_id, count, self._backend)
        greedy = explore.greedy_actions
        length = fitting_segment_length(
            spec, count, run.segment_length, run.max_segment_bytes, greedy=greedy is not None
        )
        self._rollout = Rollout(
            environments,
            PolicyTurns(self._slot, run.max_steps_per_policy, self.counts),
            explore,
            length,
            environment_seed % 2**31,
            self.counts,
            self._own_call,
            greedy,
        )
        self._subscribe(spec, run.scheme, count, greedy=greedy is not None)
        self._activity, acted = "acting", False
        while not self._stop.is_set():
            segment = self._rollout.collect(self._stop)
            if segment is not None:
                if not acted:
                    acted = True
                    span = segment.spans[0]
                    _log.info("has acted for the first time, with version %d %s", span.version, span.scheme)
                uploader.put(segment, self._stop)
        environments.close()

    def _evaluate_forever(self, spec: EnvironmentSpec, membership: Membership, uploader: Uploader) -> None:
        run = membership.run
        evaluator = self._evaluator(spec, run.evaluation_episodes, self._own_call)
        seeds = np.random.default_rng(membership.seed)
        sequence = 0
        hold = PolicyHold(self._quantizer)
        self._subscribe(spec, run.scheme, evaluator.environments, wanted=self._is_due)
        while not self._stop.is_set():
            self._activity = "waiting for a policy"
            policy = self._slot.wait(self._is_due, _WAIT_S)
            if policy is None:
                self._schedule.try_again()
                self._look_again()
                continue
            version = policy.descriptor.version
            if not hold.take(version):
                self._schedule.lost(version)
                continue
            self._schedule.begun(policy.descriptor)
            self._activity = f"evaluating version {version}"
            seed = int(seeds.integers(2**31))
            try:
                evaluation = evaluator.run(policy, seed, sequence + 1, self._stop, lambda _: hold.renew())
            except UnavailableError:
                break
            sequence += 1
            self._schedule.ended(evaluation.mean_return)
            uploader.put(evaluation, self._stop)
        evaluator.close()

    def _is_due(self, descriptor: PolicyDescriptor) -> bool:
        if isinstance(self._subscription, AutoSubscription) and not self._subscription.settled(descriptor):
            return False
        return self._schedule.is_due(descriptor)

    def _subscribe(
        self,
        spec: EnvironmentSpec,
        scheme: str,
        batch: int,
        greedy: bool = False,
        wanted: Callable[[PolicyDescriptor], bool] = lambda descriptor: True,
    ) -> None:
        """Have policies in the slot that are ready to act; those that are not `wanted` need not be there."""
        self._activity = "waiting for a policy"

        check = PolicyCheck(
            lambda policy: load_policy(policy, spec, batch), self._slot.wake, bool(spec.discrete_actions), self._avoided
        )

        def load(policy: Policy) -> OnnxPolicy:
            return check.watch(load_policy(policy, spec, batch, greedy))

        if scheme == AUTO:
            choose = partial(self._select, spec)
            # It chooses by what is in the slot, whatever is wanted.
            self._subscription = AutoSubscription(
                self._connect, self._slot, load, choose, self._fail, check, self.counts
            )
        else:
            self._subscription = FallbackSubscription(
                self._connect, scheme, self._slot, load, self._fail, check, self.counts, wanted
            )
        self._check = check
        self._subscription.start()

    def _look_again(self) -> None:
        """What is wanted may have changed."""
        self._slot.wake()
        if isinstance(self._subscription, FallbackSubscription):
            self._subscription.look_again()

    def _report(self, peek: bool = False) -> ActorReport:
        policy = self._slot.peek()
        steps = self._rollout.environment_steps if self._rollout else 0
        now = time.monotonic()
        then, before = self._last_report
        if not peek:
            self._last_report = (now, steps)
        return ActorReport(
            policy_version=policy.descriptor.version if policy else 0,
            scheme=policy.descriptor.effective_scheme if policy else "",
            environment_steps=steps,
            steps_per_second=(steps - before) / (now - then) if now > then else 0.0,
            queued_segments=self._uploader.queued if self._uploader else 0,
            activation_seconds=() if peek else self._slot.take_activations(),
            process=measure_process(self.name, self.role, self._node),
            waited_seconds=self._uploader.waited_s if self._uploader else 0.0,
            avoided_scheme=self._subscription.avoided if self._subscription else "",
            scheme_error=self._check.newest.error if self._check and self._check.newest else 0.0,
        )

    def _run_is_over(self) -> None:
        _log.info("the run is over")
        self.drain(flush_s=0.0)
        self.abandon()

    def _evaluate_soon(self, version: int) -> None:
        self._schedule.want(version)
        self._look_again()

    def _fail(self, error: BaseException) -> None:
        self._fault = self._fault or error
        self.drain(flush_s=0.0)

    def _leave(self) -> None:
        self._activity = "leaving"
        self._watchdog.close()
        if self._subscription is not None:
            self._subscription.close()
        self._quantizer.close()
        if self._uploader is not None:
            self._unsent = self._uploader.flush(self._flush_s)
            if self._unsent:
                _log.info("%d segments were not stored before the end", self._unsent)
            self._uploader.close()
