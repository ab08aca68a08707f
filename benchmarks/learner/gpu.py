"""Updates per second of the learner on a GPU, compared with the CPU of the same machine.

The contenders take turns: the GPU, the CPU with one thread (the learner's default), and the CPU with `--threads`
threads. Each runs in fp32 and in bf16. An update draws a minibatch from a replay of 20,000 rows, copies the minibatch
to the device, and copies the new priorities back.

D4PG's policy has three hidden layers of 2048 units. All other networks have two hidden layers of 256 units. Only D4PG
has targets, because only its products are large.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Target, run_benchmark
from benchmarks.learner.learner import BATCHES, CART_POLE, HALF_CHEETAH, UPDATES, random_rows, store_of, updates
from benchmarks.learner.learner_timing import Turns, speedup, take_turns
from learner_service.kernels.memory import keep_memory

# Algorithms with their batches.
_CASES = (
    *((algorithm, BATCHES[algorithm]) for algorithm in ("dqn", "td3", "sac")),
    *(("d4pg", batch) for batch in (64, 256, 1024)),
)
# Speed of the GPU relative to the fastest form of the CPU, for D4PG with each batch.
_TARGETS = {64: 3.0, 256: 5.0, 1024: 10.0}


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads", type=int, default=8, metavar="N", help="threads of the CPU, compared with 1 thread (default: 8)"
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="turns of each contender (default: 5)")
    parser.add_argument("--slice", type=float, default=0.3, metavar="S", help="seconds per turn (default: 0.3)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU, and torch finds none")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    keep_memory()
    figures: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "cases": {}}
    targets = []
    with tempfile.TemporaryDirectory() as directory:
        for algorithm, batch in _CASES:
            spec = CART_POLE if algorithm == "dqn" else HALF_CHEETAH
            store = store_of(Path(directory) / f"{algorithm}-{batch}", spec, random_rows(spec))

            runs = {
                (device, precision): updates(algorithm, spec, store, precision=precision, device=device, batch=batch)
                for device in ("cuda", "cpu")
                for precision in ("fp32", "bf16")
            }
            contenders = {}
            for (device, precision), run in runs.items():
                if device == "cuda":
                    contenders[f"gpu {precision}"] = _with_threads(run, 1)
                    continue
                for threads in sorted({1, arguments.threads}):
                    contenders[f"cpu {precision}, {threads} threads"] = _with_threads(run, threads)
            turns = take_turns(contenders, arguments.repeats, arguments.slice)
            store.close()
            name = f"{algorithm}, batch {batch}"
            figures["cases"][name] = {key: UPDATES / each.median("wall") for key, each in turns.items()}
            rates = ", ".join(f"{key} {rate:,.0f}" for key, rate in figures["cases"][name].items())
            print(f"{name}, updates/s: {rates}", flush=True)
            if algorithm == "d4pg":
                targets.append(Target(f"{name}: times as fast as the CPU", _gain(turns), _TARGETS[batch], False))
    return figures, targets


def _with_threads(run: Callable[[], object], threads: int) -> Callable[[], object]:
    def run_with_threads() -> None:
        torch.set_num_threads(threads)
        run()

    return run_with_threads


def _gain(turns: Mapping[str, Turns]) -> float:
    """Speed of the faster precision of the GPU relative to the fastest form of the CPU."""
    gpu, cpu = (
        min((each for name, each in turns.items() if name.startswith(device)), key=lambda each: each.median("wall"))
        for device in ("gpu", "cpu")
    )
    return speedup(gpu, cpu, "wall")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
