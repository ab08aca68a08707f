"""Time of a pixel policy's calls, and environment steps per second of an actor that sees pixels, by scheme.

The task is cartpole-swingup of DM Control from pixels, with the preset's observations. The policy is the preset's SAC
policy with random weights. The quantizer calibrates it on pictures of random actions, and its fidelity gate judges it
on the same pictures. int8 keeps convolutions in float, so it shows what int8-static adds. torch is the same network in
eager PyTorch.

Calls: one call of the loaded policy on such pictures. Steps: an actor's whole work without the network, which includes
the physics of all repeats and the picture of each step. One collector steps the same environments for all schemes, and
gets another policy for each slice. "no policy" is the environments alone, with random actions.

Everything has one thread. Slices of all schemes take turns, in alternating order. A ratio compares the wall clock of
neighboring slices, and a target is about the median over the turns. The targets are older than the first measurement.
Other ratios have no target. The expected ratio was 1.0 to 1.3 for the calls of int8. It was 1.05 to 1.5 for whole steps
with int8-static, because the processor also draws the pictures.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actor_service.acting.behaviors import behavior_policy
from actor_service.acting.collector import SegmentCollector
from actor_service.acting.frame_stack import FrameStack
from actor_service.acting.turns import PolicyTurns
from actor_service.environments import Environments, make_environments
from actor_service.environments.trial import random_actions
from actor_service.policies.policy import PolicySlot, load_policy
from actorq.config.run_config import RunConfig
from actorq.config.sections import GateConfig
from actorq.domain.policy import FP32, Checkpoint, Policy
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration
from benchmarks.harness import Meaning, Target, run_benchmark
from benchmarks.policies import as_policy, emit
from benchmarks.processor import DOT_PRODUCT
from benchmarks.speedup.torch_policy import TorchPolicy
from learner_service.algorithms import make_algorithm
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, snapshot_parameters
from quantizer_service.emission.gate import judge

ENVIRONMENT = "dm_control_pixels/cartpole-swingup"
STATIC, INT8, TORCH, NO_POLICY = "int8-static", "int8", "torch", "no policy"
SCHEMES = (STATIC, INT8, FP32, TORCH)
ENVIRONMENTS = (1, 8)
# A call of int8-static against one of ONNX Runtime in fp32, and whole steps.
LEAST_CALL, LEAST_STEPS = 1.5, 1.0
_SEGMENT, _CALIBRATION = 8, 256

MEANINGS = (
    Meaning(
        r"calls, (?P<count>\d+) environments?: time in fp32 over that in int8-static",
        "How many times faster is a call of a pixel policy with int8-static?",
        "int8 convolutions gain less than planned on this processor.",
        unit=" times",
        case="environments at once: {count}",
    ),
    Meaning(
        r"steps, (?P<count>\d+) environments?: steps/s with int8-static over those in fp32",
        "How many more steps does an actor make with int8-static when it sees pixels?",
        "Drawing the pictures takes nearly all of the time, so the number format of the policy makes no difference.",
        unit=" times",
        case="environments at once: {count}",
    ),
    Meaning(
        r"(?P<scheme>[\w-]+): mean action error",
        "Does the quantized pixel policy pass the fidelity gate?",
        "The gate would keep layers of this policy in float, and actors would be slower than shown.",
        unit="%",
        scale=100,
        case="{scheme}",
    ),
)


@dataclass(frozen=True)
class Timed:
    """Medians over the turns, by scheme.

    rates: calls or environment steps per second. ratios: the rate over that of fp32 in the same turn. quartiles: the
    first and third quartile of the same ratios.
    """

    environments: int
    rates: Mapping[str, float]
    ratios: Mapping[str, float]
    quartiles: Mapping[str, tuple[float, float]]


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=30, metavar="N", help="slices of each scheme (default: 30)")
    parser.add_argument("--slice-s", type=float, default=0.2, metavar="S", help="seconds per slice (default: 0.2)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    torch.set_num_threads(1)
    repeats, slice_s = arguments.repeats, arguments.slice_s
    config = RunConfig(environment=ENVIRONMENT)
    largest = make_environments(ENVIRONMENT, max(ENVIRONMENTS))
    pictures = pictures_of(largest, _CALIBRATION)
    largest.close()
    policies = policies_of(config, largest.spec, pictures)
    calls, steps = [], []
    for count in ENVIRONMENTS:
        calls.append(timed_calls(policies, largest.spec, pictures, count, repeats, slice_s))
        _print("calls/s", calls[-1])
        steps.append(timed_steps(policies, count, repeats, slice_s))
        _print("steps/s", steps[-1])
    figures = {
        "repeats": repeats,
        "slice_s": slice_s,
        "fidelity": {scheme: _fidelity(policies[scheme]) for scheme in (STATIC, INT8)},
        "calls": [asdict(each) for each in calls],
        "steps": [asdict(each) for each in steps],
    }
    return figures, targets(figures)


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """The targets of the measured calls, steps and errors."""
    found = []
    for each in figures["calls"]:
        name = f"calls, {_count(each)}: time in {FP32} over that in {STATIC}"
        found.append(Target(name, each["ratios"][STATIC], LEAST_CALL, at_most=False, needs=DOT_PRODUCT))
    for each in figures["steps"]:
        name = f"steps, {_count(each)}: steps/s with {STATIC} over those in {FP32}"
        found.append(Target(name, each["ratios"][STATIC], LEAST_STEPS, at_most=False, needs=DOT_PRODUCT))
    for scheme, each in figures["fidelity"].items():
        refused = "" if each["passed"] else f"the gate refuses it: {each['reason']}"
        limit = GateConfig().max_mean_error
        found.append(Target(f"{scheme}: mean action error", each["mean_error"], limit, refused=refused))
    return found


def pictures_of(environments: Environments, rows: int) -> NDArray[np.uint8]:
    """Stacks of pictures with random actions, uint8[rows, *policy_observations]."""
    spec, rng = environments.spec, np.random.default_rng(0)
    stack, found = FrameStack(spec, environments.rows), list[NDArray[Any]]()
    seen = stack.push(environments.reset(0), environments.lengths)
    while sum(map(len, found)) < rows:
        found.append(seen.copy())
        step = environments.step(random_actions(spec, seen, rng))
        seen = stack.push(step.observations, environments.lengths)
    return np.concatenate(found)[:rows]


def policies_of(config: RunConfig, spec: EnvironmentSpec, pictures: NDArray[np.uint8]) -> dict[str, Policy]:
    """The preset's policy with random weights in each scheme, calibrated on these pictures."""
    policy = make_algorithm(config, spec).policy
    graph = export_policy_graph(policy, spec, takes_noise=True)
    calibration = calibration_batch(pictures, spec, takes_noise=True, seed=0)
    checkpoint = Checkpoint(1, 1, graph.digest, snapshot_parameters(policy), calibration, 0.0)
    quantized = (STATIC, INT8, FP32)
    return {scheme: as_policy(graph, checkpoint, scheme, emit(graph, checkpoint, scheme)) for scheme in quantized}


