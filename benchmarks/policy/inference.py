"""Times a policy's call in an actor: every scheme against ONNX Runtime fp32 and torch fp32.

Networks: ReLU MLPs of three hidden layers, the D4PG policy, the Nature CNN on uint8 frames. They are untrained, because
time does not depend on the weights. ONNX Runtime uses the actor's own session: one thread, buffers bound once. torch
uses one thread in inference mode, from and to numpy arrays. All take turns in each cell. Figures are medians of the
repeats; ratios are over ONNX Runtime fp32. The cold table times single calls after a pass over memory that empties the
processor's caches, as an environment's step does.

Policies have the weight encoding of an actor on this processor. int8 is also timed in the other encoding if that is
exact. This shows the cost of unsigned weights with an int8 dot product. Without a dot product it is also timed with
weights of 7 bits. These are signed and exact there, but represent other numbers. ActorQ has no scheme with 7 bits.

auto is an actor's choice (`actor_service.policies.selection.select`, with its own short timing). Its regret is its
relative slowness against the fastest candidate by this timing. If the two differ, they are timed again separately,
because the lowest of many medians is biased low.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper

from actor_service.policies.policy import OnnxPolicy
from actor_service.policies.selection import select
from actorq.arithmetic import Arithmetic, arithmetic
from actorq.domain.policy import FP32, SIGNED, Policy
from actorq.domain.policy import SCHEMES as SCHEME_NAMES
from actorq.quantization.schemes import SCHEMES
from actorq.weightencoding import in_weight_encoding
from benchmarks.harness import Meaning, Target, run_benchmark
from benchmarks.policies import PolicyNetwork, as_policy, checkpoint_of, emit, frame_network, vector_network
from benchmarks.policy.figures import Cell
from benchmarks.policy.inference_timing import Call, cold, slowness, tight
from benchmarks.processor import DOT_PRODUCT, NO_DOT_PRODUCT

TORCH = "torch fp32"
BATCHES = (1, 8, 32, 64)
MLP_WIDTHS = (64, 128, 256, 512, 1024, 2048)
D4PG_WIDTHS = (256, 1024)
# Sizes with calls so short that the caches after an environment's step matter.
COLD_WIDTHS, COLD_BATCHES = (64, 128, 256, 512), (1, 8)
SLICE_S = 0.008
SEVEN_BITS = "int8, 7 bits"
# Targets: network, batch, scheme, the compared scheme, the least ratio, and the needed feature of the processor.
BOUNDS = (
    ("mlp 2048", 1, "int8", FP32, 6.0, DOT_PRODUCT),
    ("mlp 256", 32, "int8", FP32, 1.8, DOT_PRODUCT),
    ("cnn", 8, "int8-static", FP32, 1.8, DOT_PRODUCT),
    ("mlp 2048", 1, "int4", "int8", 1.0, ""),
    ("mlp 512", 1, "int8", FP32, 1.8, NO_DOT_PRODUCT),
    ("mlp 512", 8, "int8", FP32, 1.2, NO_DOT_PRODUCT),
    ("mlp 1024", 1, "int8", FP32, 2.5, NO_DOT_PRODUCT),
    ("mlp 1024", 8, "int8", FP32, 1.7, NO_DOT_PRODUCT),
    ("mlp 2048", 1, "int8", FP32, 4.0, NO_DOT_PRODUCT),
    ("mlp 2048", 8, "int8", FP32, 2.5, NO_DOT_PRODUCT),
)
# Twice the level 2 cache of most servers.
EVICT_BYTES = 4 << 20


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="slices of each call (default: 15)")
    parser.add_argument("--quick", action="store_true", help="three repeats, few networks, batches 1 and 32")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios to FILE, such as a PNG")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    torch.set_num_threads(1)
    batches = (1, 32) if arguments.quick else BATCHES
    repeats = 3 if arguments.quick else arguments.repeats
    cells: list[Cell] = []
    for network in _networks(arguments.quick):
        policies = emitted(network)
        for batch in batches:
            cells.append(_cell(network, policies, batch, repeats))
            if len(cells) == 1:
                print(_header(cells[0].timings))
            print(_row(cells[-1]), flush=True)
    print(f"\nafter a pass over {EVICT_BYTES >> 20} MiB between calls\n{_header(cells[0].timings)}")
    for cell in cells:
        if cell.cold:
            print(_row(Cell(cell.network, cell.batch, cell.cold)))
    if arguments.plot:
        # Imported here, because only --plot needs it.
        from benchmarks.policy.inference_plot import plot

        plot(cells, arguments.plot)
    figures = {
        "slice_s": SLICE_S,
        "repeats": repeats,
        "evict_bytes": EVICT_BYTES,
        "weight_encoding": arithmetic().weight_encoding,
    }
    return {**figures, "cells": [asdict(cell) for cell in cells]}, targets(cells)


def emitted(network: PolicyNetwork) -> dict[str, Policy]:
    """The network in every scheme that this processor computes exactly."""
    graph, checkpoint = checkpoint_of(network)
    return {name: as_policy(graph, checkpoint, name, emit(graph, checkpoint, name)) for name in _schemes()}


def compared(policies: Mapping[str, Policy], here: Arithmetic) -> dict[str, Policy]:
    """int8 in other forms that are exact on a processor with this arithmetic: the other encoding, or 7 bits."""
    policy = policies.get("int8")
    if policy is None:
        return {}
    if SIGNED not in here.weight_encodings:
        return {SEVEN_BITS: with_seven_bits(in_weight_encoding(policy, SIGNED))}
    others = here.weight_encodings[1:]
    return {f"int8, {each} weights": in_weight_encoding(policy, each) for each in others}


def with_seven_bits(policy: Policy) -> Policy:
    """The policy of scheme int8 with half of each signed weight, rounded, and twice its scale.

    Two products with values up to 255 then fit 16 bits.
    """
    model = onnx.load_from_string(policy.model)
    products = [node for node in model.graph.node if node.op_type == "DynamicQuantizeMatMul"]
    weights, scales = ({node.input[place] for node in products} for place in (1, 2))
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.name in weights:
            halves = np.clip(np.rint(values / 2), -63, 63).astype(np.int8)
            tensor.CopyFrom(numpy_helper.from_array(halves, tensor.name))
        elif tensor.name in scales:
            tensor.CopyFrom(numpy_helper.from_array(values * np.float32(2), tensor.name))
    return replace(policy, model=model.SerializeToString())


def _schemes() -> list[str]:
    return [name for name in SCHEME_NAMES if name in SCHEMES and name not in arithmetic().inexact_schemes]


MEANINGS = (
    Meaning(
        r"(?P<network>.+), batch (?P<batch>\d+): times that (?P<scheme>.+) is faster than (?P<other>.+)",
        "How many times faster does a quantized policy answer?",
        "The quantized policy is faster, but by less than planned.",
        unit=" times",
        case="{network}, batch {batch}, {scheme} over {other}",
    ),
    Meaning(
        r"auto's regret in percent \(worst at (?P<where>.+), where it takes (?P<scheme>.+)\)",
        "How much faster is the best scheme than the choice of `auto`?",
        "At worst `--scheme auto` costs this share of an answer's time. A fixed scheme avoids it.",
        unit="%",
        case="{where}",
    ),
)


def targets(cells: list[Cell]) -> list[Target]:
    """The targets of the measured cells. In each cell auto must be near the best."""
    found = []
    for network, batch, scheme, over, bound, needs in BOUNDS:
        for cell in cells:
            if (cell.network, cell.batch) == (network, batch) and scheme in cell.timings:
                name = f"{network}, batch {batch}: times that {scheme} is faster than {over}"
                found.append(Target(name, cell.speedup(scheme, over), bound, at_most=False, needs=needs))
    worst = max(cells, key=lambda cell: cell.regret)
    where = f"worst at {worst.network}, batch {worst.batch}, where it takes {worst.auto}"
    found.append(Target(f"auto's regret in percent ({where})", 100 * worst.regret, 5.0))
    return found


def _networks(quick: bool) -> Iterator[PolicyNetwork]:
    for width in (256, 2048) if quick else MLP_WIDTHS:
        yield vector_network("mlp", width)
    for width in () if quick else D4PG_WIDTHS:
        yield vector_network("d4pg", width)
    yield frame_network()


def _cell(network: PolicyNetwork, policies: Mapping[str, Policy], batch: int, repeats: int) -> Cell:
    observations = np.ascontiguousarray(network.calibration[:batch])
    calls: dict[str, Call] = {TORCH: _torch_call(network, observations)}
    for name, policy in {**policies, **compared(policies, arithmetic())}.items():
        calls[name] = _call(OnnxPolicy(policy, network.spec.observations, batch), observations)
    timings = tight(calls, repeats, SLICE_S)
    auto = select(policies.values(), network.spec.observations, batch).scheme
    candidates = [name for name, policy in policies.items() if policy.descriptor.effective_scheme == name]
    fastest = min(candidates, key=lambda name: timings[name].median)
    regret = 0.0
    if auto != fastest:
        regret = max(0.0, slowness(calls[auto], calls[fastest], 2 * repeats, SLICE_S) - 1)
    kind, _, width = network.name.partition(" ")
    measures_cold = kind != "cnn" and int(width) in COLD_WIDTHS and batch in COLD_BATCHES
    from_cold = cold(calls, 10 * repeats, EVICT_BYTES) if measures_cold else {}
    return Cell(network.name, batch, timings, auto, regret, from_cold)


def _call(policy: Callable[[NDArray[Any]], object], observations: NDArray[Any]) -> Call:
    return lambda: policy(observations)


def _torch_call(network: PolicyNetwork, observations: NDArray[Any]) -> Call:
    module = network.module.eval()

    def call() -> object:
        with torch.inference_mode():
            return module(torch.from_numpy(observations)).numpy()

    return call


def _header(names: Iterable[str]) -> str:
    return f"{'microseconds (times fp32)':26}" + "".join(f"{name:>23}" for name in names) + "   auto"


def _row(cell: Cell) -> str:
    cells = "".join(f"{timing.median:15.1f} ({cell.speedup(name):4.2f}x)" for name, timing in cell.timings.items())
    auto = f"   {cell.auto} ({100 * cell.regret:.1f}% regret)" if cell.auto else ""
    return f"{cell.network:>12} batch {cell.batch:2}     {cells}{auto}"


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
