"""Compares the actions of quantized policies with FP32's, on observations that were not used for calibration.

The policies are CartPole DQNs trained by ActorQ, and two networks cloned from controllers: a walker on raw
observations, and a CNN on frames of Pong. Every scheme, and variants of int8, act on held-out observations from the
FP32 policy's episodes, in batches of 32 and of 1. Then they play episodes from the same initial states as FP32. There
is no gate and no retry. Agreement is the share of observations with the same best action, for discrete actions. Errors
of continuous actions are relative to the action range.

int8-static has targets too. Its agreement on CartPole is below a run's threshold (0.95), where the gate puts some of
its layers in float.

Training and cloning take most of the time, about seven minutes on two cores. --cache saves it for the next run.
"""

import argparse
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actor_service.policies.policy import OnnxPolicy
from actorq.domain.policy import FP32
from actorq.domain.policy import SCHEMES as SCHEME_NAMES
from actorq.quantization.schemes import SCHEMES, Options
from benchmarks.harness import Target, run_benchmark
from benchmarks.policies import as_policy, emit
from benchmarks.policy.figures import Errors, Figures
from benchmarks.policy.trained.cartpole import CartPole
from benchmarks.policy.trained.pong import PongCNN
from benchmarks.policy.trained.task import Task, TrainedPolicy
from benchmarks.policy.trained.walker import WalkerStand

DEFAULT, STATIC = "int8", "int8-static"
BATCHES = (32, 1)
MIN_AGREEMENT = 0.98
# The bound for continuous actions that corresponds to an agreement of 0.98.
MAX_MEAN_ERROR = 0.02
# By scheme: least agreement, or largest mean action error. int8 is the default scheme.
FLOORS = {DEFAULT: (MIN_AGREEMENT, MAX_MEAN_ERROR), STATIC: (MIN_AGREEMENT, 0.005)}
# By scheme and first word of the task. Static ranges cost more where the values of actions nearly tie.
LOWER_AGREEMENTS = {(STATIC, "CartPole"): 0.89}
VARIANTS: dict[str, tuple[str, Options]] = {
    **{name: (name, Options()) for name in SCHEME_NAMES if name in SCHEMES},
    "int8, per tensor": ("int8", Options(per_tensor_error=math.inf)),
    "int8, per channel": ("int8", Options(per_tensor_error=0.0)),
    "int8, ends too": ("int8", Options(ends=True)),
    "int8, ends too, per tensor": ("int8", Options(ends=True, per_tensor_error=math.inf)),
    "int8-static, ends too": ("int8-static", Options(ends=True)),
    "int4, ends too": ("int4", Options(ends=True)),
}


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="CartPole seeds 1 to N (default: 3)")
    parser.add_argument("--quick", action="store_true", help="one CartPole seed only, no walker, no CNN")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="folder that keeps the policies for another run")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the errors to FILE, such as a PNG")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    torch.set_num_threads(1)
    tasks: list[Task] = [CartPole(seed) for seed in range(1, 2 if arguments.quick else arguments.seeds + 1)]
    if not arguments.quick:
        tasks += [WalkerStand(), PongCNN()]
    figures: dict[str, dict[str, Figures]] = {}
    for task in tasks:
        policy = _trained(task, arguments.cache)
        figures[task.name] = {}
        print(f"\n{task.name}: {task.trained_by}; {len(policy.held_out)} held-out observations")
        for variant, (scheme, options) in VARIANTS.items():
            figures[task.name][variant] = measure(task, policy, scheme, options)
            print(_row(variant, figures[task.name][variant]), flush=True)
    if arguments.plot:
        # Imported here, because only --plot needs it.
        from benchmarks.policy.fidelity_plot import plot

        plot(figures, MIN_AGREEMENT, MAX_MEAN_ERROR, arguments.plot)
    trained_by = {task.name: task.trained_by for task in tasks}
    written = {
        name: {variant: asdict(found) for variant, found in of_policy.items()} for name, of_policy in figures.items()
    }
    return {"trained_by": trained_by, "policies": written}, targets(figures)


