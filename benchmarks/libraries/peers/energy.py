"""The energy of a run of any system, by the same meter: codecarbon's, for the whole machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from actorq_apps.meter.tracker import CodecarbonTracker, EnergyTracker, TrackerError


@dataclass(frozen=True)
class Energy:
    """The energy of a machine since the meter began. method: of the measurement, such as RAPL or a model of the CPU."""

    watt_hours: float
    method: str


def _tracker() -> EnergyTracker:
    return CodecarbonTracker(None, None, None)


@contextmanager
def metered(start: Callable[[], EnergyTracker] = _tracker) -> Iterator[Callable[[], Energy | None]]:
    """Measure until the end of the block. The value returns the energy up to now; None if it cannot be measured.

    start: starts a tracker; a parameter for tests.
    """
    try:
        tracker = start()
    except (ImportError, TrackerError) as error:
        print(f"energy: not measured ({error})", flush=True)
        yield lambda: None
        return
    try:
        yield lambda: _read(tracker)
    finally:
        tracker.close()


def _read(tracker: EnergyTracker) -> Energy | None:
    try:
        totals = tracker.read()
    except TrackerError as error:
        print(f"energy: not measured ({error})", flush=True)
        return None
    return Energy((totals.cpu_kwh + totals.ram_kwh + totals.gpu_kwh) * 1e3, tracker.method)
