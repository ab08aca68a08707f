"""Environment steps per second of the acting loop, compared with the bare environments and with a torch actor.

bare: the environments of their libraries, stepped one after the other with random actions drawn in advance, and reset
at their end. Nothing is stored. actor: an actor's work without the network: policy, exploration and segments. torch:
the same environments with an FP32 torch policy, as PyTorch libraries collect data: observations to a tensor, the
module, actions to numpy, exploration, transitions written to arrays.

The cost of physics depends on the actions: a lying walker has more contacts, and a cart pushed to one side falls
sooner. All loops therefore explore as much as possible, so that they act about as randomly as the bare loop.

Each of these loops has one thread. Its share of the bare loop comes from processor time, because other programs would
change a share of the wall clock. The output has both. Slices of all loops take turns, in alternating order, and a share
is the median over the turns. Other programs also take caches and clock frequency, but they slow down all slices of a
turn.

The actor on EnvPool is then compared with the actor on the Python loop, in the same turns. This comparison uses the
wall clock, because EnvPool has its own threads.
"""

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from actor_service.acting.behaviors import behavior_policy
from actor_service.acting.collector import SegmentCollector
from actor_service.acting.turns import PolicyTurns
from actor_service.environments import Environments, describe_environment, make_environments
from actor_service.environments.envpool_backend import PooledEnvironments
from actor_service.policies.policy import PolicySlot, load_policy
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration
from benchmarks.harness import Meaning, Target, run_benchmark
from benchmarks.policies import PolicyNetwork, as_policy, checkpoint_of, d4pg_policy, emit, relu_mlp

SEGMENT = 16
# All discrete actions are random. Gaussian noise of 0.6 of half the range spreads like uniformly random actions.
_EPSILON, _NOISE = 1.0, 0.6
# Steps each environment the given number of times. Can be called repeatedly.
Loop = Callable[[int], object]


@dataclass(frozen=True)
class Task:
    """Environments, their policy, and the share of the bare loop that the actor must reach."""

    environment_id: str
    environments: int
    scheme: str
    network: Callable[[EnvironmentSpec], nn.Module]
    share: float

    @property
    def name(self) -> str:
        """The task's name in the results."""
        return f"{self.environment_id} x{self.environments}"


TASKS = (
    Task("CartPole-v1", 16, "int8", lambda spec: relu_mlp(64, spec.observations.shape[0], spec.acting_size), 0.75),
    Task(
        "dm_control/walker-walk",
        8,
        "int8",
        lambda spec: d4pg_policy(256, spec.observations.shape[0], spec.actions.shape[0]),
        0.85,
    ),
)


# EnvPool against the Python loop, both in the whole actor: environments, and the required relative speed.
POOLS = ((16, 0.0), (256, 3.0))
_PYTHON, _POOL = "Python loop", "EnvPool"
_CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class PoolResult:
    """Medians by loop of steps per second of the wall clock, because a pool has its own threads.

    times: the median over the turns of a loop's rate relative to the Python loop's. quartiles: of the same ratios.
    """

    task: str
    steps_per_second: dict[str, float]
    times: dict[str, float]
    quartiles: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Result:
    """Medians by loop: steps per second, and the share of the bare loop in the same turn.

    steps_per_second, wall_shares: by the wall clock. steps_per_processor_second, shares: by the loop's processor time.
    quartiles: the first and third quartile of `shares`.
    """

    task: str
    steps_per_second: dict[str, float]
    steps_per_processor_second: dict[str, float]
    shares: dict[str, float]
    quartiles: dict[str, tuple[float, float]]
    wall_shares: dict[str, float]


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=40, metavar="N", help="slices of each loop (default: 40)")
    parser.add_argument("--slice-s", type=float, default=0.1, metavar="S", help="seconds per slice (default: 0.1)")