def measure(task: Task, policy: TrainedPolicy, scheme: str, options: Options) -> Figures:
    """Emit the policy and compare it with FP32 as an actor runs it."""
    emission = emit(policy.graph, policy.checkpoint, scheme, options)
    emitted = as_policy(policy.graph, policy.checkpoint, scheme, emission)
    fp32 = as_policy(policy.graph, policy.checkpoint, FP32, emit(policy.graph, policy.checkpoint, FP32))
    errors, signature = {}, policy.graph.signature
    for batch in BATCHES:
        got, expected = (
            _outputs(OnnxPolicy(each, task.spec.observations, batch), policy.held_out, batch)
            for each in (emitted, fp32)
        )
        errors[batch] = compare(got, expected, signature.is_discrete, signature.acting.spans)
    returns = task.returns(OnnxPolicy(emitted, task.spec.observations, task.episodes))
    quantized = {layer.name: layer.weights for layer in emission.layers if not layer.in_float}
    return Figures(len(emission.model), quantized, errors, returns)


def compare(
    got: NDArray[np.float64], expected: NDArray[np.float64], discrete_actions: bool, spans: tuple[float, ...]
) -> Errors:
    """Errors of outputs [R, M] as the quantizer reports them, relative to the spans or to the range of `expected`."""
    spread = float(np.ptp(expected)) or 1.0
    errors = np.abs(got - expected) / (np.array(spans) if spans else spread)
    mean_error, max_error = float(errors.mean()), float(errors.max())
    if not discrete_actions:
        return Errors(mean_error, max_error, None)
    taken = got.argmax(axis=1)
    lost = (expected.max(axis=1) - np.take_along_axis(expected, taken[:, None], axis=1)[:, 0]) / spread
    return Errors(mean_error, max_error, float((taken == expected.argmax(axis=1)).mean()), float(lost.max()))


def targets(figures: dict[str, dict[str, Figures]]) -> list[Target]:
    """The targets of int8 and int8-static, in batches of 32."""
    found = []
    for name, variants in figures.items():
        for scheme, (agreement, mean_error) in FLOORS.items():
            errors = variants[scheme].errors[BATCHES[0]]
            if errors.agreement is not None:
                agreement = LOWER_AGREEMENTS.get((scheme, name.split()[0]), agreement)
                found.append(Target(f"{name}: agreement of {scheme}", errors.agreement, agreement, at_most=False))
            else:
                found.append(Target(f"{name}: mean action error of {scheme}", errors.mean_error, mean_error))
    return found


def _trained(task: Task, cache: Path | None) -> TrainedPolicy:
    file = cache / f"{task.name.replace(' ', '-').replace(',', '')}.npz" if cache else None
    if file and file.exists():
        return TrainedPolicy.load(file)
    started = time.monotonic()
    policy = task.train(lambda line: print(f"  {line} ({time.monotonic() - started:.0f} s)", flush=True))
    if file:
        policy.save(file)
    return policy


def _outputs(policy: OnnxPolicy, observations: NDArray[Any], batch: int) -> NDArray[np.float64]:
    """The first output for all full batches of observations."""
    rows = len(observations) // batch * batch
    outputs = [policy(observations[start : start + batch]).copy() for start in range(0, rows, batch)]
    return np.concatenate(outputs).astype(np.float64)


def _row(variant: str, figures: Figures) -> str:
    parts = []
    for batch, errors in figures.errors.items():
        agreement = (
            ""
            if errors.agreement is None
            else f"agreement {errors.agreement:.4f}, loses at most {errors.lost_value:.4f}, "
        )
        parts.append(f"batch {batch:2}: {agreement}error {errors.mean_error:.4f}, at most {errors.max_error:.3f}")
    held = f"{len(figures.quantized)} layers" if figures.quantized else "no layer"
    return (
        f"  {variant:28}{figures.size_bytes / 1e3:8.0f} kB {held:9} {';  '.join(parts)};  "
        f"return {np.mean(figures.returns):.1f}"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
