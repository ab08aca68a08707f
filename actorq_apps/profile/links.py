"""Measures the costs of sending transitions and versions between the real services.

A learner, a quantizer and the actors run for some seconds. First the learner is paused, so it only receives and
stores. The rate limiter's error buffer, or the on-policy queue, has room for the transitions of that time. Once it is
full, the learner resumes, and the actors keep pace with it as in any run.
"""

import math
import os
import queue
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

from actorq.client import LearnerClient
from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.config.sections import QueueConfig
from actorq.domain.policy import FP32
from actorq.domain.status import RunStatus
from actorq.errors import ActorQError
from actorq_apps.local.child import Child
from actorq_apps.local.events import ChildExited
from actorq_apps.local.forkserver import ForkServers
from actorq_apps.local.services import Kind, module_command, reserved_addresses
from actorq_apps.local.watching import StatusWatch

# Timeout of each step of the measurement. One update of a large network may take seconds.
_PATIENCE_S = 60.0
_STATUS_PERIOD_S, _END_S = 0.2, 2.0
# Longest time to fill queues and warm caches. A shorter measurement warms up for its own length.
_WARM_UP_S = 0.5
# Actors may be faster than in the earlier measurement. They must not run out of credit.
_MARGIN = 2
# Minimum processor time of an actor per segment message. With short segments it is most of an actor's work.
_SEGMENT_S = 2e-4
# With fewer versions, the quantizer's cost in a window is mostly idle cost.
_FEWEST_VERSIONS = 10