def timed_calls(
    policies: Mapping[str, Policy],
    spec: EnvironmentSpec,
    pictures: NDArray[np.uint8],
    count: int,
    repeats: int,
    slice_s: float,
) -> Timed:
    """Calls per second of each scheme on `count` observations."""
    batches = [pictures[first : first + count] for first in range(0, len(pictures) - count + 1, count)]

    def caller(policy: Any) -> Callable[[int], None]:
        def call(times: int) -> None:
            for number in range(times):
                policy(batches[number % len(batches)])

        return call

    loaded = loaded_policies(policies, spec, count)
    return _in_turns({scheme: caller(policy) for scheme, policy in loaded.items()}, count, 1, repeats, slice_s)


def timed_steps(policies: Mapping[str, Policy], count: int, repeats: int, slice_s: float) -> Timed:
    """Environment steps per second of an actor with each scheme, and of its environments alone."""
    environments, alone = (make_environments(ENVIRONMENT, count) for _ in range(2))
    spec, slot = environments.spec, PolicySlot()
    loaded = loaded_policies(policies, spec, count)
    slot.put(loaded[FP32])
    explore = behavior_policy(spec, Exploration((0.0,) * count, (0.0,) * count), count, np.random.default_rng(0))
    collector = SegmentCollector(environments, PolicyTurns(slot), explore, _SEGMENT, seed=0)
    stop, rng = threading.Event(), np.random.default_rng(0)
    seen = alone.reset(0)

    def actor(policy: Any) -> Callable[[int], None]:
        def act(segments: int) -> None:
            slot.put(policy)
            for _ in range(segments):
                collector.collect(stop)

        return act

    def bare(segments: int) -> None:
        for _ in range(segments * _SEGMENT):
            alone.step(random_actions(spec, seen, rng))

    loops = {scheme: actor(policy) for scheme, policy in loaded.items()}
    found = _in_turns({**loops, NO_POLICY: bare}, count, count * _SEGMENT, repeats, slice_s)
    environments.close()
    alone.close()
    return found


