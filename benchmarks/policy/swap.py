"""Time from new FP32 tensors to a session that has run once, compared with a new export and quantization.

The policies are ReLU MLPs with three hidden layers. Reference: torch.onnx.export, then
onnxruntime.quantization.quantize_dynamic, then a new session. There are two stronger baselines: the older TorchScript
exporter, and a user who exports once and replaces the initializers of that file. ActorQ's time includes the fidelity
gate of each served version; the baselines check nothing. All paths take turns, with new weights in every repeat.
Figures are medians. Ratios also have the lowest and highest repeat. Targets are relative to the reference and to the
kept export.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from actorq.domain.policy import SCHEMES as SCHEME_NAMES
from actorq.quantization.schemes import SCHEMES
from benchmarks.harness import Target, run_benchmark
from benchmarks.policies import vector_network
from benchmarks.policy.swap_paths import STAGES, ActorQPath, ReferencePath, renew

DEFAULT_SCHEME = "int8"
REFERENCE = "torch.onnx.export and quantize_dynamic"
PATCHED = "patched export and quantize_dynamic"
BASELINES = {
    REFERENCE: "dynamo",
    "TorchScript exporter and quantize_dynamic": "torchscript",
    PATCHED: "patched",
}
WIDTHS = (64, 128, 256, 512, 1024, 2048)
# By width: speed relative to the reference, and to the kept export. The stored result is up to a third higher, a margin
# for a busy machine.
BOUNDS = {
    64: (160.0, 1.4),
    128: (200.0, 2.0),
    256: (140.0, 1.7),
    512: (80.0, 2.1),
    1024: (26.0, 2.3),
    2048: (13.0, 3.6),
}
# Milliseconds of each stage of one swap.
Swap = dict[str, float]


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="repeats of every path (default: 7)")
    parser.add_argument("--quick", action="store_true", help="two repeats, widths 64 and 512")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the stages to FILE, such as a PNG")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    torch.set_num_threads(1)
    widths = (64, 512) if arguments.quick else WIDTHS
    repeats = 2 if arguments.quick else arguments.repeats
    figures = {}
    for width in widths:
        started = time.monotonic()
        figures[width] = summarize(_swaps(width, repeats))
        print(f"width {width} ({time.monotonic() - started:.0f} s)\n{_table(figures[width])}", flush=True)
    if arguments.plot:
        # Imported here, because only --plot needs it.
        from benchmarks.policy.swap_plot import plot

        plot(figures, (f"actorq {DEFAULT_SCHEME}", *BASELINES), arguments.plot)
    return {"repeats": repeats, "widths": figures}, targets(figures)


def targets(figures: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> list[Target]:
    """For each width, the speed of a swap with its gate, relative to the naive export and to the kept one."""
    found = []
    for width, of_width in figures.items():
        ours = of_width[f"actorq {DEFAULT_SCHEME}"]
        for name, ratio, bound in zip(("naive", "kept"), ("ratio", "ratio_to_kept"), BOUNDS[width], strict=True):
            name = f"width {width}: times that a swap with its gate is faster than a {name} export"
            found.append(Target(name, ours[ratio]["median"], bound, at_most=False))
    return found


def _swaps(width: int, repeats: int) -> dict[str, list[Swap]]:
    """The swaps of every path, in turn. The first one of each warms up and is not counted."""
    network = vector_network("mlp", width)
    generator = torch.Generator().manual_seed(width)
    paths: dict[str, ActorQPath | ReferencePath] = {
        f"actorq {scheme}": ActorQPath(network, scheme) for scheme in SCHEME_NAMES if scheme in SCHEMES
    }
    paths |= {name: ReferencePath(network, exporter) for name, exporter in BASELINES.items()}
    swaps: dict[str, list[Swap]] = {name: [] for name in paths}
    for repeat in range(repeats + 1):
        for name, path in paths.items():
            renew(network.module, generator)
            seconds = path.swap()
            if repeat:
                swaps[name].append({stage: 1e3 * value for stage, value in seconds.items()})
    return swaps


def summarize(swaps: Mapping[str, Sequence[Swap]]) -> dict[str, dict[str, Any]]:
    """For each path: medians of stages and total in ms, and its speed relative to the reference and to PATCHED.

    A repeat's ratio compares the two swaps of that repeat. The median ratio is the ratio of the medians.
    """
    totals = {name: [sum(swap.values()) for swap in of_path] for name, of_path in swaps.items()}
    figures = {}
    for name, of_path in swaps.items():
        stages = {stage for swap in of_path for stage in swap}
        figures[name] = {
            "stages_ms": {stage: statistics.median(swap[stage] for swap in of_path) for stage in sorted(stages)},
            "total_ms": statistics.median(totals[name]),
            "ratio": _ratio(totals[REFERENCE], totals[name]),
            "ratio_to_kept": _ratio(totals[PATCHED], totals[name]),
        }
    return figures


def _ratio(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    ratios = [theirs / ours for theirs, ours in zip(slow, fast, strict=True)]
    return {"median": statistics.median(slow) / statistics.median(fast), "low": min(ratios), "high": max(ratios)}


def _table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        f"  {'ms':42}"
        + "".join(f"{stage:>15}" for stage in STAGES)
        + f"{'total':>10}{'naive / it':>24}{'kept / it':>20}"
    ]
    for name, figure in figures.items():
        stages = figure["stages_ms"]
        cells = "".join(f"{stages[stage]:15.2f}" if stage in stages else f"{'':15}" for stage in STAGES)
        naive, kept = (
            f"{ratio['median']:.1f} ({ratio['low']:.1f} to {ratio['high']:.1f})"
            for ratio in (figure["ratio"], figure["ratio_to_kept"])
        )
        lines.append(f"  {name:42}{cells}{figure['total_ms']:10.2f}{naive:>24}{kept:>20}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
