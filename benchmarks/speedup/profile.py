"""Compares predicted and measured environment steps per second: the model of `actorq profile`, and real runs.

Before each run its parts are measured and its speed is predicted, as `actorq profile` with its settings does. The parts
are measured in fp32 where all run together, for a few seconds. Steps per second of the run are counted over a window
after the first updates. The fidelity gate is open, so that an untrained policy acts in the requested scheme. The window
has no evaluations, because the length of their episodes depends on the training.

Other work on the machine takes cores away. The benchmark measures the cores that were left in each window, and predicts
for that number. A run waits until little else is running.
"""

import argparse
import json
import logging
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from actorq.client import LearnerClient
from actorq.config.run_config import RunConfig
from actorq.process import Sources, argument_parser
from actorq.telemetry.process_stats import FORK_SERVER
from actorq_apps.profile.measure import Figures, measure
from actorq_apps.profile.model import predict
from benchmarks.faults.chaos.fleet import until
from benchmarks.harness import Target, run_benchmark

_START_S, _END_S = 90.0, 60.0
_OTHERS, _WAIT_S = 0.3, 8.0
_WITHIN, _LEAST = 0.15, 9
_COMMON = (
    *("--target-return", "1e9", "--max-environment-steps", str(10**10), "--evaluation.period-updates", str(10**9)),
    *("--quantizer.gate.max-mean-error", "1e9", "--quantizer.gate.max-error", "1e9"),
    *("--quantizer.gate.min-agreement", "0", "--quantizer.gate.max-mean-kl", "1e9", "--quantizer.gate.max-kl", "1e9"),
    *("--replay.min-size", "1000", "--exploration.random-steps", "0"),
    *("--checkpoint.period-s", "1e6"),
)


@dataclass(frozen=True)
class Variant:
    """A run of a task: the actors' scheme and count, and the samples per insert."""

    scheme: str
    samples_per_insert: float
    actors: int

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags for `actorq train`."""
        ratio = self.samples_per_insert
        return (
            *("--scheme", self.scheme, "--rate-limiter.samples-per-insert", f"{ratio:g}"),
            *("--rate-limiter.error-buffer", f"{max(8192.0, 64 * ratio):g}", "--actors", str(self.actors)),
        )


@dataclass(frozen=True)
class Task:
    """Environment, algorithm and width, and the runs to make."""

    name: str
    flags: tuple[str, ...]
    variants: tuple[Variant, ...]


def _task(environment: str, algorithm: str, width: int, *variants: Variant) -> Task:
    sizes = {
        "d4pg": ("--d4pg.policy-sizes", f"{width},{width},{width}", "--d4pg.critic-sizes", f"{min(width, 256)},256"),
    }.get(algorithm, (f"--{algorithm}.hidden-sizes", f"{width},{width}"))
    flags = ("--environment", environment, "--algorithm", algorithm, *sizes)
    return Task(f"{environment} {algorithm} {width}", flags, variants)


TASKS = (
    _task("CartPole-v1", "dqn", 64, Variant("fp32", 1, 1), Variant("int8", 32, 1)),
    _task("CartPole-v1", "dqn", 1024, Variant("int8", 0.25, 2), Variant("fp32", 8, 1)),
    _task("Pendulum-v1", "sac", 256, Variant("fp32", 1, 2), Variant("int8", 64, 1)),
    _task("HalfCheetah-v5", "td3", 256, Variant("int8", 1, 1), Variant("fp32", 64, 1)),
    _task("dm_control/cartpole-balance", "d4pg", 64, Variant("fp32", 1, 1), Variant("int8", 32, 1)),
    _task("dm_control/cartpole-balance", "d4pg", 1024, Variant("int8", 0.5, 1), Variant("fp32", 0.5, 1)),
)


@dataclass(frozen=True)
class Measured:
    """A window of a run. core_seconds: per service and step. other_cores: cores that other programs kept busy."""

    steps_per_s: float
    updates_per_s: float
    versions_per_s: float
    starved: float
    core_seconds: dict[str, float]
    other_cores: float


def config_of(flags: Sequence[str]) -> RunConfig:
    """The configuration that results from flags of `actorq train`."""
    sources = Sources.read((RunConfig,), argument_parser("actorq train", "", (RunConfig,)).parse_args(flags))
    return sources.resolve(RunConfig)


def _await_quiet() -> None:
    """Wait, for a limited time, until other programs use little of the machine."""
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        if psutil.cpu_percent(2.0) / 100 * (psutil.cpu_count() or 1) < _OTHERS:
            return


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _service(process: psutil.Process) -> str:
    """The service of a process. Forked services have names of their own; others have a module in the command line."""
    name, command = process.name(), " ".join(process.cmdline())
    services = {"learner": "learner_service", "quantizer": "quantizer_service", "actor-": "actor_service"}
    services |= {"evaluator": "evaluator", "actorq.telem": "energy", FORK_SERVER: "launcher"}
    forked = next((service for begin, service in services.items() if name.startswith(begin)), "")
    if forked or "--role evaluator" in command:
        return forked or "evaluator"
    modules = ("learner_service", "quantizer_service", "actor_service", "energy")
    return next((module for module in modules if module in command), "launcher")


def _spent(launcher: psutil.Process) -> dict[str, float]:
    """Processor seconds by service so far."""
    spent: dict[str, float] = {}
    for process in (launcher, *launcher.children(recursive=True)):
        name = _service(process)
        times = process.cpu_times()
        spent[name] = spent.get(name, 0.0) + times.user + times.system
    return spent


def run(flags: Sequence[str], warm_up_s: float, seconds: float) -> Measured:
    """Make a run, and count over a window."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        command = [sys.executable, "-m", "actorq_apps.cli.main", "train", "--run-directory", str(directory), *flags]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            if until((directory / "addresses.json").exists, _START_S) is None:
                raise SystemExit(f"actorq train did not start: {' '.join(flags)}")
            address = json.loads((directory / "addresses.json").read_text(encoding="utf-8"))["learner"]
            with LearnerClient(address) as client:
                if until(lambda: _updates(client) > 0, _START_S) is None:
                    raise SystemExit(f"the run did not start to learn: {' '.join(flags)}")
                time.sleep(warm_up_s)
                launcher = psutil.Process(process.pid)
                began, busy, spent, before = time.monotonic(), _busy_s(), _spent(launcher), client.status()
                time.sleep(seconds)
                after, now_busy, now_spent = client.status(), _busy_s(), _spent(launcher)
                took = time.monotonic() - began
            steps = after.environment_steps - before.environment_steps
            ours = sum(now_spent.values()) - sum(spent.values())
            return Measured(
                steps_per_s=steps / took,
                updates_per_s=(after.updates - before.updates) / took,
                versions_per_s=(after.policy_version - before.policy_version) / took,
                starved=(after.starved_s - before.starved_s) / took,
                core_seconds={name: (total - spent.get(name, 0.0)) / steps for name, total in now_spent.items()},
                other_cores=max(0.0, (now_busy - busy - ours) / took),
            )
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(_END_S)


