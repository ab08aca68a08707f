"""How long does a policy server need for an action, and how many clients can it answer?

    python -m benchmarks.scale.serving --json benchmarks/results/serving.json

1. One client: `actorq serve` answers one stream with one environment. A call of `load_policy` in this process computes
   the same action, and a bare gRPC server answers the same messages. All take turns.
2. Many clients: 1,000 streams at once, each with a connection of its own, beside the bare server with as many.

Policies have three hidden layers. Clients are in processes of their own. They send a step as soon as they have an
answer. Targets are older than the measurements.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import actorq
from actorq.domain.spaces import EnvironmentSpec
from benchmarks.harness import Meaning, Target, run_benchmark
from benchmarks.processes import serving
from benchmarks.scale.serving.policies import exported
from benchmarks.scale.simulators.generators import Figures, play
from benchmarks.scale.simulators.messages import Messages, messages

SERVED, CALL, ECHO = "served", "call", "echo"
_SCHEMES = ("int8", "fp32")
_CROWD_UNITS = 256
# Milliseconds that a server may add to a call of the policy, in the median and in the slowest percent.
_ADDED_MS, _ADDED_P99_MS = 1.0, 3.0
_SHARE, _TIMES = 0.5, 2.0

MEANINGS = (
    Meaning(
        r"(?P<units>\d+) units, (?P<scheme>\w+): median ms that the server adds",
        "What does a policy server add to the time of an action?",
        "Load the policy in your program if an action must be faster.",
        unit=" ms",
        case="{units} units, {scheme}",
    ),
    Meaning(
        r"(?P<units>\d+) units, (?P<scheme>\w+): p99 ms that the server adds",
        "What does a policy server add in the slowest percent of the actions?",
        "Load the policy in your program if late actions do harm.",
        unit=" ms",
        case="{units} units, {scheme}",
    ),
    Meaning(
        r"(?P<units>\d+) units: served int8 over fp32, median",
        "Does a policy server answer faster in int8?",
        "The time of the messages hides the gain of int8 at this width.",
        case="{units} units",
    ),
    Meaning(
        r"many clients: clients with an answer",
        "Does a policy server answer all clients?",
        "Some clients get no answer. Start more servers.",
    ),
    Meaning(
        r"many clients: actions/s over a bare echo's",
        "How many actions does a policy server send, beside a bare gRPC server?",
        "The server's own work on a step takes longer than gRPC's. Put several environments on a stream, or start more "
        "servers.",
    ),
    Meaning(
        r"many clients: p99 of an answer over a bare echo's",
        "How long does the slowest percent of the answers take with many clients, beside a bare gRPC server?",
        "With so many clients, an answer takes longer than the stated bound. Start more servers.",
    ),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--units", type=int, nargs="+", default=[256, 2_048], metavar="N", help="widths of the policy")
    parser.add_argument("--clients", type=int, default=1_000, metavar="N", help="clients at once (default: 1000)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="that have them (default: 2)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="repeats of each measurement (default: 5)")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of each measurement (default: 5)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    figures: dict[str, Any] = {"clients": arguments.clients, "processes": arguments.processes, "single": []}
    with tempfile.TemporaryDirectory() as name:
        for units in arguments.units:
            for single in _single(units, Path(name), arguments.repeats, arguments.seconds):
                print(single, flush=True)
                figures["single"].append(single)
        figures["crowd"] = list(_crowd(Path(name), arguments))
    return figures, targets(figures)


def _single(units: int, folder: Path, repeats: int, seconds: float) -> Iterator[dict[str, Any]]:
    """One client of policies of this width, by repeat."""
    files = {scheme: exported(units, scheme, folder) for scheme in _SCHEMES}
    spec = files[_SCHEMES[0]][1]
    sent = messages(spec)
    with ExitStack() as stack:
        servers = {scheme: stack.enter_context(_serving(file)) for scheme, (file, _) in files.items()}
        echo = stack.enter_context(_echo(sent))
        loaded = {scheme: actorq.load_policy(file) for scheme, (file, _) in files.items()}
        for repeat in range(repeats):
            schemes = _SCHEMES if repeat % 2 == 0 else _SCHEMES[::-1]
            found: dict[str, Any] = {"units": units, ECHO: play(echo, sent, 1, 1, seconds)}
            for scheme in schemes:
                call = _called(loaded[scheme], spec, seconds)
                found[scheme] = {CALL: call, SERVED: play(servers[scheme], sent, 1, 1, seconds)}
            yield found


def _called(policy: Any, spec: EnvironmentSpec, seconds: float) -> Figures:
    """Percentiles of the time of a call in this process."""
    observation = np.full(spec.observations.shape, 0.01, np.float32)
    delays = []
    end = time.perf_counter() + seconds
    while (before := time.perf_counter()) < end:
        policy.predict(observation)
        delays.append(time.perf_counter() - before)
    p50, p99 = 1e3 * np.percentile(delays, (50, 99))
    return {"p50_ms": round(float(p50), 4), "p99_ms": round(float(p99), 4)}


def _crowd(folder: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Figures]]:
    """Many clients at once, by repeat."""
    file, spec = exported(_CROWD_UNITS, _SCHEMES[0], folder)
    sent = messages(spec)
    with _serving(file, "--external.max-streams", str(arguments.clients)) as server, _echo(sent) as echo:
        sides = {ECHO: echo, SERVED: server}
        for repeat in range(arguments.repeats):
            order = [*sides] if repeat % 2 == 0 else [*sides][::-1]
            found = {
                side: play(sides[side], sent, arguments.clients, arguments.processes, arguments.seconds)
                for side in order
            }
            print(found, flush=True)
            yield {side: found[side] for side in sides}


def _serving(file: Path, *flags: str) -> Any:
    return serving("actorq_apps.cli.main", *flags, command=("serve", str(file)))


def _echo(sent: Messages) -> Any:
    answers = ("--ready", sent.ready.hex(), "--answer", sent.answer.hex())
    return serving("benchmarks.scale.simulators.echo", *answers)


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """The targets of one client and of many."""
    found = []
    for units in dict.fromkeys(each["units"] for each in figures["single"]):
        repeats = [each for each in figures["single"] if each["units"] == units]
        for scheme in _SCHEMES:
            for name, key, bound in (("median", "p50_ms", _ADDED_MS), ("p99", "p99_ms", _ADDED_P99_MS)):
                added = statistics.median(each[scheme][SERVED][key] - each[scheme][CALL][key] for each in repeats)
                found.append(Target(f"{units} units, {scheme}: {name} ms that the server adds", added, bound))
        share = statistics.median(each["int8"][SERVED]["p50_ms"] / each["fp32"][SERVED]["p50_ms"] for each in repeats)
        found.append(Target(f"{units} units: served int8 over fp32, median", share, 1.0))
    crowd = figures["crowd"]
    answered = min(each[SERVED]["answered"] for each in crowd)
    rate, p99 = (
        statistics.median(each[SERVED][name] / each[ECHO][name] for each in crowd)
        for name in ("actions_per_s", "p99_ms")
    )
    return [
        *found,
        Target("many clients: clients with an answer", answered, figures["clients"], at_most=False),
        Target("many clients: actions/s over a bare echo's", rate, _SHARE, at_most=False),
        Target("many clients: p99 of an answer over a bare echo's", p99, _TIMES),
    ]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
