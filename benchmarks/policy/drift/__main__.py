"""Measures policies with memory: the drift of the int8 state over 1,000 steps, and the time of a call.

Drift: the quantizer's gate judges each policy on 16 sequences of 64 steps, with its defaults. Then the emitted policy
and the FP32 policy run on the same 1,000 observations, each with its own state. The drift after a step is the largest
mean error of a number of the state, relative to its range, as in the gate. The mean is over 32 episodes. Trained
policies recall what they saw at the last cue, so their cells keep numbers over many steps. Random policies have weights
with which the state uses its whole range. Further cells begin as those of PPO do: half of their units keep their values
for up to 104 steps, so that rounding errors of many steps could add up.

Time: a call of an actor, with one hidden layer before a cell of as many units. "operator" is the same policy with ONNX
Runtime's GRU or LSTM operator in float32. "quantized operator" has ONNX Runtime's dynamic quantization, which supports
LSTM but not GRU. All use one thread and take turns. Figures are medians of the repeats.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType

from actor_service.policies.policy import OnnxPolicy
from actorq.arithmetic import arithmetic
from actorq.config.sections import QuantizerConfig
from actorq.domain.policy import FP32, SIGNED, Policy
from actorq.weightencoding import in_weight_encoding
from benchmarks.harness import Meaning, Target, run_benchmark
from benchmarks.policies import OBSERVATION_SIZE
from benchmarks.policy.drift.networks import SPEC, Recurrent, make, observations
from benchmarks.policy.drift.operators import quantized, with_operator
from benchmarks.policy.inference_timing import Call, Timing, tight
from benchmarks.processor import DOT_PRODUCT
from quantizer_service.emission.emitter import Emitter
from quantizer_service.emission.sequences import state_spans
from quantizer_service.store.store import PolicyStore

INT8 = "int8"
CELL, OPERATOR, QUANTIZED = "our cell, fp32", "operator, fp32", "quantized operator"
KINDS, UNITS = ("gru", "lstm"), (64, 128, 256)
STEPS, EPISODES = 1_000, 32
AFTER = (1, 8, 64, 256, STEPS)
HIDDEN = 128
UPDATES = 300
# Of new cells: 0 for those of algorithms with a replay. The other one is that of PPO on the task that needs 50 steps.
HORIZONS = (0, 104)
TIMED_UNITS, BATCHES = 512, (1, 32)
SLICE_S = 0.02
MAX_DRIFT, OVER_CELL, OVER_OPERATOR = 0.02, 2.0, 1.5


@dataclass(frozen=True)
class Drift:
    """The drift of a policy in int8.

    after: drift after so many steps, relative to the ranges; mean_error: mean error of the state after the last.
    gate: the gate's drift on its own sequences. refused: refused rungs. in_float: layers that the gate put in float.
    state_range: range of all FP32 states. task_error: see `Recurrent`.
    """

    policy: str
    after: Mapping[int, float]
    mean_error: float
    gate: float
    refused: int
    in_float: tuple[str, ...]
    state_range: float
    task_error: float


@dataclass(frozen=True)
class Speed:
    """Microseconds of a call by form. units: of the hidden layer and of the cell."""

    kind: str
    units: int
    batch: int
    timings: Mapping[str, Timing]

    def ratio(self, form: str) -> float:
        """How many times int8 is faster than this form."""
        return self.timings[form].median / self.timings[INT8].median


MEANINGS = (
    Meaning(
        r"(?P<policy>.+): drift of the int8 state after [\d,]+ steps",
        "How far does the state of an int8 policy drift over 1,000 steps?",
        "The state drifts further over long episodes than over the gate's sequences. Lower "
        "`quantizer.gate.max_state_drift`.",
        unit="%",
        scale=100.0,
        case="{policy}",
    ),
    Meaning(
        r"(?P<kind>\w+) of \d+ units, batch (?P<batch>\d+): times that int8 is faster than (?P<other>.+)",
        "How many times faster is an int8 policy with memory?",
        "int8 is faster, but by less than planned.",
        unit=" times",
        case="{kind}, batch {batch}, over {other}",
    ),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="slices of each call (default: 15)")
    parser.add_argument("--quick", action="store_true", help="three repeats, the smallest policies, little training")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    torch.set_num_threads(1)
    quick = arguments.quick
    drifts = []
    for horizon, kind, units, updates in product(HORIZONS, KINDS, UNITS[: 1 if quick else None], (0, UPDATES)):
        drifts.append(drift(make(kind, units, HIDDEN, min(updates, 10) if quick else updates, horizon=horizon)))
        print(_drift_row(drifts[-1]), flush=True)
    speeds = []
    for kind in KINDS:
        units = UNITS[0] if quick else TIMED_UNITS
        timed = make(kind, units, units, 0)
        for batch in BATCHES:
            speeds.append(speed(timed, kind, units, batch, 3 if quick else arguments.repeats))
            print(_speed_row(speeds[-1]), flush=True)
    figures = {
        "steps": STEPS,
        "episodes": EPISODES,
        "updates": UPDATES,
        "slice_s": SLICE_S,
        "weight_encoding": arithmetic().weight_encoding,
    }
    return {**figures, "drift": list(map(asdict, drifts)), "speed": list(map(asdict, speeds))}, targets(drifts, speeds)


def targets(drifts: list[Drift], speeds: list[Speed]) -> list[Target]:
    """The targets of the measured policies."""
    found = [
        Target(f"{each.policy}: drift of the int8 state after {STEPS:,} steps", each.after[STEPS], MAX_DRIFT)
        for each in drifts
    ]
    for each in speeds:
        name = f"{each.kind} of {each.units} units, batch {each.batch}: times that int8 is faster than"
        for form, bound in ((CELL, OVER_CELL), (OPERATOR, OVER_OPERATOR)):
            found.append(Target(f"{name} {form}", each.ratio(form), bound, at_most=False, needs=DOT_PRODUCT))
    return found


def drift(recurrent: Recurrent) -> Drift:
    """Emit a policy through the gate, and run it beside FP32 for 1,000 steps."""
    judged, exact = (emitted(recurrent, scheme) for scheme in (INT8, FP32))
    observed = observations(STEPS, EPISODES, seed=7)
    states, expected = (_states(policy, observed) for policy in (judged, exact))
    errors = np.abs(states - expected) / state_spans(expected.reshape(-1, expected.shape[-1]))
    fidelity = judged.descriptor.fidelity
    return Drift(
        policy=recurrent.name,
        after={step: float(errors[step - 1].mean(axis=0).max()) for step in AFTER},
        mean_error=float(errors[-1].mean()),
        gate=fidelity.state_drift or 0.0,
        refused=len(fidelity.refused),
        in_float=fidelity.gated_layers,
        state_range=float(np.ptp(expected)),
        task_error=recurrent.error,
    )


def emitted(recurrent: Recurrent, scheme: str) -> Policy:
    """The policy that the quantizer serves: at the first rung that passes the gate, in this processor's encoding."""
    with TemporaryDirectory() as folder:
        emitter = Emitter(PolicyStore(Path(folder), 1, 1), QuantizerConfig())
        emitter.catalog.claim("benchmark")
        emitter.add_graph(recurrent.graph)
        (policy,) = emitter.publish(recurrent.checkpoint, [scheme])
    return in_weight_encoding(policy, arithmetic().weight_encoding)


