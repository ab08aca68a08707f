"""Measures the cost of a transition and of a version on their ways between the real services.

A learner, a quantizer and one actor run for some seconds. At first the learner is paused, so that it only receives and
stores. The rate limiter's error buffer, or the on-policy queue, has room for the actor's transitions in that time. Once
it is full, the learner resumes, and the actor keeps step with it as in any run.
"""

import math
import queue
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from actorq.client import LearnerClient
from actorq.config import settings
from actorq.config.on_policy import waiting_rows
from actorq.config.run_config import RunConfig
from actorq.config.sections import QueueConfig
from actorq.domain.policy import FP32
from actorq.domain.status import RunStatus
from actorq.errors import ActorQError
from actorq.local.child import Child
from actorq.local.events import ChildExited
from actorq.local.services import Kind, module_command, reserved_addresses
from actorq.local.watching import StatusWatch

# Timeout of each step of the measurement. One update of a large network may take seconds.
_PATIENCE_S = 60.0
_STATUS_PERIOD_S, _END_S = 0.2, 2.0
# Time to fill queues and warm caches.
_WARM_UP_S = 0.5
# An actor may be faster than was measured before. It must not run out of credit.
_MARGIN = 4
# With fewer versions, the quantizer's cost in a window is mostly idle cost.
_FEWEST_VERSIONS = 10


@dataclass(frozen=True)
class LinkFigures:
    """Costs in processor seconds. `actor_s`, `learner_s`: per transition while the learner is paused.

    update_s: of the learner per update while everything runs, without the cost of transitions.
    quantizer_version_s, actor_version_s: per version in fp32 while everything runs; None with too few versions.
    steps_per_s: transitions per second of an actor that does not wait, beside the paused learner.
    """

    actor_s: float
    learner_s: float
    steps_per_s: float
    update_s: float
    quantizer_version_s: float | None
    actor_version_s: float | None


@dataclass(frozen=True)
class _Look:
    """The run's counters at one time, and the processor seconds of its processes."""

    at: float
    steps: int
    updates: int
    versions: int
    cpu: dict[str, float]


class _Services:
    """The processes and their messages: statuses of the learner, and exits."""

    def __init__(self, children: Mapping[str, Child], told: "queue.SimpleQueue[RunStatus | ChildExited]") -> None:
        self._children = children
        self._told = told

    def look(self, wanted: Callable[[RunStatus], bool]) -> _Look:
        """Look at the first status that is wanted. Raises ActorQError when a process ends before."""
        asked = time.monotonic()
        while True:
            try:
                told = self._told.get(timeout=max(0.0, asked + _PATIENCE_S - time.monotonic()))
            except queue.Empty:
                raise ActorQError(f"the services made no progress within {_PATIENCE_S:g} s") from None
            if isinstance(told, ChildExited):
                raise self._children[told.name].failure(told.code, "while it was measured")
            if wanted(told):
                return _Look(
                    time.monotonic(), told.environment_steps, told.updates, told.policy_version, self._cpu_seconds()
                )

    def after(self, seconds: float, steps: int = -1) -> _Look:
        """Look after `seconds` seconds, once more than `steps` transitions are stored."""
        moment = time.monotonic() + seconds
        return self.look(lambda status: time.monotonic() >= moment and status.environment_steps > steps)

    def when_blocked(self) -> None:
        """Wait until the actor stops for lack of credit."""
        steps = -1

        def stands_still(status: RunStatus) -> bool:
            nonlocal steps
            before, steps = steps, status.environment_steps
            return steps == before

        self.look(stands_still)

    def after_update(self, seconds: float) -> _Look:
        """Look just after the first update that ends after `seconds` seconds, so that only whole updates count."""
        updates = self.after(seconds).updates
        return self.look(lambda status: status.updates > updates)

    def _cpu_seconds(self) -> dict[str, float]:
        times = {name: psutil.Process(child.pid).cpu_times() for name, child in self._children.items()}
        return {name: each.user + each.system for name, each in times.items()}


