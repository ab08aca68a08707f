"""Updates and environment steps per second of whole runs, compared with an earlier commit, in turn on one machine.

The cases `updates` and `steps` are runs of `actorq train`, measured between two moments after their start. The case
`ingest` is a learner that stores segments of streams without environments, from each commit's stream benchmark. The
earlier commit runs in its own checkout, with the same installed packages.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from actorq.v1 import learner_pb2, learner_pb2_grpc
from benchmarks.faults.chaos.fleet import until
from benchmarks.harness import Target, run_benchmark

_HERE = Path(__file__).parents[2]
_START_S = 60.0
_DEADLINE_S = 60.0
_END_S = 60.0
_LEAST_RATIO = 0.97
_ENDLESS = ("--environment", "CartPole-v1", "--target-return", "1e9", "--max-environment-steps", str(10**10))
# The bottleneck of each run: the learner, or one actor's loop.
_RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "updates": ("updates", ("--rate-limiter.samples-per-insert", "64", "--actors", "1")),
    "steps": (
        "environment_steps",
        ("--rate-limiter.samples-per-insert", "0.2", "--actors", "1", "--environments-per-actor", "16"),
    ),
}
_CASES = (*_RUNS, "ingest")
_INGEST = ("--streams", "10", "--steps", "64", "--segments", "12000", "--reports", "1", "--versions", "1")
_INGEST_S = 300.0


@contextmanager
def _checkout(revision: str) -> Iterator[Path]:
    """A checkout of the project at `revision`."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        git = ("git", "-C", str(_HERE), "worktree")
        subprocess.run([*git, "add", "--detach", str(tree), revision], check=True, capture_output=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True, capture_output=True)


def _ingest(tree: Path) -> float:
    """Transitions per second that the learner of the project in `tree` stores."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "streams.json"
        # The folder of this benchmark differs between commits.
        module = next(tree.glob("benchmarks/**/streams.py")).relative_to(tree).with_suffix("")
        subprocess.run(
            [sys.executable, "-m", ".".join(module.parts), *_INGEST, "--json", str(file)],
            env={**os.environ, "PYTHONPATH": str(tree)},
            cwd=tree,
            check=True,
            capture_output=True,
            timeout=_INGEST_S,
        )
        (row,) = json.loads(file.read_text(encoding="utf-8"))["figures"]["actors"]
        return float(row["transitions_per_s"])


def _rate(tree: Path, case: str, warm_up_s: float, seconds: float) -> float:
    """Updates or steps per second of one run of the project in `tree`."""
    field, flags = _RUNS[case]
    # The command was in another folder once.
    command = f"{'actorq_apps' if (tree / 'actorq_apps').exists() else 'actorq'}.cli.main"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        process = subprocess.Popen(
            [sys.executable, "-m", command, "train", "--run-directory", str(run), *_ENDLESS, *flags],
            env={**os.environ, "PYTHONPATH": str(tree)},
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if until((run / "addresses.json").exists, _START_S) is None:
                raise SystemExit(f"actorq train did not start in {tree}")
            address = json.loads((run / "addresses.json").read_text(encoding="utf-8"))["learner"]
            with grpc.insecure_channel(address) as channel:
                stub = learner_pb2_grpc.LearnerServiceStub(channel)

                def count() -> int:
                    request = learner_pb2.GetStatusRequest()
                    status = stub.GetStatus(request, timeout=_DEADLINE_S, wait_for_ready=True).status
                    return int(getattr(status, field))

                if until(lambda: count() > 0, _START_S) is None:
                    raise SystemExit(f"the run in {tree} made no progress")
                threading.Event().wait(warm_up_s)
                begun, before = time.monotonic(), count()
                threading.Event().wait(seconds)
                return (count() - before) / (time.monotonic() - begun)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(_END_S)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--against", default="HEAD~1", metavar="REVISION", help="earlier commit (default: HEAD~1)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each case and commit (default: 5)")
    parser.add_argument("--warm-up", type=float, default=4.0, help="seconds before each measurement (default: 4)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement (default: 10)")
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=_CASES, help="default: all")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    figures: dict[str, Any] = {"against": arguments.against}
    targets = []
    window = (arguments.warm_up, arguments.seconds)
    with _checkout(arguments.against) as before:
        for case in arguments.cases:
            rates: dict[str, list[float]] = {"before": [], "now": []}
            for repeat in range(arguments.repeats):
                pair = [("before", before), ("now", _HERE)]
                for name, tree in pair if repeat % 2 == 0 else reversed(pair):
                    measured = _ingest(tree) if case == "ingest" else _rate(tree, case, *window)
                    rates[name].append(round(measured, 1))
            # A ratio for each pair, because the machine's speed changes from minute to minute.
            ratio = statistics.median(now / then for now, then in zip(rates["now"], rates["before"], strict=True))
            figures[case] = {**rates, "ratio": round(ratio, 4)}
            print(f"{case:8} per second: {json.dumps(rates)}", flush=True)
            targets.append(Target(f"{case} per second over those of {arguments.against}", ratio, _LEAST_RATIO, False))
    return figures, targets


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
