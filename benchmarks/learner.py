"""Updates per second of the learner's algorithms, beside Stable-Baselines3 and plain torch, taking turns in one run.

Same networks (256-256), batches (DQN 64, TD3 and SAC 256) and torch threads for all. Each figure includes drawing the
minibatch from a replay of 20,000 rows and, where the algorithm has one, the step of the target networks; DQN of
Stable-Baselines3 takes that step elsewhere and is measured without it. Ours makes eight updates a call, as the trainer
does, and theirs eight gradient steps.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actorq.config import RunConfig
from actorq.trajectory import ArraySpec, EnvironmentSpec, PolicySpan, Segment
from benchmarks.harness import Target, run_benchmark
from benchmarks.inference_timing import Timing, tight
from benchmarks.learner_baselines import Rows, plain, stable_baselines
from learner_service.algorithms import make_algorithm
from learner_service.replay import NStepBatch, ReplayStore, Returns, SegmentSource, UniformSampler, assemble

_SIZES, _ROWS, _UPDATES = [256, 256], 20_000, 8
_BATCHES = {"dqn": 64, "td3": 256, "sac": 256}
_HALF_CHEETAH = EnvironmentSpec(
    "HalfCheetah-v5", ArraySpec((17,), "float32"), ArraySpec((6,), "float32", (-1.0,) * 6, (1.0,) * 6), 0
)
_CART_POLE = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), 2)
_OURS, _THEIRS, _PLAIN, _COMPILED = "actorq", "Stable-Baselines3", "plain torch", "actorq compiled"


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="torch threads (default: 1 2)"
    )
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="turns that each takes (default: 9)")
    parser.add_argument("--slice", type=float, default=0.5, metavar="S", help="seconds a turn (default: 0.5)")
    parser.add_argument("--compile", action="store_true", help="measure learner.compile too; it needs a C++ compiler")
    parser.add_argument("--profile", action="store_true", help="print where the time of our updates goes, and end")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    figures: dict[str, Any] = {}
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as directory:
        for algorithm, batch in _BATCHES.items():
            spec = _CART_POLE if algorithm == "dqn" else _HALF_CHEETAH
            rows = _rows(spec)
            store = _store(Path(directory) / algorithm, spec, rows)
            if arguments.profile:
                _profile(_updates(algorithm, spec, store, compiled=False), algorithm)
                continue
            contenders: dict[str, Callable[[], object]] = {
                _OURS: _updates(algorithm, spec, store, compiled=False),
                _THEIRS: stable_baselines(algorithm, spec, rows, _SIZES, batch, _UPDATES),
                _PLAIN: plain(algorithm, spec, rows, _SIZES, batch, _UPDATES),
            }
            if arguments.compile:
                contenders[_COMPILED] = _updates(algorithm, spec, store, compiled=True)
            for threads in arguments.threads:
                timings = _time(contenders, threads, arguments)
                per_second = {name: 1e6 * _UPDATES / timing.median for name, timing in timings.items()}
                figures[f"{algorithm}, {threads} threads"] = per_second
                ratio = per_second[_OURS] / per_second[_THEIRS]
                text = ", ".join(f"{name} {value:.0f}" for name, value in per_second.items())
                print(f"{algorithm}, batch {batch}, {threads} threads, updates/s: {text} ({ratio:.2f}x)", flush=True)
                targets.append(
                    Target(f"{algorithm}, {threads} threads, of Stable-Baselines3", ratio, 1.5, at_most=False)
                )
            store.close()
    return {"updates_per_second": figures}, targets


def _time(
    contenders: dict[str, Callable[[], object]], threads: int, arguments: argparse.Namespace
) -> dict[str, Timing]:
    """CPU time with one thread, since all is computed on the calling one; the wall clock's with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        clock = time.thread_time if threads == 1 else time.perf_counter
        return tight(contenders, arguments.repeats, arguments.slice, clock)
    finally:
        torch.set_num_threads(before)


def _rows(spec: EnvironmentSpec) -> Rows:
    """Random transitions that follow on each other, a hundredth of them terminal."""
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((_ROWS + 1, *spec.observations.shape), np.float32)
    actions: NDArray[Any] = (
        rng.integers(spec.discrete_actions, size=_ROWS)
        if spec.discrete_actions
        else rng.uniform(-1, 1, (_ROWS, *spec.actions.shape)).astype(np.float32)
    )
    return {
        "observations": observations[:-1],
        "actions": actions,
        "rewards": rng.standard_normal(_ROWS, np.float32),
        "next_observations": observations[1:],
        "dones": (rng.random(_ROWS) < 0.01).astype(np.float32),
    }


def _store(directory: Path, spec: EnvironmentSpec, rows: Rows) -> ReplayStore:
    store = ReplayStore.open(directory, spec, 3 * _ROWS)
    last = rows["next_observations"][-1:]
    segment = Segment(
        sequence=1,
        observations=np.concatenate((rows["observations"], last))[:, None],
        actions=rows["actions"][:, None],
        rewards=rows["rewards"][:, None],
        terminated=rows["dones"][:, None] > 0,
        truncated=np.zeros((_ROWS, 1), np.bool_),
        valid=np.ones((_ROWS, 1), np.bool_),
        spans=(PolicySpan(0, 1, "fp32"),),
        ages=np.zeros(1, np.uint8),
    )
    store.insert(segment, SegmentSource.from_name("benchmark", 1, 1))
    return store


def _updates(algorithm: str, spec: EnvironmentSpec, store: ReplayStore, compiled: bool) -> Callable[[], object]:
    """`_UPDATES` updates of ours, from rows of the replay to new priorities."""
    section: dict[str, Any] = {"hidden_sizes": _SIZES, "batch_size": _BATCHES[algorithm], "n_step": 1}
    if algorithm == "dqn":
        # As Stable-Baselines3 has it.
        section |= {"double": False, "dueling": False}
    config = RunConfig.model_validate(
        {"algorithm": algorithm, algorithm: section, "learner": {"compile": compiled, "device": "cpu"}}
    )
    made = make_algorithm(config, spec)
    sampler, returns = UniformSampler(store, np.random.default_rng(1)), Returns(1, made.discount)
    out = NStepBatch.empty(spec, _UPDATES * made.batch_size)

    def run() -> None:
        sampled = sampler.sample(_UPDATES * made.batch_size)
        made.update(assemble(store, sampled.rows, returns, out), sampled.weights)

    return run


def _profile(run: Callable[[], object], algorithm: str) -> None:
    torch.set_num_threads(1)
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(20):
            run()
    print(f"{algorithm}, {20 * _UPDATES} updates, one thread")
    print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=40))


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
