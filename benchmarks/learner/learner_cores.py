"""Updates per second of the learner on all cores of this process, compared with one thread and Stable-Baselines3.

Times are of the wall clock. All contenders take turns in one process. A round counts only if other processes took less
than an eighth of a core in each of its turns, because threads that share a core wait for each other.

- SAC and TD3 (256-256, batch 256) with one thread and with a thread for each core, in both precisions, against
  Stable-Baselines3 with the better one of these numbers of threads.
- SAC with 3 x 1,024 units, with one thread and with a thread for each core.
- SAC (256-256) while another process uses a whole core, like an actor of a run on one machine.

The names of the figures have the number that `learner.torch_threads auto` takes. It is 1 if other programs use the
cores at that moment.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from actorq.config.run_config import RunConfig
from actorq.telemetry.machine import usable_cores
from benchmarks.harness import Meaning, Target, run_benchmark
from benchmarks.learner.learner import BATCHES, HALF_CHEETAH, UPDATES, config_of, random_rows, store_of, updates
from benchmarks.learner.learner_baselines import stable_baselines
from benchmarks.processor import BFLOAT16, has
from learner_service.kernels.memory import keep_memory
from learner_service.training.threads import choose

_SIZES, _WIDE = (256, 256), (1024, 1024, 1024)
# Speed relative to Stable-Baselines3 with and without bfloat16 products, relative to one thread, and of a wide network.
_WITH_BF16, _WITHOUT_BF16, _TWO_CORES = 3.3, 2.2, 1.3
# Share of a core that other processes may use in a turn.
_OTHERS = 0.125
_FEWEST_ROUNDS = 3
_ALL = "actorq, all cores"
_BUSY = "while True: sum(range(10_000))"
Runs = dict[str, Callable[[], object]]
Seconds = Mapping[str, list[float]]


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="rounds that count (default: 15)")
    parser.add_argument("--slice", type=float, default=0.3, metavar="S", help="seconds per turn (default: 0.3)")
    parser.add_argument(
        "--longest", type=float, default=120.0, metavar="S", help="seconds to find quiet rounds in (default: 120)"
    )


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    figures: dict[str, Any] = {}
    targets: list[Target] = []
    keep_memory()
    rows, threads = random_rows(HALF_CHEETAH), usable_cores()
    with tempfile.TemporaryDirectory() as directory:
        store = store_of(Path(directory), HALF_CHEETAH, rows)

        def contender(threads: int, algorithm: str, **options: Any) -> Callable[[], object]:
            return _with_threads(threads, updates(algorithm, HALF_CHEETAH, store, **options))

        def measured(name: str, runs: Runs, quiet: bool = True) -> Seconds:
            seconds = quiet_turns(runs, arguments, quiet)
            figures[name] = _figures(seconds)
            print(name, figures[name], flush=True)
            return seconds

        for algorithm in ("sac", "td3"):
            auto = _auto(config_of(algorithm, threads="auto"))
            runs: Runs = {"actorq, 1 thread": contender(1, algorithm)}
            for number in sorted({1, threads}) if has(BFLOAT16) else ():
                runs[f"actorq bf16, {number} threads"] = contender(number, algorithm, precision="bf16")
            runs[_ALL] = contender(threads, algorithm)
            for number in sorted({1, threads}):
                theirs = stable_baselines(algorithm, HALF_CHEETAH, rows, list(_SIZES), BATCHES[algorithm], UPDATES)
                runs[f"Stable-Baselines3, {number} threads"] = _with_threads(number, theirs)
            seconds = measured(f"{algorithm}, auto is {auto}", runs)
            targets += _targets(algorithm, seconds)
        auto = _auto(config_of("sac", threads="auto", sizes=_WIDE))
        runs = {
            "actorq, 1 thread": contender(1, "sac", sizes=_WIDE),
            _ALL: contender(threads, "sac", sizes=_WIDE),
        }
        seconds = measured(f"sac, 3 x 1024, auto is {auto}", runs)
        targets.append(_faster("sac, 3 x 1024: all cores as fast as one", seconds, "actorq, 1 thread", _TWO_CORES))
        runs = {"actorq, 1 thread": contender(1, "sac"), _ALL: contender(threads, "sac")}
        with subprocess.Popen([sys.executable, "-c", _BUSY]) as busy:
            try:
                measured("sac, beside a process that uses a core", runs, quiet=False)
            finally:
                busy.kill()
        store.close()
    return figures, targets


def _with_threads(threads: int, run: Callable[[], object]) -> Callable[[], object]:
    def call() -> None:
        torch.set_num_threads(threads)
        run()

    return call


def _auto(config: RunConfig) -> int:
    """The number of threads that the learner chooses here."""
    chosen = choose(config, HALF_CHEETAH, torch.device("cpu"))
    assert chosen is not None
    return chosen.chosen


def quiet_turns(runs: Runs, arguments: argparse.Namespace, quiet: bool = True) -> Seconds:
    """Seconds per call of each contender in each quiet round; all rounds if `quiet` is False."""
    calls = {name: _calls(run, arguments.slice) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names, deadline = list(runs), time.monotonic() + arguments.longest
    while len(seconds[names[0]]) < arguments.repeats and time.monotonic() < deadline:
        turns = {name: _turn(runs[name], calls[name]) for name in names}
        names.append(names.pop(0))
        if not quiet or all(others < _OTHERS for _, others in turns.values()):
            for name, (each, _) in turns.items():
                seconds[name].append(each)
    if len(seconds[names[0]]) < _FEWEST_ROUNDS:
        raise SystemExit(f"fewer than {_FEWEST_ROUNDS} quiet rounds in {arguments.longest:g} s: stop other programs")
    return seconds


def _turn(run: Callable[[], object], calls: int) -> tuple[float, float]:
    """Seconds per call, and the cores that other processes used meanwhile."""
    # Not timed: threads start in it.
    run()
    busy, own, started = _busy_seconds(), time.process_time(), time.perf_counter()
    for _ in range(calls):
        run()
    wall = time.perf_counter() - started
    return wall / calls, (_busy_seconds() - busy - (time.process_time() - own)) / wall


def _busy_seconds() -> float:
    """CPU seconds of all processes of the machine."""
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0))


def _calls(run: Callable[[], object], slice_s: float) -> int:
    run()
    started = time.perf_counter()
    run()
    return max(1, round(slice_s / (time.perf_counter() - started)))


def _ratio(seconds: Seconds, ours: str, theirs: str) -> float:
    """Speed of ours relative to theirs: the median over rounds."""
    return median(b / a for a, b in zip(seconds[ours], seconds[theirs], strict=True))


def _figures(seconds: Seconds) -> dict[str, Any]:
    first = next(iter(seconds))
    return {
        name: {
            "updates_per_second": UPDATES / median(each),
            "of_one_thread": _ratio(seconds, name, first),
            "rounds": len(each),
        }
        for name, each in seconds.items()
    }


def _faster(name: str, seconds: Seconds, other: str, bound: float) -> Target:
    return Target(f"{name}, by the wall clock", _ratio(seconds, _ALL, other), bound, at_most=False)


MEANINGS = (
    Meaning(
        r"(?P<algorithm>\w+): times as fast as Stable-Baselines3, \d+ threads?, which is their better number.*",
        "How many times faster is an update on all cores than in Stable-Baselines3?",
        "The learner is faster on all cores, but by less than planned.",
        unit=" times",
        case="{algorithm}",
    ),
)


def _targets(algorithm: str, seconds: Seconds) -> list[Target]:
    theirs = min((name for name in seconds if name.startswith("Stable")), key=lambda name: median(seconds[name]))
    measured = max(_ratio(seconds, name, theirs) for name in seconds if name.startswith("actorq"))
    bound, needs = (_WITH_BF16, BFLOAT16) if has(BFLOAT16) else (_WITHOUT_BF16, "")
    name = f"{algorithm}: times as fast as {theirs}, which is their better number"
    return [
        Target(name, measured, bound, at_most=False, needs=needs),
        _faster(f"{algorithm}: all cores as fast as one", seconds, "actorq, 1 thread", _TWO_CORES),
    ]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
