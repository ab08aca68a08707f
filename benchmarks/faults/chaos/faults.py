"""The faults, with their beginning and end, in an order that follows from a seed."""

import os
import random
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.chaos.fleet import Fleet
from benchmarks.faults.chaos.proxy import Link

ACTORS = ("actor-0", "actor-1", "actor-2")
RELAY = "relay"
KINDS = ("SIGKILL", "SIGTERM", "SIGSTOP", "cut", "half-open", "delay", "corrupt", "reset", "full")
_FILLER = "filler"
_SMALLEST_PIECE = 4096


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, its service or link, and its duration in seconds."""

    kind: str
    target: str
    seconds: float = 0.0

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind} {self.target}{lasting}"


def drawn(
    rng: random.Random,
    links: tuple[str, ...],
    full_disk: bool,
    kinds: Collection[str] = KINDS,
    others: tuple[str, ...] = (),
) -> Iterator[Fault]:
    """Endless faults; the same seed draws the same faults. Each round has every kind once, in a new order.

    full_disk: whether the disk can be filled.
    kinds: the wanted kinds.
    others: names of services that only some runs have.
    """

    def seconds(least: float, most: float) -> float:
        return round(rng.uniform(least, most), 1)

    while True:
        services = ["learner", "quantizer", "evaluator", rng.choice(ACTORS), *others]
        faults = [Fault("SIGKILL", service) for service in services]
        faults += [Fault("SIGTERM", service) for service in services]
        faults += [Fault("SIGSTOP", service, seconds(0.5, 6.0)) for service in services]
        faults += [Fault("SIGKILL", "learner+quantizer"), Fault("SIGKILL", f"learner+{rng.choice(ACTORS)}")]
        for kind, least, most in (
            ("cut", 0.3, 4.0),
            ("half-open", 0.5, 6.0),
            ("delay", 1.0, 4.0),
            ("corrupt", 0.3, 2.0),
            ("reset", 0.0, 0.0),
        ):
            faults.append(Fault(kind, rng.choice(links), seconds(least, most)))
        if full_disk:
            faults.append(Fault("full", "disk", seconds(2.0, 5.0)))
        rng.shuffle(faults)
        yield from (fault for fault in faults if fault.kind in kinds)


@contextmanager
def applied(
    fault: Fault, fleet: Fleet, links: dict[str, Link], disk: Path | None, rng: random.Random
) -> Iterator[None]:
    """Begin a fault. It ends with the block."""
    services = fault.target.split("+")
    disturb: dict[str, Callable[[Link], None]] = {
        "cut": Link.cut,
        "half-open": Link.freeze,
        "delay": lambda link: link.delay(0.3),
        "corrupt": lambda link: link.corrupt(rng),
        "reset": Link.reset,
    }
    if fault.kind in disturb:
        link = links[fault.target]
        disturb[fault.kind](link)
        yield
        link.heal()
        if fault.kind in ("half-open", "corrupt"):
            # Reset the link at the end. HTTP/2 does not notice a frame whose type was corrupted, and a stream that
            # lost a frame would wait forever.
            link.reset()
    elif fault.kind == "full":
        assert disk is not None
        _fill(disk)
        yield
        (disk / _FILLER).unlink()
    elif fault.kind == "SIGSTOP":
        for service in services:
            fleet.signal(service, signal.SIGSTOP)
        yield
        for service in services:
            fleet.signal(service, signal.SIGCONT)
    else:
        for service in services:
            fleet.signal(service, signal.Signals[fault.kind])
        yield


def _fill(disk: Path) -> None:
    """Allocate all free space, in ever smaller pieces, because other processes write at the same time."""
    piece = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with (disk / _FILLER).open("wb") as file:
        while piece >= _SMALLEST_PIECE:
            try:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, piece)
            except OSError:
                piece //= 2