def loaded_policies(policies: Mapping[str, Policy], spec: EnvironmentSpec, count: int) -> dict[str, Any]:
    """The policies as actors load them, and in PyTorch."""
    loaded: dict[str, Any] = {scheme: load_policy(policy, spec, count) for scheme, policy in policies.items()}
    return {**loaded, TORCH: TorchPolicy(policies[FP32], spec, count)}


def _in_turns(loops: dict[str, Callable[[int], None]], count: int, unit: int, repeats: int, slice_s: float) -> Timed:
    """Time slices of all loops in turn. unit: calls or steps of one repetition of a loop."""
    times = {scheme: _repetitions(loop, slice_s) for scheme, loop in loops.items()}
    rates: dict[str, list[float]] = {scheme: [] for scheme in loops}
    for turn in range(repeats):
        for scheme, loop in reversed(loops.items()) if turn % 2 else loops.items():
            started = time.perf_counter()
            loop(times[scheme])
            rates[scheme].append(unit * times[scheme] / (time.perf_counter() - started))
    ratios = {scheme: [a / b for a, b in zip(own, rates[FP32], strict=True)] for scheme, own in rates.items()}
    quartiles = {scheme: statistics.quantiles(own, n=4) for scheme, own in ratios.items()}
    return Timed(
        count,
        {scheme: statistics.median(own) for scheme, own in rates.items()},
        {scheme: statistics.median(own) for scheme, own in ratios.items()},
        {scheme: (first, third) for scheme, (first, _, third) in quartiles.items()},
    )


def _repetitions(loop: Callable[[int], None], slice_s: float) -> int:
    """Repetitions of a loop in about one slice."""
    loop(1)
    times = 1
    while True:
        started = time.perf_counter()
        loop(times)
        took = time.perf_counter() - started
        if took > slice_s / 4:
            return max(1, round(times * slice_s / took))
        times *= 2


def _fidelity(policy: Policy) -> dict[str, Any]:
    report = policy.descriptor.fidelity
    verdict = judge(report, GateConfig())
    return {"mean_error": report.relative_mean_error, "passed": verdict.passed, "reason": verdict.reason}


def _count(each: Mapping[str, Any]) -> str:
    return f"{each['environments']} environment{'s' * (each['environments'] > 1)}"


def _print(unit: str, found: Timed) -> None:
    parts = (f"{scheme} {rate:,.0f} ({found.ratios[scheme]:.2f})" for scheme, rate in found.rates.items())
    print(f"x{found.environments} {unit} (times fp32): {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