@dataclass(frozen=True)
class Counters:
    """The counters of a run at one time, or their growth in a window.

    at: seconds of the clock. starved_s: seconds in which the trainer waited for data.
    actors_s, learner_s, quantizer_s: processor seconds; actors_s is the sum over actors.
    """

    at: float
    starved_s: float
    steps: int
    updates: int
    versions: int
    actors_s: float
    learner_s: float
    quantizer_s: float

    def since(self, before: "Counters") -> "Counters":
        """The growth since an earlier time."""
        return Counters(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


@dataclass(frozen=True)
class LinkFigures:
    """Counters of `actors` actors, a learner and a quantizer in fp32 in two windows. Costs are processor seconds.

    paused: while the learner only stores, so that actors do not wait. training: while everything runs.
    """

    actors: int
    paused: Counters
    training: Counters

    @property
    def actor_s(self) -> float:
        """Seconds of an actor per transition while the learner is paused."""
        return self.paused.actors_s / self.paused.steps

    @property
    def learner_s(self) -> float:
        """Seconds of the learner per transition while it is paused."""
        return self.paused.learner_s / self.paused.steps

    @property
    def update_s(self) -> float:
        """Seconds of the learner per update while all services run: with a share of a version, without transitions."""
        return max(0.0, self.training.learner_s - self.training.steps * self.learner_s) / self.training.updates

    @property
    def learner_share(self) -> float:
        """Cores that the learner keeps busy while its trainer does not wait for data, at most 1.

        Its threads wait for the interpreter lock, and for processors that other processes use.
        """
        return min(1.0, self.training.learner_s / max(1e-9, self.training.at - self.training.starved_s))

    @property
    def quantizer_version_s(self) -> float | None:
        """Seconds of the quantizer per version; None with too few versions."""
        return self.training.quantizer_s / self.training.versions if self._enough_versions else None

    @property
    def actor_version_s(self) -> float | None:
        """Seconds of an actor per version, with the slowdown of its steps in training; None with too few versions."""
        if not self._enough_versions:
            return None
        excess = self.training.actors_s - self.training.steps * self.actor_s
        return max(0.0, excess) / (self.training.versions * self.actors)

    def slowdown(self, version_s: float) -> float:
        """Ratio of an actor's time per transition with training to that without.

        A version takes `version_s`. With enough versions the ratio is 1, because `actor_version_s` then includes the
        slowdown.
        """
        if self._enough_versions or not self.training.steps:
            return 1.0
        stepping = self.training.actors_s - self.training.versions * self.actors * version_s
        return max(1.0, stepping / (self.training.steps * self.actor_s))

    @property
    def _enough_versions(self) -> bool:
        return self.training.versions >= _FEWEST_VERSIONS


@dataclass(frozen=True)
class _Services:
    """The processes and their messages: statuses of the learner, and exits."""

    children: Mapping[str, Child]
    messages: "queue.SimpleQueue[RunStatus | ChildExited]"

    def wait_for(self, wanted: Callable[[RunStatus], bool]) -> Counters:
        """The counters of the first status that `wanted` accepts. Raises ActorQError when a process ends before."""
        asked = time.monotonic()
        while True:
            try:
                message = self.messages.get(timeout=max(0.0, asked + _PATIENCE_S - time.monotonic()))
            except queue.Empty:
                raise ActorQError(f"the services made no progress within {_PATIENCE_S:g} s") from None
            if isinstance(message, ChildExited):
                raise self.children[message.name].failure(message.code, "while it was measured")
            if wanted(message):
                return self._counters(message)

    def after(self, seconds: float, steps: int = -1) -> Counters:
        """The counters after `seconds` seconds, once more than `steps` transitions are stored."""
        moment = time.monotonic() + seconds
        return self.wait_for(lambda status: time.monotonic() >= moment and status.environment_steps > steps)

    def when_blocked(self) -> None:
        """Wait until the actors stop for lack of credit."""
        steps = -1

        def stands_still(status: RunStatus) -> bool:
            nonlocal steps
            before, steps = steps, status.environment_steps
            return steps == before

        self.wait_for(stands_still)

    def after_update(self, seconds: float) -> Counters:
        """The counters after the first update that ends after `seconds` seconds. Only whole updates count."""
        updates = self.after(seconds).updates
        return self.wait_for(lambda status: status.updates > updates)

    def _counters(self, status: RunStatus) -> Counters:
        at, counts = time.monotonic(), (status.environment_steps, status.updates, status.policy_version)
        times = {name: psutil.Process(child.pid).cpu_times() for name, child in self.children.items()}
        spent = {name: each.user + each.system for name, each in times.items()}
        learner, quantizer = spent.pop("learner"), spent.pop("quantizer")
        return Counters(at, status.starved_s, *counts, sum(spent.values()), learner, quantizer)


def measure_links(
    config: RunConfig,
    folder: Path,
    seconds: float,
    step_s: float,
    rollout_size: int | None,
    frame_stack: int,
    servers: ForkServers | None = None,
    agents: int = 1,
) -> LinkFigures:
    """Run the services for about `seconds` after their start. Raises ActorQError when one of them fails.

    step_s: seconds per transition in the actor's loop. rollout_size: of an on-policy algorithm; None for others.
    """
    path = folder / "links.yaml"
    # More actors than cores would only share the cores.
    actors = min(config.actors, len(os.sched_getaffinity(0)))
    warm_up_s = min(_WARM_UP_S, seconds)
    step_s += _SEGMENT_S / (config.actor.segment_length * config.environments_per_actor)
    steps = _MARGIN * actors * (warm_up_s + seconds / 2) / step_s
    short = short_run(config, actors, steps, rollout_size, frame_stack, agents)
    path.write_text(settings.to_yaml(short), encoding="utf-8")
    with ExitStack() as stack:
        learner, quantizer = stack.enter_context(reserved_addresses(2))
        messages: queue.SimpleQueue[RunStatus | ChildExited] = queue.SimpleQueue()
        children: dict[str, Child] = {}
        for name, command in _commands(path, folder, learner, quantizer, actors).items():
            children[name] = Child(name, command, folder / f"{name}.log", messages.put, servers=servers)
            stack.callback(children[name].end, _END_S)
        stack.callback(StatusWatch(learner, None, messages.put, _STATUS_PERIOD_S).close)
        client = stack.enter_context(LearnerClient(learner))
        services = _Services(children, messages)
        services.wait_for(lambda status: status.environment_steps > 0)
        client.pause()
        began = services.after(warm_up_s)
        ended = services.after(seconds / 2, began.steps)
        services.when_blocked()
        client.resume()
        first = services.after_update(warm_up_s)
        return LinkFigures(actors, ended.since(began), services.after_update(seconds / 2).since(first))


def _commands(config: Path, folder: Path, learner: str, quantizer: str, actors: int) -> dict[str, tuple[str, ...]]:
    given = ("--config", str(config), "--lifeline")
    state = ("--run-directory", str(folder / "links"), "--quantizer", quantizer, "--listen", learner)
    store = ("--store", str(folder / "links-policies"), "--listen", quantizer)
    actor = module_command(Kind.ACTOR, *given, "--learner", learner, "--quantizer", quantizer)
    return {
        "learner": module_command(Kind.LEARNER, *given, *state),
        "quantizer": module_command(Kind.QUANTIZER, *given, *store),
        **{f"actor-{index}": actor for index in range(actors)},
    }


def short_run(
    config: RunConfig, actors: int, steps: float, rollout_size: int | None, frame_stack: int, agents: int = 1
) -> RunConfig:
    """The run with actors that always use their policy, and do not wait in the first `steps` transitions."""
    ratio = config.rate_limiter.samples_per_insert
    # The run's own buffer is not used: with few samples per insert, actors need minutes to fill it. The first two
    # numbers are the minimum of the rate limiter.
    buffer = max(2.0, 2 * ratio, steps * ratio)
    waiting, capacity = config.queue, config.replay.capacity
    if rollout_size is not None:
        rollouts = waiting.waiting_rollouts + steps / rollout_size
        lag, normalizes = waiting.max_policy_lag + math.ceil(rollouts), waiting.normalize_rewards
        waiting = QueueConfig(waiting_rollouts=rollouts, max_policy_lag=lag, normalize_rewards=normalizes)
        length, environments = config.actor.segment_length, config.environments_per_actor
        capacity = max(capacity, agents * waiting.waiting_rows(length, environments, rollout_size, frame_stack))
    return config.model_copy(
        update={
            "actors": actors,
            "scheme": FP32,
            "max_environment_steps": 10**12,
            "target_return": 1e30,
            "queue": waiting,
            "replay": config.replay.model_copy(update={"min_size": 1, "capacity": capacity}),
            "rate_limiter": config.rate_limiter.model_copy(update={"error_buffer": buffer}),
            "exploration": config.exploration.model_copy(update={"random_steps": 0}),
            "checkpoint": config.checkpoint.model_copy(update={"period_s": 1e9}),
            "actor": config.actor.model_copy(update={"max_steps_per_policy": 0}),
            "transport": config.transport.model_copy(update={"certificates": None, "drain_s": 1.0}),
        }
    )
