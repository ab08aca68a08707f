"""The common base of all actor roles: environment spec, newest policy, and evaluation on request."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from actor_service.counts import ActorCounts
from actor_service.environments import Backend, Environments, make_environments
from actor_service.policies.policy import LoadPolicy, PolicySlot, load_policy
from actor_service.policies.selection import Selection, candidates, select
from actor_service.roles.evaluation import MOST_ENVIRONMENTS, EvaluationEpisodes, batch_size
from actor_service.roles.video import Video
from actor_service.uploader import Uploader
from actorq.arithmetic import Arithmetic, arithmetic
from actorq.client import QuantizerClient
from actorq.domain.environments import EnvironmentArguments
from actorq.domain.policy import AUTO, FP32, Policy
from actorq.domain.processes import ProcessStats
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import ActorReport, ActorSelfStatus, Sampling
from actorq.domain.trajectory import Episode, Evaluation, Role
from actorq.errors import ConflictError, ExhaustedError
from actorq.telemetry.process_stats import measure_process
from actorq.watchdog import Guard, Watchdog, Watched
from actorq.wire import EvaluateRequest

_log = logging.getLogger(__name__)
_watchdog = partial(Watchdog, "an environment", "actor.environment_timeout_s")


@dataclass(frozen=True)
class Host:
    """The objects and functions that a process passes to its actor.

    connect: opens a client of the quantizer. Each stream of policies has its own client.
    on_end: called once, from any thread, when the actor has ended; with its error or None.
    backend: the library that steps the environments.
    environment_timeout_s: longest call to the environments before the watchdog ends the process.
    arithmetic: returns the products that this processor computes exactly.
    load: makes sessions of policies.
    uploader: uploads items. Benchmarks replace both to measure an actor.
    factory: makes an environment that only this process can make.
    most_environments: most environments of an evaluation.
    watchdog: makes a watchdog for hanging environment calls, with their limit in seconds. If the actor is the whole
        process, the watchdog ends the process.
    cpu_clock: called on the thread of a role; returns the clock of the CPU seconds that the role uses.
    processors: number of processors of the machine; 1 if the roles share Python's lock.
    measure: the resources of a role with this name, role and node.
    after_evaluation: called when no step follows before the next reset of the evaluation's environments.
    """

    name: str
    connect: Callable[[], QuantizerClient]
    on_end: Callable[[BaseException | None], None]
    node: str = ""
    backend: Backend = "python"
    environment_timeout_s: float = 60.0
    arithmetic: Callable[[], Arithmetic] = arithmetic
    load: LoadPolicy = load_policy
    uploader: type[Uploader] = Uploader
    factory: Callable[..., Any] | None = None
    most_environments: int = MOST_ENVIRONMENTS
    watchdog: Callable[[float], Guard] = _watchdog
    cpu_clock: Callable[[], Callable[[], float]] = lambda: time.process_time
    processors: int = field(default_factory=lambda: os.cpu_count() or 1)
    measure: Callable[[str, str, str], ProcessStats] = measure_process
    after_evaluation: Callable[[], None] = lambda: None


class ActorRole:
    """The base class of all roles of an actor process."""

    role: ClassVar[Role]
    # The file for a video of each requested evaluation. With a video, the episodes run one after the other.
    _record: Path | None = None
    # How evaluations draw actions; empty for greedy actions.
    _sampling: Sampling = ""

    def __init__(self, host: Host) -> None:
        self.name = host.name
        self.counts = ActorCounts()
        self._host = host
        self._arithmetic = host.arithmetic()
        self._quantizer = self._open_client()
        self._stop = threading.Event()
        self._slot = PolicySlot(self.counts)
        self._spec: EnvironmentSpec | None = None
        # Number of environments that the run's actors step as one batch. `auto` measures with this batch.
        self._environments = 0
        self._watchdog = host.watchdog(host.environment_timeout_s)
        self._own_call, self._requested_call = self._watchdog.watch(), self._watchdog.watch()
        self._evaluating = threading.Lock()
        self._leaving = threading.Event()
        self._activity = "starting"
        # Whether the learner has reported the run's end. A drained actor does not know it.
        self.run_is_over = False

    def _open_client(self) -> QuantizerClient:
        """A client whose policies this processor computes exactly."""
        client = self._host.connect()
        client.weight_encoding = self._arithmetic.weight_encoding
        return client

    @property
    def acknowledged(self) -> int:
        """Number of items that the learner has stored."""
        return 0

    def start(self) -> None:
        """Start the actor's threads."""
        self._watchdog.start()

    def drain(self, flush_s: float) -> None:
        """Stop acting, send the queued items for at most `flush_s` seconds, then end. Returns at once."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Do not wait for the queued items in a drain, because no learner stores them."""

    def drained(self, timeout_s: float) -> tuple[int, int]:
        """Wait for the end of a drain. Returns the numbers of segments stored since its start and not sent."""
        return 0, 0

    def status(self) -> ActorSelfStatus:
        """The actor's status."""
        activity, faults = self._activity, self.counts.environment_restarts.value + self.counts.environment_resets.value
        if faults:
            activity += f" (environments failed in {faults:,} steps)"
        return ActorSelfStatus(self.name, activity, self._report(), self._spec)

    def evaluate(
        self, wanted: EvaluateRequest, stop: threading.Event, on_episode: Callable[[Episode], None]
    ) -> Evaluation:
        """Run the wanted episodes in addition to the actor's own work. Blocks.

        Raises ConflictError without an environment, ExhaustedError during another evaluation, and UnavailableError on
        `stop`.
        """
        if self._spec is None:
            raise ConflictError(f"{self.name} has no environment yet (state: {self._activity})")
        if not self._evaluating.acquire(blocking=False):
            raise ExhaustedError(f"{self.name} runs an evaluation already; try again when it is done")
        try:
            # The call has as many rows as the actors' calls, because the dynamic int8 ranges depend on them.
            count = self._environments
            with closing(self._episodes(self._spec, wanted.episodes, self._requested_call, count)) as runner:
                policy = runner.load(self._policy(self._spec, wanted.scheme or self._acting_scheme, wanted.version))
                if self._record is None:
                    return runner.run(policy, wanted.seed, sequence=0, stop=stop, on_episode=on_episode)
                with Video(self._record, runner.environments.steps_per_second) as video:
                    return runner.run(policy, wanted.seed, 0, stop, on_episode, video.add)
        finally:
            self._host.after_evaluation()
            self._evaluating.release()
            if self._leaving.is_set():
                self._close_watchdog()

    def _close_watchdog(self) -> None:
        """Close the watchdog when no requested evaluation runs any more. Until then its environments may still hang."""
        self._leaving.set()
        if self._evaluating.acquire(blocking=False):
            self._watchdog.close()
            self._evaluating.release()

    @property
    def _acting_scheme(self) -> str:
        """The scheme that the run's actors use on this processor."""
        raise NotImplementedError

    def _episodes(
        self, spec: EnvironmentSpec, episodes: int, watched: Watched, each: int = MOST_ENVIRONMENTS
    ) -> EvaluationEpisodes:
        """Episodes in a batch of environments, with their own rewards. each: most environments per call of a policy."""
        recorded, most = self._record is not None, self._host.most_environments
        each = 1 if recorded else min(each, episodes, most)
        count = 1 if recorded else batch_size(episodes, each, most)
        made_with = spec.environment_arguments.for_evaluations()
        with watched:
            environments = self._make(spec.environment_id, count, made_with, rendered=recorded, evaluated=True)
        rows = each * spec.agent_count
        return EvaluationEpisodes(environments, episodes, self.counts, watched, self._sampling, rows)

    def _make(
        self,
        environment_id: str,
        count: int,
        arguments: EnvironmentArguments,
        *,
        rendered: bool = False,
        evaluated: bool = False,
    ) -> Environments:
        backend, factory = self._host.backend, self._host.factory
        return make_environments(
            environment_id, count, backend, arguments, rendered=rendered, evaluated=evaluated, factory=factory
        )

    def _policy(self, spec: EnvironmentSpec, scheme: str, version: int) -> Policy:
        """A policy of the quantizer. For "auto", the policy of the fastest scheme on this processor."""
        if scheme != AUTO:
            return self._quantizer.get(scheme, version)
        policies, refused = candidates(self._quantizer.get, self._arithmetic.inexact_schemes, version, True)
        if not policies and refused:
            raise [*refused.values()][-1]
        selection = self._select(spec, policies, FP32)
        _log.info("auto: %s", selection)
        return next(policy for policy in policies if policy.descriptor.scheme == selection.scheme)

    def _select(self, spec: EnvironmentSpec, policies: Iterable[Policy], incumbent: str) -> Selection:
        rows = self._environments * spec.agent_count
        return select(policies, spec.policy_observations, rows, spec.acting_size, incumbent)

    def _report(self) -> ActorReport:
        policy = self._slot.peek()
        return ActorReport(
            policy_version=policy.descriptor.version if policy else 0,
            served_version=self._slot.served_version,
            scheme=policy.descriptor.effective_scheme if policy else "",
            environment_steps=0,
            steps_per_second=0.0,
            queued_segments=0,
            activation_seconds=(),
            process=self._host.measure(self.name, self.role, self._host.node),
        )
