"""What a transition and a version cost on their ways between the services, measured on the real ones.

A learner, a quantizer and one actor run for some seconds, with a rate limiter that lets both sides go on. At first the
learner is paused, so that all that it does is to receive and to store. Then it trains and publishes too.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

from actorq import settings
from actorq.client import LearnerClient
from actorq.config import RunConfig
from actorq.errors import ActorQError, UnavailableError, UserError
from actorq.local.child import Child
from actorq.local.events import ChildExited
from actorq.local.services import Kind, module_command, reserved_addresses
from actorq.policy import FP32
from actorq.process import EXIT_USER_ERROR

_START_S, _LOOK_S, _END_S = 60.0, 0.02, 2.0
# Until queues are full and caches warm.
_WARM_UP_S = 0.5
# Of fewer versions the quantizer's share of a window is mostly what it does without any.
_FEWEST_VERSIONS = 10


@dataclass(frozen=True)
class LinkFigures:
    """Processor seconds of the processes. While the learner is paused, per transition: `actor_s`, `learner_s`.

    update_s: of the learner per update while all goes on, without what transitions cost.
    quantizer_version_s, actor_version_s: of a version in fp32 while all goes on; None where there were too few.
    steps_per_s: transitions per second of an actor that never waits, beside the paused learner.
    """

    actor_s: float
    learner_s: float
    steps_per_s: float
    update_s: float
    quantizer_version_s: float | None
    actor_version_s: float | None


@dataclass(frozen=True)
class _Look:
    """The counters of the run at a moment, and the processor seconds of its processes."""

    at: float
    steps: int
    updates: int
    versions: int
    cpu: dict[str, float]


def measure_links(config: RunConfig, folder: Path, seconds: float) -> LinkFigures:
    """Run the services for `seconds` after their start; raises ActorQError when one of them fails."""
    path = folder / "links.yaml"
    path.write_text(settings.to_yaml(_paused_run(config)), encoding="utf-8")
    with ExitStack() as stack:
        learner, quantizer = stack.enter_context(reserved_addresses(2))
        ended: list[ChildExited] = []
        given = ("--config", str(path), "--lifeline")
        state = ("--run-directory", str(folder / "links"), "--quantizer", quantizer, "--listen", learner)
        commands = {
            "learner": module_command(Kind.LEARNER, *given, *state),
            "quantizer": module_command(
                Kind.QUANTIZER, *given, "--store", str(folder / "links-policies"), "--listen", quantizer
            ),
            "actor": module_command(Kind.ACTOR, *given, "--learner", learner, "--quantizer", quantizer),
        }
        children = {}
        for name, command in commands.items():
            children[name] = Child(name, command, folder / f"{name}.log", ended.append)
            stack.callback(children[name].end, _END_S)
        client = stack.enter_context(LearnerClient(learner))
        _await_steps(client, children, ended)
        client.pause()
        time.sleep(_WARM_UP_S)
        pids = {name: child.pid for name, child in children.items()}
        paused = (_look(client, pids), _after(client, pids, seconds / 2))
        client.resume()
        return _figures(paused, (_at_next_update(client, pids, 0.0), _at_next_update(client, pids, seconds / 2)))


def _paused_run(config: RunConfig) -> RunConfig:
    """The run with one actor that always acts with its policy and never waits."""
    return config.model_copy(
        update={
            "actors": 1,
            "scheme": FP32,
            "max_environment_steps": 10**12,
            "target_return": 1e30,
            "rate_limiter": config.rate_limiter.model_copy(update={"error_buffer": 1e15}),
            "exploration": config.exploration.model_copy(update={"random_steps": 0}),
            "checkpoint": config.checkpoint.model_copy(update={"period_s": 1e9}),
            "actor": config.actor.model_copy(update={"max_steps_per_policy": 0}),
            "transport": config.transport.model_copy(update={"certificates": None, "drain_s": 1.0}),
        }
    )


def _await_steps(client: LearnerClient, children: Mapping[str, Child], ended: list[ChildExited]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if ended:
            raise _failure(children[ended[0].name], ended[0].code)
        try:
            if client.status().environment_steps > 0:
                return
        except (UnavailableError, grpc.RpcError):
            pass
        time.sleep(_LOOK_S)
    raise ActorQError(f"the services did not begin to act within {_START_S:g} s")


def _failure(child: Child, code: int) -> ActorQError:
    if code == EXIT_USER_ERROR and (mistake := child.user_error()):
        return UserError(mistake)
    lines = "".join(f"\n  {line}" for line in child.last_lines(5))
    return ActorQError(f"{child.name} ended with {code} while it was measured; its last lines:{lines}")


def _look(client: LearnerClient, pids: Mapping[str, int]) -> _Look:
    status = client.status()
    return _Look(time.monotonic(), status.environment_steps, status.updates, status.policy_version, _cpu_seconds(pids))


def _after(client: LearnerClient, pids: Mapping[str, int], seconds: float) -> _Look:
    time.sleep(seconds)
    return _look(client, pids)


def _at_next_update(client: LearnerClient, pids: Mapping[str, int], seconds: float) -> _Look:
    """Look just after an update, so that whole ones are counted however long they take."""
    time.sleep(seconds)
    updates, deadline = client.status().updates, time.monotonic() + _START_S
    while client.status().updates == updates and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return _look(client, pids)


def _figures(paused: tuple[_Look, _Look], training: tuple[_Look, _Look]) -> LinkFigures:
    began, ended = paused
    stored = ended.steps - began.steps
    if stored <= 0:
        raise ActorQError(f"no transition was stored in {ended.at - began.at:.1f} s: give more --seconds")
    actor_s, learner_s = ((ended.cpu[name] - began.cpu[name]) / stored for name in ("actor", "learner"))
    first, last = training
    steps, updates, versions = last.steps - first.steps, last.updates - first.updates, last.versions - first.versions
    if updates <= 0:
        raise ActorQError(f"no update was made in {last.at - first.at:.1f} s: give more --seconds")
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


def _cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """User and system time of each process so far."""
    times = {name: psutil.Process(pid).cpu_times() for name, pid in pids.items()}
    return {name: each.user + each.system for name, each in times.items()}
