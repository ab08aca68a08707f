"""Updates per second of the learner's algorithms, compared with the updates of Stable-Baselines3 and CleanRL.

All libraries use the same networks (256-256), batches (DQN 64, TD3 and SAC 256) and number of torch threads. They take
turns of a fraction of a second.

An update includes drawing the minibatch from a replay of 20,000 rows and, if there is one, the step of the target
networks. DQN of Stable-Baselines3 makes that step elsewhere and is measured without it. The learner makes eight updates
per call, as the trainer does. The other libraries make eight gradient steps per call. With one thread, the learner's
default, the target is about CPU time, which other work on the machine does not change. With more threads the target is
about the wall clock. Such a run needs one idle core per thread, because torch's threads wait busily.

The learner runs in fp32 and in bf16 (`learner.precision`). The targets are about the faster one. D4PG has a policy of
3 x 2048, critics of 256-256 and batch 64. Only its two precisions are compared.

`products` is the share of the learner's time in matrix products, by torch's profiler. No saving elsewhere makes an
update faster than its products. `--profile` prints the time of each part of the learner's updates. They are fast for
these reasons: products in oneDNN (learner_service/kernels/linear.py) or in bfloat16, operations that are recorded and
repeated without autograd (recorded.py), both critics in one graph node, and one vector of all parameters for Adam,
clipping and target copies. Large gradients are written once. The process keeps the memory that it frees, as the
learner's does. Eight minibatches are drawn at once, and target networks that do not change in between run once for
several of them.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from benchmarks.harness import Meaning, Target, run_benchmark
from benchmarks.learner.learner_baselines import Rows, cleanrl, stable_baselines
from benchmarks.learner.learner_timing import Clock, Turns, speedup, take_turns
from benchmarks.processor import BFLOAT16
from learner_service.algorithms import make_algorithm
from learner_service.kernels.memory import keep_memory
from learner_service.replay import ReplayStore, Returns, SegmentSource, UniformSampler, assemble, empty_batch
from learner_service.training.device import allocator_for

_SIZES, _ROWS, UPDATES = [256, 256], 20_000, 8
BATCHES = {"dqn": 64, "td3": 256, "sac": 256, "d4pg": 64}
# Stable-Baselines3 and CleanRL have no such D4PG, so only precisions are compared.
_WIDE = {"policy_sizes": [2048] * 3, "critic_sizes": [256, 256], "n_step": 1}
HALF_CHEETAH = EnvironmentSpec(
    "HalfCheetah-v5", ArraySpec((17,), "float32"), ArraySpec((6,), "float32", (-1.0,) * 6, (1.0,) * 6), ()
)
CART_POLE = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), (2,))
_OURS, _BF16, _COMPILED = "actorq", "actorq bf16", "actorq compiled"
_THEIRS, _CLEANRL = "Stable-Baselines3", "CleanRL's update"
# Speed relative to Stable-Baselines3 in the faster precision; for D4PG, speed of bf16 relative to fp32.
_TARGETS = {"dqn": 1.5, "td3": 3.0, "sac": 3.0, "d4pg": 1.4}
# These depend on products in bfloat16.
_NEEDS = {"td3": BFLOAT16, "sac": BFLOAT16, "d4pg": BFLOAT16}

# Calls that are profiled, of UPDATES updates each. Groups of operations by parts of the names that torch gives them;
# the rest are small operations and autograd's.
_PROFILED = 20
_KINDS = {
    "products": ("linear_pointwise", "addmm", "aten::mm", "aten::bmm", "baddbmm"),
    "Adam": ("Adam", "_fused_adam"),
}


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--algorithm", nargs="+", choices=list(BATCHES), default=list(BATCHES), help="algorithms (default: all)"
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1], metavar="N", help="numbers of torch threads (default: 1)"
    )
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="turns of each contender (default: 15)")
    parser.add_argument("--slice", type=float, default=0.3, metavar="S", help="CPU seconds per turn (default: 0.3)")
    parser.add_argument("--compile", action="store_true", help="also measure learner.compile; needs a C++ compiler")
    parser.add_argument("--profile", action="store_true", help="only print the time of each part of the updates")
    parser.add_argument(
        "--precision", choices=("fp32", "bf16"), default="fp32", help="precision of --profile (default: fp32)"
    )


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    figures: dict[str, Any] = {}
    targets: list[Target] = []
    keep_memory()
    with tempfile.TemporaryDirectory() as directory:
        for algorithm in arguments.algorithm:
            batch = BATCHES[algorithm]
            spec = CART_POLE if algorithm == "dqn" else HALF_CHEETAH
            rows = random_rows(spec)
            store = store_of(Path(directory) / algorithm, spec, rows)
            if arguments.profile:
                _profile(updates(algorithm, spec, store, precision=arguments.precision), algorithm)
                continue
            contenders: dict[str, Callable[[], object]] = {
                _OURS: updates(algorithm, spec, store),
                _BF16: updates(algorithm, spec, store, precision="bf16"),
            }
            if algorithm != "d4pg":
                contenders[_THEIRS] = stable_baselines(algorithm, spec, rows, _SIZES, batch, UPDATES)
                contenders[_CLEANRL] = cleanrl(algorithm, spec, rows, _SIZES, batch, UPDATES)
            if arguments.compile:
                contenders[_COMPILED] = updates(algorithm, spec, store, compiled=True)
            for threads in arguments.threads:
                name = f"{algorithm}, batch {batch}, {threads} threads"
                turns = _take_turns(contenders, threads, arguments)
                figures[name] = _figures(turns)
                print(_row(name, turns), flush=True)
                for contender in (_OURS, _BF16):
                    averages = _profiled(contenders[contender], threads)
                    figures[name][contender]["products"] = _shares(averages)["products"]
                # One thread computes everything, so its CPU time equals the wall clock of a quiet machine.
                clock: Clock = "cpu" if threads == 1 else "wall"
                targets.append(_target(algorithm, name, turns, clock))
            store.close()
    return figures, targets


MEANINGS = (
    Meaning(
        r"(?P<algorithm>d4pg), (?P<size>batch \d+), .+: times as fast as actorq, by .+ time, in the better precision",
        "How many times faster is an update in bf16 than in fp32?",
        "`bf16` speeds up wide D4PG policies by less than planned.",
        unit=" times",
        case="{algorithm}, {size}",
    ),
    Meaning(
        r"(?P<algorithm>\w+), (?P<size>batch \d+), .+: times as fast as (?P<library>[^,]+), by .+",
        "How many times faster is an update than in another library?",
        "The learner is faster, but by less than planned.",
        unit=" times",
        case="{algorithm}, {size}, over {library}",
    ),
)


def _target(algorithm: str, name: str, turns: dict[str, Turns], clock: Clock) -> Target:
    other, ours = (_OURS, (_BF16,)) if algorithm == "d4pg" else (_THEIRS, (_OURS, _BF16))
    return Target(
        f"{name}: times as fast as {other}, by {clock} time, in the better precision",
        max(speedup(turns[each], turns[other], clock) for each in ours),
        _TARGETS[algorithm],
        at_most=False,
        needs=_NEEDS.get(algorithm, ""),
    )


def _take_turns(
    contenders: dict[str, Callable[[], object]], threads: int, arguments: argparse.Namespace
) -> dict[str, Turns]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return take_turns(contenders, arguments.repeats, arguments.slice)
    finally:
        torch.set_num_threads(before)


def _figures(turns: dict[str, Turns]) -> dict[str, Any]:
    """By contender: updates per second of both clocks, and the speed of ours relative to the contender."""
    clocks: tuple[Clock, ...] = ("cpu", "wall")
    return {
        name: {
            "updates_per_second": {clock: UPDATES / each.median(clock) for clock in clocks},
            "speedup_of_ours": {clock: speedup(turns[_OURS], each, clock) for clock in clocks},
        }
        for name, each in turns.items()
    }


def _row(name: str, turns: dict[str, Turns]) -> str:
    figures = _figures(turns)
    parts = [f"{contender} {row['updates_per_second']['cpu']:.0f}" for contender, row in figures.items()]
    ratios = [
        f"{row['speedup_of_ours']['cpu']:.2f} ({row['speedup_of_ours']['wall']:.2f} by the wall clock) of {contender}"
        for contender, row in figures.items()
        if contender != _OURS
    ]
    return f"{name}, updates per CPU second: {', '.join(parts)}; ours is {', '.join(ratios)}"


def random_rows(spec: EnvironmentSpec) -> Rows:
    """Random consecutive transitions; one in a hundred is terminal."""
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((_ROWS + 1, *spec.observations.shape), np.float32)
    actions: NDArray[Any] = (
        rng.integers(spec.acting_size, size=_ROWS)
        if spec.sizes
        else rng.uniform(-1, 1, (_ROWS, *spec.actions.shape)).astype(np.float32)
    )
    return {
        "observations": observations[:-1],
        "actions": actions,
        "rewards": rng.standard_normal(_ROWS, np.float32),
        "next_observations": observations[1:],
        "dones": (rng.random(_ROWS) < 0.01).astype(np.float32),
    }


def store_of(directory: Path, spec: EnvironmentSpec, rows: Rows) -> ReplayStore:
    """A replay with these rows."""
    store = ReplayStore.open(directory, spec, 3 * _ROWS)
    last = rows["next_observations"][-1:]
    segment = Segment(
        sequence=1,
        spans=(PolicySpan(0, 1, "fp32"),),
        columns={
            "observations": np.concatenate((rows["observations"], last))[:, None],
            "actions": rows["actions"][:, None],
            "rewards": rows["rewards"][:, None],
            "terminated": rows["dones"][:, None] > 0,
            "truncated": np.zeros((_ROWS, 1), np.bool_),
            "valid": np.ones((_ROWS, 1), np.bool_),
            "ages": np.zeros(1, np.uint8),
        },
    )
    store.insert(segment, SegmentSource.from_name("benchmark", 1, 1))
    return store


def config_of(
    algorithm: str,
    compiled: bool = False,
    precision: str = "fp32",
    device: str = "cpu",
    batch: int | None = None,
    sizes: Sequence[int] = _SIZES,
    threads: int | str = 1,
) -> RunConfig:
    """The configuration of a measured algorithm. batch: that of `BATCHES` by default."""
    networks = _WIDE if algorithm == "d4pg" else {"hidden_sizes": sizes, "n_step": 1}
    section: dict[str, Any] = {**networks, "batch_size": batch or BATCHES[algorithm]}
    if algorithm == "dqn":
        # The same as in Stable-Baselines3.
        section |= {"double": False, "dueling": False}
    learner = {"compile": compiled, "device": device, "precision": precision, "torch_threads": threads}
    return RunConfig.model_validate({"algorithm": algorithm, algorithm: section, "learner": learner})


def updates(algorithm: str, spec: EnvironmentSpec, store: ReplayStore, **options: Any) -> Callable[[], object]:
    """`UPDATES` updates of the learner, from replay rows to new priorities. options: of `config_of`."""
    config = config_of(algorithm, **options)
    device = config.learner.device
    made = make_algorithm(config, spec, torch.device(device))
    sampler, returns = UniformSampler(store, np.random.default_rng(1)), Returns(1, made.discount)
    out = empty_batch(spec, UPDATES * made.batch_size, returns, allocate=allocator_for(torch.device(device)))

    def run() -> None:
        sampled = sampler.sample(UPDATES * made.batch_size)
        made.update(assemble(store, sampled.rows, returns, out), sampled.weights)

    return run


def _profile(run: Callable[[], object], algorithm: str) -> None:
    averages = _profiled(run, 1)
    total = sum(each.self_cpu_time_total for each in averages)
    print(f"{algorithm}, {_PROFILED * UPDATES} updates, one thread: ", end="")
    parts = ", ".join(f"{kind} {share:.0%}" for kind, share in _shares(averages).items())
    print(parts, f"of {total / 1e6:.2f} s")
    print(averages.table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=40))


def _profiled(run: Callable[[], object], threads: int) -> Any:
    """The times of torch's operations in some calls."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        run()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(_PROFILED):
                run()
    finally:
        torch.set_num_threads(before)
    return profile.key_averages()


def _shares(averages: Any) -> dict[str, float]:
    """The share of each group of operations in the time of all."""
    total = sum(each.self_cpu_time_total for each in averages)
    return {
        kind: sum(each.self_cpu_time_total for each in averages if any(part in each.key for part in parts)) / total
        for kind, parts in _KINDS.items()
    }


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