def measure_links(
    config: RunConfig, folder: Path, seconds: float, step_s: float, rollout_size: int | None, frame_stack: int
) -> LinkFigures:
    """Run the services for about `seconds` after their start. Raises ActorQError when one of them fails.

    step_s: seconds per transition in the actor's loop. rollout_size: of an on-policy algorithm; None for others.
    """
    path = folder / "links.yaml"
    steps = _MARGIN * (_WARM_UP_S + seconds / 2) / step_s
    path.write_text(settings.to_yaml(_short_run(config, steps, rollout_size, frame_stack)), encoding="utf-8")
    with ExitStack() as stack:
        learner, quantizer = stack.enter_context(reserved_addresses(2))
        told: queue.SimpleQueue[RunStatus | ChildExited] = queue.SimpleQueue()
        children: dict[str, Child] = {}
        for name, command in _commands(path, folder, learner, quantizer).items():
            children[name] = Child(name, command, folder / f"{name}.log", told.put)
            stack.callback(children[name].end, _END_S)
        stack.callback(StatusWatch(learner, None, told.put, _STATUS_PERIOD_S).close)
        client = stack.enter_context(LearnerClient(learner))
        services = _Services(children, told)
        services.look(lambda status: status.environment_steps > 0)
        client.pause()
        began = services.after(_WARM_UP_S)
        ended = services.after(seconds / 2, began.steps)
        services.when_blocked()
        client.resume()
        return _figures(began, ended, services.after_update(_WARM_UP_S), services.after_update(seconds / 2))


def _commands(config: Path, folder: Path, learner: str, quantizer: str) -> dict[str, tuple[str, ...]]:
    given = ("--config", str(config), "--lifeline")
    state = ("--run-directory", str(folder / "links"), "--quantizer", quantizer, "--listen", learner)
    store = ("--store", str(folder / "links-policies"), "--listen", quantizer)
    return {
        "learner": module_command(Kind.LEARNER, *given, *state),
        "quantizer": module_command(Kind.QUANTIZER, *given, *store),
        "actor": module_command(Kind.ACTOR, *given, "--learner", learner, "--quantizer", quantizer),
    }


def _short_run(config: RunConfig, steps: float, rollout_size: int | None, frame_stack: int) -> RunConfig:
    """The run with one actor that always acts with its policy, and does not wait in the first `steps` transitions."""
    ratio = config.rate_limiter.samples_per_insert
    buffer = max(config.rate_limiter.error_buffer, steps * ratio)
    waiting, capacity = config.queue, config.replay.capacity
    if rollout_size is not None:
        rollouts = waiting.waiting_rollouts + steps / rollout_size
        lag = waiting.max_policy_lag + math.ceil(rollouts)
        waiting = QueueConfig(
            waiting_rollouts=rollouts, max_policy_lag=lag, normalize_rewards=waiting.normalize_rewards
        )
        rows = waiting_rows(waiting, config.actor, config.environments_per_actor, rollout_size, frame_stack)
        capacity = max(capacity, rows)
    return config.model_copy(
        update={
            "actors": 1,
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


def _figures(began: _Look, ended: _Look, first: _Look, last: _Look) -> LinkFigures:
    """The figures from a window with a paused learner, and from a window in which it trains."""
    stored = ended.steps - began.steps
    actor_s, learner_s = ((ended.cpu[name] - began.cpu[name]) / stored for name in ("actor", "learner"))
    steps, updates, versions = last.steps - first.steps, last.updates - first.updates, last.versions - first.versions
    spent = {name: last.cpu[name] - first.cpu[name] for name in last.cpu}
    enough = versions >= _FEWEST_VERSIONS
    return LinkFigures(
        actor_s=actor_s,
        learner_s=learner_s,
        steps_per_s=stored / (ended.at - began.at),
        update_s=max(0.0, spent["learner"] - steps * learner_s) / updates,
        quantizer_version_s=spent["quantizer"] / versions if enough else None,
        actor_version_s=max(0.0, spent["actor"] - steps * actor_s) / versions if enough else None,
    )
