"""An actor inside another program: the explorer and the evaluator of a run as threads of that program's process."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium

from actor_service.counts import ActorCounts
from actor_service.environments import CALLER, make_environments
from actor_service.environments.gymnasium_backend import Factory
from actor_service.environments.shared import SharedEnvironment, User
from actor_service.environments.trial import first_step
from actor_service.roles.actor_role import Host
from actor_service.roles.evaluation import MOST_ENVIRONMENTS, EvaluationEpisodes, batch_size
from actor_service.roles.evaluator import Evaluator
from actor_service.roles.explorer import Explorer
from actor_service.roles.participant import Participant
from actorq.client import LearnerClient, QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.policy import Policy
from actorq.domain.processes import ProcessStats
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Evaluation
from actorq.errors import UserError
from actorq.telemetry.process_stats import measure_process
from actorq.watchdog import Watched

_JOIN_S = 10.0
# Attribute of an open environment that a run uses.
_CLAIMED = "actorq_has_it"


class OwnEnvironment:
    """An environment that only this process can make: a class, a function, or a single open object.

    name: for messages. The id is `caller/NAME`.
    registered_id: the id of an open object in Gymnasium; None if it has none.
    """

    def __init__(self, name: str, given: Factory | gymnasium.Env[Any, Any]) -> None:
        self.environment_id = f"{CALLER}/{name}"
        known = given.spec if isinstance(given, gymnasium.Env) else None
        self.registered_id = None if known is None else known.id
        self._shared = SharedEnvironment(given) if isinstance(given, gymnasium.Env) else None
        self._factory = given

    @staticmethod
    def is_environment(given: object) -> bool:
        """Whether an object is an open environment."""
        return isinstance(given, gymnasium.Env)

    def claim(self) -> None:
        """Reserve an open environment for one run, until `free`. Raises UserError while another run has it."""
        if self._shared is not None:
            if getattr(self._shared.environment, _CLAIMED, False):
                raise UserError(
                    "environment: another run uses this object; give a function that makes a new one, or wait for "
                    "the end of that run"
                )
            setattr(self._shared.environment, _CLAIMED, True)

    def free(self) -> None:
        """Let another run have an open environment."""
        if self._shared is not None:
            setattr(self._shared.environment, _CLAIMED, False)

    @property
    def is_single(self) -> bool:
        """Whether there is only one object, which the explorer and the evaluator share."""
        return self._shared is not None

    def user(self) -> tuple[Factory, Callable[[], None]]:
        """A factory for one role, and the function to call while the role does not need the environment."""
        if self._shared is not None:
            user = User(self._shared)
            return user.make, user.release
        assert not isinstance(self._factory, gymnasium.Env)
        return self._factory, lambda: None

    def describe(self, config: RunConfig) -> EnvironmentSpec:
        """The spec of the environment, after a reset and one step. Raises UserError when the environment does not work.

        config: with the environment's backend, arguments and wrappers.
        """
        factory, release = self.user()
        environments = make_environments(
            self.environment_id, 1, config.environment_backend, config.environment_arguments, factory=factory
        )
        try:
            first_step(environments)
        finally:
            environments.close()
            release()
        return environments.spec

    def evaluate(
        self, spec: EnvironmentSpec, policy: Policy, episodes: int, each: int, seed: int, stop: threading.Event
    ) -> Evaluation:
        """Greedy episodes of one policy. Blocks. Raises UnavailableError on `stop`.

        each: environments per call of the policy, as in its actors: dynamic int8 ranges depend on them.
        """
        factory, release = self.user()
        most = 1 if self.is_single else MOST_ENVIRONMENTS
        each = min(each, episodes, most)
        environments = make_environments(
            spec.environment_id,
            batch_size(episodes, each, most),
            arguments=spec.environment_arguments.for_evaluations(),
            evaluated=True,
            factory=factory,
        )
        runner = EvaluationEpisodes(environments, episodes, ActorCounts(), rows=each * spec.agent_count)
        try:
            return runner.run(runner.load(policy), seed, 0, stop)
        finally:
            runner.close()
            release()


class _ThreadClock:
    """CPU seconds of one thread, which any thread may read."""

    def __init__(self) -> None:
        self._clock: int | None = None
        self._seconds = 0.0

    def begin(self) -> Callable[[], float]:
        """Measure the calling thread. Returns `seconds`."""
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        return self.seconds

    def seconds(self) -> float:
        """The CPU seconds so far. After the end of the thread: the seconds at the last call before the end."""
        if self._clock is not None:
            try:
                self._seconds = time.clock_gettime(self._clock)
            except OSError:
                self._clock = None
        return self._seconds


class _NoGuard:
    """Checks nothing: the program that owns the process decides how long a call may last."""

    def watch(self) -> Watched:
        """A context without effect."""
        return Watched(time.monotonic)

    def start(self) -> None:
        """Check nothing."""

    def close(self) -> None:
        """Nothing to stop."""


@dataclass(eq=False)
class EmbeddedActor:
    """Takes part in a run with one explorer and one evaluator, on threads of this process.

    config: of the run. learner, quantizer: addresses.
    on_end: called once for each role, on its thread, with its error or None.
    """

    environment: OwnEnvironment
    config: RunConfig
    learner: str
    quantizer: str
    on_end: Callable[[BaseException | None], None]

    def __post_init__(self) -> None:
        self._evaluators_cpu = _ThreadClock()
        self._cpu_before = time.process_time()
        self._clients: list[LearnerClient] = []
        self._ended = threading.Semaphore(0)
        self._roles: list[Participant] = [
            self._role(Explorer, "actor-0", "actor", measure=self._measure_explorer),
            self._role(
                Evaluator,
                *("evaluator", "evaluator"),
                measure=self._measure_evaluator,
                cpu_clock=self._evaluators_cpu.begin,
                # The evaluator's budget is a share of one core, which the explorer uses too.
                processors=1,
            ),
        ]

    def start(self) -> None:
        """Join the run and start to act."""
        for role in self._roles:
            role.start()

    def close(self, flush_s: float = 0.0) -> None:
        """Stop acting, send the queued segments for at most `flush_s` seconds, and wait for the threads.

        A thread whose environment call does not return is abandoned. It is a daemon thread.
        """
        for role in self._roles:
            role.drain(flush_s)
            if not flush_s:
                role.abandon()
        deadline = time.monotonic() + flush_s + _JOIN_S
        for _ in self._roles:
            self._ended.acquire(timeout=max(0.0, deadline - time.monotonic()))
        for client in self._clients:
            client.close()

    def _role(self, kind: type[Participant], name: str, certified: str, **host: Any) -> Participant:
        config = self.config
        certificates = config.transport.certificates_of(certified)
        learner = LearnerClient(self.learner, certificates)
        self._clients.append(learner)
        factory, release = self.environment.user()
        return kind(
            Host(
                name,
                partial(QuantizerClient, self.quantizer, certificates),
                self._role_ended,
                backend=config.environment_backend,
                factory=factory,
                most_environments=1 if self.environment.is_single else MOST_ENVIRONMENTS,
                watchdog=lambda limit_s: _NoGuard(),
                after_evaluation=release,
                **host,
            ),
            learner,
        )

    def _role_ended(self, fault: BaseException | None) -> None:
        self._ended.release()
        self.on_end(fault)

    def _measure_evaluator(self, name: str, role: str, node: str) -> ProcessStats:
        return replace(measure_process(name, role, node), cpu_seconds=self._evaluators_cpu.seconds())

    def _measure_explorer(self, name: str, role: str, node: str) -> ProcessStats:
        """The process's resource use since the start of the run, without the evaluator's thread."""
        stats = measure_process(name, role, node)
        used = stats.cpu_seconds - self._cpu_before - self._evaluators_cpu.seconds()
        return replace(stats, cpu_seconds=max(0.0, used))