MEANINGS = (
    Meaning(
        r"(?P<task>.+) x(?P<count>\d+): share of the bare loop, by processor time",
        "What share of a bare loop's speed does the acting loop keep?",
        "The actor's own work takes more processor time than planned. Plan actors with the measured share.",
        unit="%",
        scale=100,
        case="{task}, {count} environments",
    ),
)


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    torch.set_num_threads(1)
    results = [measure(task, arguments.repeats, arguments.slice_s) for task in TASKS]
    for result in results:
        print(result.task)
        for name, rate in result.steps_per_second.items():
            wall = f"by wall clock {rate:>8,.0f} steps/s, {result.wall_shares[name]:.2f} of bare"
            if name in result.shares:
                low, high = result.quartiles[name]
                wall = (
                    f"by processor time {result.steps_per_processor_second[name]:>8,.0f} steps/s, "
                    f"{result.shares[name]:.2f} of bare (quartiles {low:.2f} to {high:.2f}); {wall}"
                )
            print(f"  {name:<8} {wall}", flush=True)
    targets = [
        Target(
            f"{task.name}: share of the bare loop, by processor time", result.shares["actor"], task.share, at_most=False
        )
        for task, result in zip(TASKS, results, strict=True)
    ]
    pools = []
    for count, times in POOLS:
        pool = measure_pool(replace(TASKS[0], environments=count), arguments.repeats, arguments.slice_s)
        pools.append(pool)
        for name, rate in pool.steps_per_second.items():
            print(f"{pool.task}, int8 actor, {name}: {rate:,.0f} steps/s, {pool.times[name]:.2f} times", flush=True)
        if times:
            name = f"{pool.task}: steps/s of the actor on EnvPool over those on the Python loop"
            targets.append(Target(name, pool.times[_POOL], times, at_most=False))
    figures = {"repeats": arguments.repeats, "slice_s": arguments.slice_s, "segment": SEGMENT}
    found = {"results": [asdict(result) for result in results], "pools": [asdict(pool) for pool in pools]}
    return {**figures, **found}, targets


def measure_pool(task: Task, repeats: int, slice_s: float) -> PoolResult:
    """Time slices of the actor in turn: on the Python loop, on EnvPool, and on EnvPool with one thread per core."""
    made = {
        _PYTHON: make_environments(task.environment_id, task.environments),
        _POOL: make_environments(task.environment_id, task.environments, "envpool"),
        f"{_POOL}, {_CORES} threads": PooledEnvironments(
            describe_environment(task.environment_id),
            task.environment_id,
            {"num_threads": _CORES},
            (),
            task.environments,
        ),
    }
    loops = {name: actor_loop(task, environments) for name, environments in made.items()}
    steps = {name: steps_of(loop, slice_s) for name, loop in loops.items()}
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(repeats):
        for name, loop in reversed(loops.items()) if turn % 2 else loops.items():
            started = time.perf_counter()
            loop(steps[name])
            rates[name].append(task.environments * steps[name] / (time.perf_counter() - started))
    times = _shares(rates, _PYTHON)
    quartiles = {name: statistics.quantiles(found, n=4) for name, found in times.items()}
    return PoolResult(
        task.name,
        _medians(rates),
        _medians(times),
        {name: (first, third) for name, (first, _, third) in quartiles.items()},
    )


def measure(task: Task, repeats: int, slice_s: float) -> Result:
    """Time slices of each loop in turn. A share compares neighboring slices."""
    loops = {"bare": bare_loop(task), "actor": actor_loop(task), "torch": torch_loop(task)}
    # EnvPool has its own implementations. They show the gain from a pool, not the cost of the loop.
    loops["envpool"] = actor_loop(task, make_environments(task.environment_id, task.environments, "envpool"))
    steps = {name: steps_of(loop, slice_s) for name, loop in loops.items()}
    walls: dict[str, list[float]] = {name: [] for name in loops}
    processors: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(repeats):
        for name, loop in reversed(loops.items()) if turn % 2 else loops.items():
            wall, processor = time.perf_counter(), time.thread_time()
            loop(steps[name])
            walls[name].append(task.environments * steps[name] / (time.perf_counter() - wall))
            processors[name].append(task.environments * steps[name] / (time.thread_time() - processor))
    del processors["envpool"]
    shares = _shares(processors)
    quartiles = {name: statistics.quantiles(found, n=4) for name, found in shares.items()}
    return Result(
        task.name,
        _medians(walls),
        _medians(processors),
        _medians(shares),
        {name: (first, third) for name, (first, _, third) in quartiles.items()},
        _medians(_shares(walls)),
    )


def _medians(figures: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(found) for name, found in figures.items()}


def _shares(rates: dict[str, list[float]], base: str = "bare") -> dict[str, list[float]]:
    """The share of the base loop's rate, by loop and turn."""
    return {
        name: [rate / whole for rate, whole in zip(measured, rates[base], strict=True)]
        for name, measured in rates.items()
    }


def bare_loop(task: Task) -> Loop:
    """The environments alone, with random actions."""
    environments = [_single(task.environment_id, bare=True) for _ in range(task.environments)]
    spec = make_environments(task.environment_id, 1).spec
    for index, environment in enumerate(environments):
        environment.reset(seed=index)
    steppers = [environment.step for environment in environments]
    rng = np.random.default_rng(0)

    def loop(steps: int) -> None:
        for actions in _random_actions(spec, rng, steps, task.environments):
            for index, action in enumerate(actions):
                _, _, terminated, truncated, _ = steppers[index](action)
                if terminated or truncated:
                    environments[index].reset()

    return loop


