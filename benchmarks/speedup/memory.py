"""Environment steps per second of the acting loop with a policy with memory, in int8 and in FP32.

The loop is an actor's whole work: it calls the policy, draws actions, steps environments, keeps the states and collects
segments. Nothing is sent. The environments are CartPole without velocities, stepped one after the other in Python. The
policy is PPO's, with one hidden layer of 512 units and a cell of as many units. Its weights are random.

Both loops have one thread. Slices of them take turns, in alternating order. A ratio compares the wall clock of
neighboring slices, and the target is about the median over the turns.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch

from actor_service.acting.behaviors import behavior_policy
from actor_service.acting.collector import SegmentCollector
from actor_service.acting.turns import PolicyTurns
from actor_service.environments import make_environments
from actor_service.policies.policy import PolicySlot, load_policy
from actorq.config.memory import MemoryConfig
from actorq.domain.policy import FP32, Checkpoint, Policy
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration
from benchmarks.harness import Meaning, Target, run_benchmark
from benchmarks.policies import as_policy, emit
from benchmarks.processor import DOT_PRODUCT
from benchmarks.speedup.actor import SEGMENT, Loop, steps_of
from learner_service.networks import SoftmaxPolicy
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, snapshot_parameters

ENVIRONMENT = "benchmarks.environments.memory:CartPoleWithoutVelocities-v1"
INT8 = "int8"
KINDS: tuple[Literal["gru", "lstm"], ...] = ("gru", "lstm")
UNITS, ENVIRONMENTS = 512, (1, 32)
# The target is about the GRU. The LSTM is shown beside it.
JUDGED, LEAST = "gru", 1.5
_CALIBRATION = 256

MEANINGS = (
    Meaning(
        r"(?P<kind>\w+) of \d+ units, (?P<count>\d+) environments?: steps/s in int8 over those in fp32",
        "How many more steps does an actor make with an int8 policy with memory?",
        "int8 gains less in the whole loop than planned, because environments and the actor's own work take time.",
        unit=" times",
        case="{kind}, environments at once: {count}",
    ),
)


@dataclass(frozen=True)
class Result:
    """Steps per second by scheme, as medians over the turns.

    ratio: the median over the turns of int8's rate over FP32's. quartiles: the first and third quartile of the same.
    """

    kind: str
    units: int
    environments: int
    steps_per_second: Mapping[str, float]
    ratio: float
    quartiles: tuple[float, float]


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=40, metavar="N", help="slices of each loop (default: 40)")
    parser.add_argument("--slice-s", type=float, default=0.2, metavar="S", help="seconds per slice (default: 0.2)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    torch.set_num_threads(1)
    results = []
    for kind in KINDS:
        for count in ENVIRONMENTS:
            found = measure(kind, UNITS, count, arguments.repeats, arguments.slice_s)
            results.append(asdict(found))
            low, high = found.quartiles
            rates = ", ".join(f"{scheme} {rate:,.0f} steps/s" for scheme, rate in found.steps_per_second.items())
            print(f"{kind} x{count}: {rates}; {found.ratio:.2f} times ({low:.2f} to {high:.2f})", flush=True)
    figures = {"repeats": arguments.repeats, "slice_s": arguments.slice_s, "results": results}
    return figures, targets(figures)


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """The targets of the measured loops."""
    found = []
    for each in figures["results"]:
        if each["kind"] == JUDGED:
            count = each["environments"]
            where = f"{each['kind']} of {each['units']} units, {count} environment{'s' * (count > 1)}"
            name = f"{where}: steps/s in {INT8} over those in {FP32}"
            found.append(Target(name, each["ratio"], LEAST, at_most=False, needs=DOT_PRODUCT))
    return found


def measure(kind: Literal["gru", "lstm"], units: int, count: int, repeats: int, slice_s: float) -> Result:
    """Time slices of both loops in turn."""
    policies = policies_of(kind, units)
    loops = {scheme: actor_loop(policy, count) for scheme, policy in policies.items()}
    steps = {scheme: steps_of(loop, slice_s) for scheme, loop in loops.items()}
    rates: dict[str, list[float]] = {scheme: [] for scheme in loops}
    for turn in range(repeats):
        for scheme, loop in reversed(loops.items()) if turn % 2 else loops.items():
            started = time.perf_counter()
            loop(steps[scheme])
            rates[scheme].append(count * steps[scheme] / (time.perf_counter() - started))
    ratios = [ours / theirs for ours, theirs in zip(rates[INT8], rates[FP32], strict=True)]
    first, middle, third = statistics.quantiles(ratios, n=4)
    medians = {scheme: statistics.median(found) for scheme, found in rates.items()}
    return Result(kind, units, count, medians, middle, (first, third))


def policies_of(kind: Literal["gru", "lstm"], units: int) -> dict[str, Policy]:
    """The same policy in both schemes, with a hidden layer of as many units before its cell."""
    torch.manual_seed(0)
    spec = make_environments(ENVIRONMENT, 1).spec
    network = SoftmaxPolicy(spec, (units,), activation="tanh", memory=MemoryConfig(kind=kind, units=units))
    graph, rng = export_policy_graph(network, spec), np.random.default_rng(0)
    observations = rng.standard_normal((_CALIBRATION, *spec.observations.shape)).astype(np.float32)
    states = np.tanh(rng.standard_normal((_CALIBRATION, network.state_size))).astype(np.float32)
    calibration = calibration_batch(observations, spec, takes_noise=False, seed=0, states=states)
    checkpoint = Checkpoint(1, 1, graph.digest, snapshot_parameters(network), calibration, 0.0)
    return {scheme: as_policy(graph, checkpoint, scheme, emit(graph, checkpoint, scheme)) for scheme in (INT8, FP32)}


def actor_loop(policy: Policy, count: int) -> Loop:
    """An actor's work with this policy in `count` environments, for a number of steps of each."""
    environments = make_environments(ENVIRONMENT, count)
    spec: EnvironmentSpec = environments.spec
    explore = behavior_policy(spec, Exploration((), (), sampling="clipped"), count, np.random.default_rng(0))
    loaded, slot = load_policy(policy, spec, count, explore.needs), PolicySlot()
    slot.put(loaded)
    collector = SegmentCollector(
        *(environments, PolicyTurns(slot), explore, SEGMENT),
        seed=0,
        columns=explore.columns,
        sampled=True,
        state_size=loaded.state_size,
    )
    stop = threading.Event()

    def loop(steps: int) -> None:
        for _ in range(steps // SEGMENT):
            collector.collect(stop)

    return loop


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