def _updates(client: LearnerClient) -> int:
    try:
        return client.status().updates
    except Exception:
        return 0


def _compare(figures: Figures, task: Task, variant: Variant, measured: Measured) -> dict[str, Any]:
    cores = (psutil.cpu_count() or 1) - measured.other_cores
    prediction = predict(figures.costs(variant.scheme), figures.workload, variant.actors, cores)
    busy = prediction.cores
    return {
        "task": task.name,
        **asdict(variant),
        "predicted_steps_per_s": round(prediction.steps_per_s, 1),
        "measured_steps_per_s": round(measured.steps_per_s, 1),
        "error": round(prediction.steps_per_s / measured.steps_per_s - 1, 4),
        "limit": prediction.limit.value,
        "limits": {limit.value: round(rate, 1) for limit, rate in prediction.limits.items()},
        "predicted_core_seconds": {
            name: getattr(busy, name) / prediction.steps_per_s for name in ("actors", "learner", "quantizer")
        },
        "measured": asdict(measured),
        "parts": figures.to_json(),
    }


def _microseconds(row: dict[str, Any]) -> str:
    predicted, measured = row["predicted_core_seconds"], row["measured"]["core_seconds"]
    services = {"actors": "actor_service", "learner": "learner_service", "quantizer": "quantizer_service"}
    parts = [f"{ours} {predicted[ours] * 1e6:.1f}/{measured[name] * 1e6:.1f}" for ours, name in services.items()]
    rest = sum(seconds for name, seconds in measured.items() if name not in services.values())
    return (
        f"{', '.join(parts)} (predicted/measured), launcher, meter and evaluator {rest * 1e6:.1f}; others kept "
        f"{row['measured']['other_cores']:.2f} cores busy"
    )


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", nargs="+", metavar="NAME", help="parts of the names of tasks (default: all)")
    parser.add_argument("--part-s", type=float, default=4.0, metavar="S", help="seconds per part (default: 4)")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="make no runs: predict for an earlier result with the current model"
    )
    parser.add_argument("--warm-up", type=float, default=5.0, metavar="S", help="seconds before windows (default: 5)")
    parser.add_argument("--seconds", type=float, default=15.0, metavar="S", help="seconds per window (default: 15)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    logging.basicConfig(level=logging.ERROR)
    tasks = [task for task in TASKS if not arguments.task or any(part in task.name for part in arguments.task)]
    rows: list[dict[str, Any]] = []
    earlier = json.loads(arguments.again.read_text(encoding="utf-8"))["figures"]["runs"] if arguments.again else None
    for task in tasks:
        for variant in task.variants:
            flags = (*task.flags, *_COMMON, *variant.flags)
            config = config_of(flags)
            if earlier is None:
                _await_quiet()
                figures = measure(config, arguments.part_s, lambda text: None)
                _await_quiet()
                measured = run(flags, arguments.warm_up, arguments.seconds)
            else:
                row = _row_of(earlier, task, variant)
                figures, measured = Figures.from_json(config, row["parts"]), Measured(**row["measured"])
            rows.append(_compare(figures, task, variant, measured))
            _print(rows[-1])
    within = sum(abs(row["error"]) <= _WITHIN for row in rows)
    least = _LEAST * len(rows) / sum(len(task.variants) for task in TASKS)
    return {"runs": rows}, [
        Target(f"runs of {len(rows)} whose prediction is within {_WITHIN:.0%}", within, least, at_most=False)
    ]


def _row_of(rows: list[dict[str, Any]], task: Task, variant: Variant) -> dict[str, Any]:
    wanted = {"task": task.name, **asdict(variant)}
    return next(row for row in rows if wanted.items() <= row.items())


def _print(row: dict[str, Any]) -> None:
    predicted, measured = row["predicted_steps_per_s"], row["measured_steps_per_s"]
    print(
        f"{row['task']:36} {row['scheme']:5} {row['samples_per_insert']:>5g} samples per insert, "
        f"{row['actors']} actors: predicted {predicted:>9,.0f} steps/s, measured {measured:>9,.0f} "
        f"({row['error']:+.0%}), limit {row['limit']}; microseconds of cores per step: {_microseconds(row)}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
