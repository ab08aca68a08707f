"""Measures an actor's time per step with each scheme, for `actorq profile`."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from actor_service.acting.behavior import BehaviorPolicy
from actor_service.acting.behaviors import behavior_policy
from actor_service.acting.collector import SegmentCollector, fitting_segment_length
from actor_service.acting.turns import PolicyTurns
from actor_service.environments import Environments, describe_environment, make_environments
from actor_service.policies.policy import OnnxPolicy, PolicySlot, load_policy
from actorq.arithmetic import arithmetic
from actorq.config.run_config import RunConfig
from actorq.domain.policy import FP32, FidelityReport, Policy, PolicyDescriptor
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Sampling
from actorq.domain.trajectory import Segment
from actorq.errors import InvalidInputError, UserError
from actorq.process import EXIT_OK
from actorq.profiling import Order
from actorq.timing import HOPELESS, time_calls

# Measured multiples of the configured number of environments.
_FACTORS = (0.25, 1.0, 4.0)
_MOST_ENVIRONMENTS = 1024
# Limits of the recorded transitions and of their bytes.
_MOST_RECORDED, _MOST_BYTES = 20_000, 64_000_000
_TURN_S = 0.02
_LEAST_ROUNDS = 3


@dataclass(frozen=True)
class Spent:
    """Seconds per call: CPU time of the process, and wall-clock time."""

    cpu: float
    wall: float


def measure_in_turns(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, Spent]:
    """Seconds of one call by name, measured in turns of about 20 ms.

    CPU time is the mean of the middle half of the turns. Wall-clock time is the lower quartile, because other processes
    only make it longer.
    """
    repetitions = {name: _repetitions(call) for name, call in calls.items()}
    turns: dict[str, list[Spent]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < deadline:
        for name, call in calls.items():
            call()
            turns[name].append(_turn(call, repetitions[name]))
        rounds += 1
    return {name: _typical(each) for name, each in turns.items()}


def _turn(call: Callable[[], object], repetitions: int) -> Spent:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(repetitions):
        call()
    return Spent((time.process_time() - cpu) / repetitions, (time.perf_counter() - wall) / repetitions)


def _repetitions(call: Callable[[], object]) -> int:
    call()
    return max(1, round(_TURN_S / max(1e-9, _turn(call, 2).cpu)))


def _typical(turns: list[Spent]) -> Spent:
    cpu = sorted(turn.cpu for turn in turns)
    quarter = len(cpu) // 4
    return Spent(fmean(cpu[quarter : len(cpu) - quarter]), sorted(turn.wall for turn in turns)[quarter])


class _Acting:
    """An actor's loop in `count` environments, without its uploader."""

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        count: int,
        random_steps: int = 0,
        sampling: Sampling = "",
        state_size: int = 0,
    ) -> None:
        self.environments: Environments = make_environments(
            config.environment, count, config.environment_backend, config.environment_arguments
        )
        self.slot = PolicySlot()
        explore = _behavior(config, spec, count, random_steps, sampling)
        columns = explore.columns
        self.length = fitting_segment_length(
            spec, count, config.actor.segment_length, config.actor.max_segment_bytes, columns
        )
        self._collector = SegmentCollector(
            *(self.environments, PolicyTurns(self.slot), explore, self.length),
            seed=config.seed,
            columns=columns,
            state_size=state_size,
        )
        self._never = threading.Event()

    def collect(self, policy: OnnxPolicy) -> Segment:
        """Collect a segment with this policy."""
        if self.slot.peek() is not policy:
            self.slot.put(policy)
        segment = self._collector.collect(self._never)
        assert segment is not None
        return segment


def _behavior(
    config: RunConfig, spec: EnvironmentSpec, count: int, random_steps: int, sampling: Sampling = ""
) -> BehaviorPolicy:
    sized = config.model_copy(update={"environments_per_actor": count})
    exploration = replace(sized.exploration_of(0, 0), random_steps=random_steps, sampling=sampling)
    return behavior_policy(
        spec, exploration, count, np.random.default_rng(config.seed), config.further_columns(bool(sampling))
    )


class _NoPolicy:
    """Replaces the policy while all actions are uniformly random. The loop never calls it."""

    state_size = 0
    descriptor = PolicyDescriptor(
        *("profile", 1, 0, FP32, b"", 0, 0, 0.0), FidelityReport(0, 0.0, 0.0, 0.0, 0.0, None, ())
    )


