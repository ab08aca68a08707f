"""Tables of simulators and of the policy server: training, streams, stalls, times of an action."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from benchmarks.scale.serving.__main__ import CALL, SERVED
from benchmarks.scale.simulators.__main__ import ECHO, EXPLORING, GREEDY, speed
from benchmarks.scale.simulators.training import OWN
from sitegen.markdown import number, percent, spread, table
from sitegen.results import by, figures

_NAMES = {
    **{OWN: "an environment of the actor, in Python", ECHO: "bare gRPC server"},
    **{EXPLORING: "actor, exploring", GREEDY: "actor, greedy actions only", SERVED: "`actorq serve`"},
}


def simulator_training() -> str:
    """Training runs with simulators and with the actor's own environments."""
    rows = []
    for side, own in by("side", figures("simulators")["training"]).items():
        solved = sum(run["solved"] for run in own)
        columns = (spread(run[key] for run in own) for key in ("wall_clock_s", "environment_steps", "steps_per_s"))
        rows.append((_NAMES.get(side, f"a client in {side}"), f"{solved} of {len(own)}", *columns))
    return table(("cart-pole in", "seeds that reach the target", "seconds", "environment steps", "steps/s"), rows)


def simulator_rates() -> str:
    """Steps per second when the learner does not limit them."""
    rows = []
    for count, repeats in by("environments", figures("simulators")["rates"]).items():
        for side in [name for name in repeats[0] if name != "environments"]:
            shares = "" if side == OWN else spread(each[side] / each[OWN] for each in repeats)
            rows.append((_NAMES.get(side, f"a client in {side}"), count, _median(repeats, side), shares))
    return table(("cart-pole in", "environments", "steps/s", "times the actor's own"), rows)


def simulator_streams() -> str:
    """Many streams at once, beside a bare gRPC server."""
    return _beside_echo(figures("simulators")["streams"], (ECHO, EXPLORING, GREEDY))


def simulator_stalls() -> str:
    """The steps of simulators beside stalled ones."""
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in figures("simulators")["stalls"]:
        cases.setdefault((each["kind"], speed(each["pause_s"])), []).append(each)
    rows = [
        (*case, *(_median(own, key) for key in ("before", "after")), percent(median(each["loss"] for each in own), 1))
        for case, own in cases.items()
    ]
    head = ("stall", "simulators", "steps/s of the others before", "after", "loss, median of the repeats")
    return table(head, rows)


def served_action() -> str:
    """The time of one action, from a server and from a call."""
    rows = []
    for units, repeats in by("units", figures("serving")["single"]).items():
        for scheme in ("int8", "fp32"):
            sides = [(each[scheme][CALL], each[scheme][SERVED], each[ECHO]) for each in repeats]
            cells = (
                number(median(each[side][key] for each in sides)) for side in range(3) for key in ("p50_ms", "p99_ms")
            )
            rows.append((int(units), scheme, *cells))
    pairs = (f"{name}, {key} ms" for name in ("call", "served", "bare gRPC") for key in ("p50", "p99"))
    return table(("units", "scheme", *pairs), rows)


def served_clients() -> str:
    """Many clients of a policy server, beside a bare gRPC server."""
    return _beside_echo(figures("serving")["crowd"], (ECHO, SERVED))


def _beside_echo(repeats: list[dict[str, dict[str, float]]], sides: Iterable[str]) -> str:
    rows = []
    for side in sides:
        own = [each[side] for each in repeats]
        times = "" if side == ECHO else number(median(each[side][_RATE] / each[ECHO][_RATE] for each in repeats))
        rows.append((_NAMES[side], *(_median(own, key) for key in (_RATE, "p50_ms", "p99_ms", "server_cpu_us")), times))
    head = (
        "server",
        "actions/s",
        "p50, ms",
        "p99, ms",
        "CPU of the server, us/action",
        "times the bare actions/s",
    )
    return table(head, rows)


_RATE = "actions_per_s"


def _median(repeats: Iterable[Mapping[str, Any]], key: str) -> str:
    return number(median(each[key] for each in repeats))
