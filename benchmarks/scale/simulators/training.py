"""Training with simulators beside training with an actor's own environments, and their steps without a limit."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.runs import forget_incomplete, train, with_project
from benchmarks.scale.simulators.cart_pole import ENVIRONMENT
from benchmarks.scale.simulators.clients import Client, ended
from benchmarks.scale.simulators.services import ENVIRONMENTS, IdleRun, idle_run

Run = dict[str, Any]

OWN = "actor"
_KEPT = ("solved", "environment_steps", "updates", "wall_clock_s", "conditions")
# Steps before a measurement begins.
_WARM_UP_STEPS = 2_000


def trained(clients: Sequence[Client], seeds: int, directory: Path) -> Iterator[Run]:
    """Train to the target with the actor's own environments and with each client, seed by seed."""
    for seed in range(1, seeds + 1):
        yield _with_own(seed, directory)
        for client in clients:
            yield _with_client(client, seed, directory)


def rates(environments: int, clients: Sequence[Client], repeats: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Steps per second of the actor's own environments and of each client, by name, in turn."""
    sides = [None, *clients]
    with idle_run(environments) as run:
        for repeat in range(repeats):
            order = sides if repeat % 2 == 0 else sides[::-1]
            found = {_name(side): _rate(run, side, environments, seconds) for side in order}
            yield {"environments": environments, **{_name(side): found[_name(side)] for side in sides}}


def _name(side: Client | None) -> str:
    return OWN if side is None else side.name


def _rate(run: IdleRun, side: Client | None, environments: int, seconds: float) -> float:
    if side is None:
        with run.environments():
            return round(run.steps_per_s(_WARM_UP_STEPS, seconds), 1)
    with run.simulators() as actor, side.playing(actor.address, environments):
        return round(run.steps_per_s(_WARM_UP_STEPS, seconds), 1)


def _with_own(seed: int, directory: Path) -> Run:
    folder = directory / f"{OWN}-{seed}"
    forget_incomplete(folder)
    return _kept(OWN, seed, train(folder, ["--environment", ENVIRONMENT, *_flags(seed)], with_project()))


def _with_client(client: Client, seed: int, directory: Path) -> Run:
    folder = directory / f"{client.name.lower().replace('+', 'p').replace('.', '')}-{seed}"
    forget_incomplete(folder)
    if (folder / "command_s.json").exists():
        # Complete: nobody connects to it.
        return _kept(client.name, seed, train(folder, []))
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    given = ["--environment", "external/cart-pole", "--external.listen", address, *_flags(seed)]
    with client.playing(address, ENVIRONMENTS) as process:
        made = train(folder, given)
        ended(client, process)
    return _kept(client.name, seed, made)


def _flags(seed: int) -> list[str]:
    return [
        *("--like", "CartPole-v1", "--environments-per-actor", str(ENVIRONMENTS), "--seed", str(seed)),
        "--no-energy.enabled",
    ]


def _kept(side: str, seed: int, made: Run) -> Run:
    """The figures of a run. Steps per second are those between the first and the last transition."""
    seconds = made["last_transition_s"] - made["first_transition_s"]
    return {
        **{name: made[name] for name in _KEPT},
        **{"side": side, "seed": seed, "mean_return": made["evaluation"]["mean_return"]},
        "steps_per_s": round(made["environment_steps"] / max(seconds, 1e-3), 1),
    }