def record(order: Order) -> None:
    """Record transitions of random actions in the folder, for the learner and for calibration."""
    config = order.config
    spec = describe_environment(config.environment, config.environment_backend, config.environment_arguments)
    acting = _Acting(config, spec, config.environments_per_actor, random_steps=10**9)
    segments: list[Segment] = []
    transitions = nbytes = 0
    deadline = time.perf_counter() + order.seconds
    while (not segments or time.perf_counter() < deadline) and transitions < _MOST_RECORDED and nbytes < _MOST_BYTES:
        segment = acting.collect(_NoPolicy())  # type: ignore[arg-type]
        segments.append(segment)
        transitions += segment.environment_steps(spec.agent_count)
        nbytes += segment.observations.nbytes
    acting.environments.close()
    order.folder.write_segments(spec, segments)


def measure(order: Order) -> dict[str, Any]:
    """Times for each number of environments: environment step, policy call, loop step. Also the load times."""
    config, spec, policies = order.config, order.folder.spec(), order.folder.policies()
    configured = config.environments_per_actor
    # Only the learner knows the algorithms of installed packages.
    learner = order.folder.read("learner")
    sampling: Sampling = learner["sampling"]
    most = _MOST_ENVIRONMENTS
    if rollout := learner["rollout"]:
        # A rollout consists of whole segments.
        most = min(most, rollout["environment_steps"] // config.actor.segment_length)
    factors = () if order.is_brief else _FACTORS
    counts = sorted({min(most, max(1, round(factor * configured))) for factor in factors} | {configured})
    # Actors avoid these schemes too.
    dropped = dict.fromkeys(arithmetic().inexact_schemes, "this processor computes its products wrongly")
    seconds = order.seconds / len(counts)
    sizes = [_measure_count(config, spec, count, policies, seconds, dropped, sampling) for count in counts]
    segments, agents = order.folder.segments(), spec.agent_count
    return {
        "sizes": sizes,
        "load_s": {
            scheme: measure_in_turns({"load": partial(load_policy, policy, spec, configured * spec.agent_count)}, 0.1)[
                "load"
            ].cpu
            for scheme, policy in policies.items()
            if scheme not in dropped
        },
        "dropped": dropped,
        "segment_length": segments[0].steps,
        "valid": fmean(segment.environment_steps(agents) * agents / segment.valid.size for segment in segments),
    }


def _measure_count(
    config: RunConfig,
    spec: EnvironmentSpec,
    count: int,
    policies: Mapping[str, Policy],
    seconds: float,
    dropped: dict[str, str],
    sampling: Sampling,
) -> dict[str, Any]:
    loaded: dict[str, OnnxPolicy] = {}
    needs = _behavior(config, spec, count, 0, sampling).needs
    for scheme, policy in policies.items():
        if scheme in dropped:
            continue
        try:
            loaded[scheme] = load_policy(policy, spec, count * spec.agent_count, needs)
        except InvalidInputError as error:
            dropped[scheme] = str(error)
    if not loaded:
        raise UserError(f"actors cannot act with this policy: {next(iter(dropped.values()))}")
    acting = _Acting(config, spec, count, sampling=sampling, state_size=config.memory.state_size)
    random = _behavior(config, spec, count, random_steps=10**9)
    first = next(iter(loaded.values()))
    actions = [random(_NoPolicy(), np.empty(0)).copy() for _ in range(64)]  # type: ignore[arg-type]

    def step() -> None:
        for each in actions[: acting.length]:
            acting.environments.step(each)

    steps = min(acting.length, len(actions))
    loops = {scheme: partial(acting.collect, policy) for scheme, policy in loaded.items()}
    spent = measure_in_turns({"environment": step, **loops}, seconds)
    observations = np.concatenate([acting.collect(first).observations[-1:] for _ in range(spec.frame_stack)])
    inputs = observations[0] if spec.frame_stack == 1 else np.swapaxes(observations, 0, 1)
    calls = time_calls({scheme: partial(policy, inputs) for scheme, policy in loaded.items()}, hopeless=HOPELESS)
    acting.environments.close()
    environment = spent.pop("environment")
    return {
        "environments": count,
        "environment_s": environment.cpu / steps,
        "call_s": calls,
        "loop_cpu_s": {scheme: each.cpu / acting.length for scheme, each in spent.items()},
        # Environments with their own threads use more CPU time than wall-clock time.
        "loop_s": {scheme: min(each.cpu, each.wall) / acting.length for scheme, each in spent.items()},
    }


def run() -> int:
    """Run the measurement that the flags ask for."""
    order = Order.parse("actor_service.profile", "Measure an actor's time per step.")
    if order.only_record:
        record(order)
    else:
        order.folder.write("actor", measure(order))
    return EXIT_OK
