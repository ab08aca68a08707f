"""How fast do simulators play through an actor, and what do frozen ones cost the others?

    python -m benchmarks.scale.simulators --directory runs/simulators --json benchmarks/results/simulators.json

1. training: the clients of examples/simulator in Python, C++ and JavaScript train their own cart-pole to a return of
   475. An actor with the same cart-pole as an environment of its own takes turns with them, with as many environments.
2. rates: the same without a limit, with a few and with many environments on the stream. The learner stores and never
   trains, so that only the actor limits the steps.
3. streams: many simulators at once, each with one environment and a connection of its own. They send as fast as they
   are answered. A bare gRPC server takes turns with the actor, and gets the same messages from the same simulators. The
   simulators are in --processes processes of their own, so that they do not share the server's Python lock.
4. stalls: ten simulators play, and five of them are frozen or killed. Only the steps of the others count.

Parts 2 to 4 use the actor with its default settings. In part 3 the streams explore, or ask for greedy actions only, as
from a policy server. Targets are older than the measurements.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import ONE_SEED, Meaning, Target, run_benchmark, without_verdict
from benchmarks.processes import ServiceProcess, serving
from benchmarks.runs import refusal
from benchmarks.scale.simulators.clients import BUILDERS, built
from benchmarks.scale.simulators.generators import Figures, play
from benchmarks.scale.simulators.messages import Messages, messages
from benchmarks.scale.simulators.services import IdleRun, idle_run
from benchmarks.scale.simulators.stalls import FROZEN, KILLED, Stall, loss
from benchmarks.scale.simulators.training import OWN, rates, trained

PARTS = ("training", "rates", "streams", "stalls")
ECHO, EXPLORING, GREEDY = "echo", "exploring", "greedy"
_SHARE, _TIMES, _LOSS, _RETURN = 0.5, 2.0, 0.1, 475.0
# A simulator that is as fast as it is answered, and one whose own work for a step takes so long.
_PAUSES_S = (0.0, 0.005)
_SIMULATORS, _STALLED = 10, 5

MEANINGS = (
    Meaning(
        r"(?P<client>.+): seeds that reach a return of 475",
        "Do clients in other languages train their own cart-pole?",
        "Some runs end before the target.",
        case="{client}",
    ),
    Meaning(
        r"(?P<client>.+): steps/s of a training run over the actor's own",
        "Do simulators train as fast as environments of the actor?",
        "Training with a simulator takes longer. Put more environments on a stream.",
        case="{client}",
    ),
    Meaning(
        r"(?P<client>.+): steps/s without a limit over the actor's own",
        "Does a simulator make half of the steps of an environment in the actor?",
        "The stream limits the steps if the learner does not. Put more environments on a stream, or open more streams.",
        case="{client}",
    ),
    Meaning(
        r"(?P<kind>\w+) streams: actions/s over a bare echo's",
        "How many actions does an actor send, beside a bare gRPC server?",
        "The actor's own work on a step takes longer than gRPC's. Put several environments on a stream, or start more "
        "actors.",
        case="{kind} streams",
    ),
    Meaning(
        r"(?P<kind>\w+) streams: p99 of an answer over a bare echo's",
        "How long does the slowest percent of the answers take, beside a bare gRPC server?",
        "With so many simulators, an answer takes longer than the stated bound. Start more actors.",
        case="{kind} streams",
    ),
    Meaning(
        r"(?P<kind>\w+), (?P<speed>.+): loss of the others",
        "What do frozen and killed simulators cost the others?",
        "The others make fewer steps after a stall.",
        unit="%",
        scale=100,
        case="{kind}, {speed}",
    ),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--clients", nargs="+", choices=[*BUILDERS], default=[*BUILDERS], help="default: all")
    parser.add_argument(
        "--environments",
        type=int,
        nargs="+",
        default=[8, 32],
        metavar="N",
        help="of part 2, on a stream (default: 8 32)",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 1 to N of the training (default: 3)")
    parser.add_argument("--streams", type=int, default=200, metavar="N", help="simulators at once (default: 200)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="that have them (default: 2)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="of parts 2 to 4 (default: 5)")
    parser.add_argument("--seconds", type=float, default=6.0, metavar="S", help="of each measurement (default: 6)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for clients and runs (default: not kept)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    figures: dict[str, Any] = {"streams_at_once": arguments.streams, "processes": arguments.processes}
    with tempfile.TemporaryDirectory() as nowhere:
        directory = (arguments.directory or Path(nowhere)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        clients = built(arguments.clients, directory) if {"training", "rates"} & {*arguments.parts} else []
        if "training" in arguments.parts:
            figures["training"] = list(_told(trained(clients, arguments.seeds, directory), _line))
        if "rates" in arguments.parts:
            figures["rates"] = [
                found
                for count in arguments.environments
                for found in _told(rates(count, clients, arguments.repeats, arguments.seconds))
            ]
        if {"streams", "stalls"} & {*arguments.parts}:
            with idle_run() as run:
                figures |= _of_idle(run, arguments)
    return figures, without_verdict(targets(figures), refusal(figures["training"]) if "training" in figures else "")


def _of_idle(run: IdleRun, arguments: argparse.Namespace) -> dict[str, Any]:
    """The parts with simulators that have no environment."""
    made: dict[str, Callable[[], Iterator[Any]]] = {
        "streams": lambda: _streams(run, arguments),
        "stalls": lambda: _stalls(run, arguments),
    }
    return {part: list(_told(make())) for part, make in made.items() if part in arguments.parts}


def _told(found: Iterator[Any], line: Callable[[Any], str] = str) -> Iterator[Any]:
    """Print each result as soon as it is there."""
    for each in found:
        print(line(each), flush=True)
        yield each


def _streams(run: IdleRun, arguments: argparse.Namespace) -> Iterator[dict[str, Figures]]:
    """The figures of all sides, by repeat. Sides take turns, in alternating order."""
    sent = {EXPLORING: messages(), GREEDY: messages(explore=False)}
    bare = sent[EXPLORING]
    answers = ("--ready", bare.ready.hex(), "--answer", bare.answer.hex())
    with serving("benchmarks.scale.simulators.echo", *answers) as echo, run.simulators() as actor:
        sides: dict[str, tuple[ServiceProcess, Messages]] = {
            ECHO: (echo, bare),
            **{kind: (actor, each) for kind, each in sent.items()},
        }
        for repeat in range(arguments.repeats):
            order = [*sides] if repeat % 2 == 0 else [*sides][::-1]
            measured = {
                side: play(*sides[side], arguments.streams, arguments.processes, arguments.seconds) for side in order
            }
            yield {side: measured[side] for side in sides}


def _stalls(run: IdleRun, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    kinds = [Stall(kind, _SIMULATORS, _STALLED, pause_s) for kind in (FROZEN, KILLED) for pause_s in _PAUSES_S]
    for _ in range(arguments.repeats):
        for stall in kinds:
            with run.simulators() as actor:
                figures = loss(stall, actor.address, messages(), arguments.seconds)
            yield {**asdict(stall), **figures}


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """The targets of all measured parts."""
    return [
        *_of_training(figures.get("training", [])),
        *_of_rates(figures.get("rates", [])),
        *_of_streams(figures.get("streams", [])),
        *_of_stalls(figures.get("stalls", [])),
    ]


def _of_training(runs: list[dict[str, Any]]) -> list[Target]:
    found = []
    for side in dict.fromkeys(run["side"] for run in runs if run["side"] != OWN):
        own, others = ([run for run in runs if run["side"] == name] for name in (side, OWN))
        reached = sum(run["solved"] and run["mean_return"] >= _RETURN for run in own)
        share = statistics.median(a["steps_per_s"] / b["steps_per_s"] for a, b in zip(own, others, strict=True))
        of_side = [
            Target(f"{side}: seeds that reach a return of 475", reached, len(own), at_most=False),
            Target(f"{side}: steps/s of a training run over the actor's own", share, _SHARE, at_most=False),
        ]
        found += without_verdict(of_side, ONE_SEED if len(own) == 1 else "")
    return found


def _of_rates(repeats: list[dict[str, float]]) -> list[Target]:
    found = []
    for count in dict.fromkeys(each["environments"] for each in repeats):
        own = [each for each in repeats if each["environments"] == count]
        for side in [name for name in own[0] if name not in (OWN, "environments")]:
            share = statistics.median(each[side] / each[OWN] for each in own)
            name = f"{side}, {count} environments: steps/s without a limit over the actor's own"
            found.append(Target(name, share, _SHARE, at_most=False))
    return found


def _of_streams(repeats: list[dict[str, Figures]]) -> list[Target]:
    found = []
    for kind in (EXPLORING, GREEDY) if repeats else ():
        rate, p99 = (
            statistics.median(each[kind][name] / each[ECHO][name] for each in repeats)
            for name in ("actions_per_s", "p99_ms")
        )
        found.append(Target(f"{kind} streams: actions/s over a bare echo's", rate, _SHARE, at_most=False))
        found.append(Target(f"{kind} streams: p99 of an answer over a bare echo's", p99, _TIMES))
    return found


def _of_stalls(stalls: list[dict[str, Any]]) -> list[Target]:
    losses: dict[tuple[str, float], list[float]] = {}
    for stall in stalls:
        losses.setdefault((stall["kind"], stall["pause_s"]), []).append(stall["loss"])
    return [
        Target(f"{kind}, {speed(pause_s)}: loss of the others", statistics.median(found), _LOSS)
        for (kind, pause_s), found in losses.items()
    ]


def speed(pause_s: float) -> str:
    """The speed of a simulator in words. pause_s: see `Stall`."""
    return f"{1e3 * pause_s:g} ms for a step" if pause_s else "as fast as possible"


def _line(run: dict[str, Any]) -> str:
    solved = "" if run["solved"] else " NOT solved"
    return (
        f"{run['side']:8} seed {run['seed']}: {run['environment_steps']:,} steps, {run['steps_per_s']:,.0f} steps/s, "
        f"{run['wall_clock_s']:.0f} s, return {run['mean_return']:.1f}{solved}"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