def actor_loop(task: Task, environments: Environments | None = None) -> Loop:
    """An actor's work with a quantized policy, in these environments or in the Python loop's."""
    environments = environments or make_environments(task.environment_id, task.environments)
    spec = environments.spec
    torch.manual_seed(0)
    observations = np.random.default_rng(0).standard_normal((256, *spec.observations.shape)).astype(np.float32)
    network = PolicyNetwork(task.name, task.network(spec), spec, observations)
    graph, checkpoint = checkpoint_of(network)
    policy = as_policy(graph, checkpoint, task.scheme, emit(graph, checkpoint, task.scheme))
    slot = PolicySlot()
    slot.put(load_policy(policy, spec, task.environments))
    exploration = Exploration((_EPSILON,) * task.environments, (_NOISE,) * task.environments)
    explore = behavior_policy(spec, exploration, task.environments, np.random.default_rng(0))
    collector = SegmentCollector(environments, PolicyTurns(slot), explore, SEGMENT, seed=0)
    stop = threading.Event()

    def loop(steps: int) -> None:
        for _ in range(steps // SEGMENT):
            collector.collect(stop)

    return loop


def torch_loop(task: Task) -> Loop:
    """Data collection with an FP32 torch policy, environment by environment, as in PyTorch libraries."""
    environments = [_single(task.environment_id) for _ in range(task.environments)]
    spec = make_environments(task.environment_id, 1).spec
    torch.manual_seed(0)
    module = task.network(spec).eval()
    rng = np.random.default_rng(0)
    count = task.environments
    observations = np.zeros((count, *spec.observations.shape), np.float32)
    for index, environment in enumerate(environments):
        observations[index] = environment.reset(seed=index)[0]
    rewards, dones = np.zeros(count, np.float32), np.zeros(count, np.bool_)
    low, high = spec.actions.bounds()
    rows = 10_000
    replay = [np.zeros((rows, *array.shape), array.dtype) for array in (observations, observations, rewards, dones)]
    position = 0

    def loop(steps: int) -> None:
        nonlocal position
        for _ in range(steps):
            with torch.no_grad():
                outputs = module(torch.as_tensor(observations)).numpy()
            if spec.sizes:
                random = rng.integers(spec.acting_size, size=count)
                actions = np.where(rng.random(count) < _EPSILON, random, outputs.argmax(axis=1))
            else:
                noise = rng.normal(0.0, _NOISE, outputs.shape).astype(np.float32)
                actions = np.clip(outputs + noise * (high - low) / 2, low, high)
            before = observations.copy()
            following = np.empty_like(observations)
            for index, environment in enumerate(environments):
                seen, rewards[index], terminated, truncated, _ = environment.step(actions[index])
                following[index], dones[index] = seen, terminated
                observations[index] = environment.reset()[0] if terminated or truncated else seen
            for column, values in zip(replay, (before, following, rewards, dones), strict=True):
                column[position] = values
            position = (position + 1) % rows

    return loop


class _Suite:
    """A DM Control task with Gymnasium's interface and nothing else."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def reset(self, seed: int | None = None) -> tuple[Any, Any]:
        return self._flat(self._environment.reset()), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        taken = self._environment.step(action)
        return self._flat(taken), taken.reward, False, taken.last(), None

    def _flat(self, taken: Any) -> Any:
        return np.concatenate([np.ravel(part) for part in taken.observation.values()])


class _BareSuite(_Suite):
    """A task that does not flatten its observations."""

    def _flat(self, taken: Any) -> Any:
        return taken.observation


def _single(environment_id: str, bare: bool = False) -> Any:
    if not environment_id.startswith("dm_control/"):
        return gymnasium.make(environment_id)
    from dm_control import suite

    return (_BareSuite if bare else _Suite)(suite.load(*environment_id.removeprefix("dm_control/").split("-")))


def _random_actions(spec: EnvironmentSpec, rng: np.random.Generator, steps: int, count: int) -> Any:
    if spec.sizes:
        return rng.integers(spec.acting_size, size=(steps, count)).tolist()
    low, high = spec.actions.bounds()
    return rng.uniform(low, high, (steps, count, *spec.actions.shape))


def steps_of(loop: Loop, slice_s: float) -> int:
    """Number of steps in about one slice: a multiple of `SEGMENT`, at least one segment."""
    loop(SEGMENT)
    steps = SEGMENT
    while True:
        started = time.perf_counter()
        loop(steps)
        took = time.perf_counter() - started
        if took > slice_s / 4:
            return max(SEGMENT, round(steps * slice_s / took) // SEGMENT * SEGMENT)
        steps *= 2


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