def _states(policy: Policy, observed: NDArray[np.float32]) -> NDArray[np.float32]:
    """The states after each step of episodes, float32[T, B, S]."""
    acting, states = OnnxPolicy(policy, SPEC.observations, observed.shape[1]), []
    for rows in observed:
        acting(rows)
        np.copyto(acting.state, acting.next_state)
        states.append(acting.next_state.copy())
    return np.stack(states)


def speed(recurrent: Recurrent, kind: str, units: int, batch: int, repeats: int) -> Speed:
    """Time a call in each form."""
    policies = {INT8: _quantized(recurrent), CELL: emitted(recurrent, FP32)}
    operator = with_operator(recurrent, kind)
    policies[OPERATOR] = _as_policy(policies[CELL], operator)
    if kind == "lstm":
        # As ActorQ does, weights are unsigned where signed weights are inexact.
        weights = QuantType.QInt8 if arithmetic().weight_encoding == SIGNED else QuantType.QUInt8
        policies[QUANTIZED] = _as_policy(policies[CELL], quantized(operator, weights))
    rows = np.random.default_rng(0).standard_normal((batch, OBSERVATION_SIZE)).astype(np.float32)
    calls = {name: _call(OnnxPolicy(policy, SPEC.observations, batch), rows) for name, policy in policies.items()}
    return Speed(kind, units, batch, tight(calls, repeats, SLICE_S))


def _quantized(recurrent: Recurrent) -> Policy:
    """The int8 policy. Raises SystemExit if the gate keeps layers in float, because the time is to be that of int8."""
    policy = emitted(recurrent, INT8)
    if policy.descriptor.fidelity.gated_layers:
        raise SystemExit(f"{recurrent.name}: the gate keeps {policy.descriptor.fidelity.gated_layers} in float")
    return policy


def _as_policy(like: Policy, model: bytes) -> Policy:
    return Policy(like.descriptor, model)


def _call(policy: Callable[[NDArray[Any]], object], rows: NDArray[np.float32]) -> Call:
    return lambda: policy(rows)


def _drift_row(found: Drift) -> str:
    after = "  ".join(f"{step}: {value:.2%}" for step, value in found.after.items())
    gate = f"gate {found.gate:.2%}, {found.refused} refused, in float {', '.join(found.in_float) or 'none'}"
    return f"{found.policy:36} drift after {after}; mean {found.mean_error:.2%}; {gate}; error {found.task_error:.3f}"


def _speed_row(found: Speed) -> str:
    forms = "  ".join(
        f"{name} {timing.median:.1f} us ({found.ratio(name):.2f}x)" for name, timing in found.timings.items()
    )
    return f"{found.kind} batch {found.batch}: {forms}"


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
