"""Measures a machine's energy: the interface that a meter needs, and its implementation with codecarbon."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

from actorq.errors import ActorQError

# codecarbon's own timer must never measure: it runs on another thread, without a lock against our readings. The period
# is thirty days, because on some platforms a timer cannot wait longer.
_NEVER_SECONDS = 30 * 24 * 3600


class TrackerError(ActorQError):
    """A tracker could not start or could not measure."""


class TrackerTotals(NamedTuple):
    """Energy of the machine since the tracker started: kWh by part, and kg of CO2 equivalents in total."""

    cpu_kwh: float
    ram_kwh: float
    gpu_kwh: float
    co2_kg: float


class EnergyTracker(Protocol):
    """Counts the energy of this machine from construction on. Its methods may raise any exception."""

    method: str
    """The method of measurement."""
    tdp_watts: float | None
    """Full-load CPU power in the power model; None if the power is measured or unknown."""

    def read(self) -> TrackerTotals:
        """The totals up to now."""

    def close(self) -> None:
        """Stop measuring."""


class CodecarbonTracker:
    """codecarbon's OfflineEmissionsTracker in machine mode: no network, no files, measured when read.

    `flush` measures and passes the totals to our output handler. Between two readings, codecarbon's own thread samples
    the CPU load (or the GPU power) once a second and averages. Every argument that could write, send or count anything
    else is set explicitly. Otherwise `CODECARBON_*` variables and `.codecarbon.config` files would set it.

    A counter is better than a model. codecarbon ignores RAPL counters when it gets a TDP, so it gets a TDP only without
    RAPL.
    """

    def __init__(self, country_iso_code: str | None, tdp_watts: float | None, ram_watts: float | None) -> None:
        """Import codecarbon and start measuring: about 0.2 s and 75 MB.

        country_iso_code: three letters that select the grid's carbon intensity. None or unknown: world average.
        tdp_watts: full-load power of all processors of the machine, used if no counter can be read.
        ram_watts: constant power of the machine's memory; None for codecarbon's estimate from its size.

        Raises ImportError when codecarbon is not installed, and TrackerError when it did not start.
        """
        self._failures = _FailureLog()
        self._totals: TrackerTotals | None = None
        from codecarbon import OfflineEmissionsTracker
        from codecarbon.core.cpu import is_rapl_available

        # The import of codecarbon configures its logger. The filter is added after that and before the first message.
        logging.getLogger("codecarbon").addFilter(self._failures)
        country = country_iso_code.upper() if country_iso_code else None
        others = dict.fromkeys(("live_out", "task_out", "exit"), lambda *_: None)
        output = SimpleNamespace(out=self._record_totals, **others)
        with _processor_named_by_kernel():
            self._tracker: Any = OfflineEmissionsTracker(
                country_iso_code=country,
                force_cpu_power=None if is_rapl_available() else tdp_watts,
                force_ram_power=ram_watts,
                output_handlers=[output],
                **_ISOLATED,
            )
            self._tracker.start()
        try:
            self.read()
            self.tdp_watts, cpu = _describe_cpu(self._tracker, tdp_watts)
            ram, gpu = _describe_ram(self._tracker, ram_watts), _describe_gpu(self._tracker)
        except Exception:
            self.close()
            raise
        self.method = "; ".join(part for part in (cpu, ram, gpu, _describe_grid(country)) if part)

    def read(self) -> TrackerTotals:
        """Measure, and return the totals since the start.

        A reading less than 0.05 s after another repeats it, because codecarbon does not measure more often. Raises
        TrackerError when codecarbon failed. codecarbon swallows its errors, so the reason is its last log message.
        """
        self._totals = None
        self._tracker.flush()
        if self._totals is None:
            raise TrackerError(self._failures.last or "codecarbon did not answer")
        return self._totals

    def close(self) -> None:
        """Stop codecarbon's sampling thread."""
        self._tracker.stop()
        logging.getLogger("codecarbon").removeFilter(self._failures)

    def _record_totals(self, total: Any, _delta: Any) -> None:
        figures = total.cpu_energy, total.ram_energy, total.gpu_energy, total.emissions
        self._totals = TrackerTotals(*map(float, figures))


_ISOLATED: dict[str, Any] = {
    "project_name": "actorq",
    "tracking_mode": "machine",
    # Otherwise codecarbon creates a lock file and replaces the process's SIGTERM handler.
    "allow_multiple_runs": True,
    "measure_power_secs": _NEVER_SECONDS,
    "api_call_interval": -1,
    "log_level": "warning",
    "logger_preamble": "",
    # Only Intel's Power Gadget (old macOS and Windows) writes there. This keeps the working directory clean.
    "output_dir": tempfile.gettempdir(),
    "output_methods": [],
    "emissions_endpoint": None,
    # With None, codecarbon would search for a token and then use the network.
    "electricitymaps_api_token": "",
    "region": None,
    "cloud_provider": None,
    "cloud_region": None,
    "country_2letter_iso_code": None,
    "force_carbon_intensity_g_co2e_kwh": None,
    "force_mode_cpu_load": False,
    "rapl_include_dram": False,
    "rapl_prefer_psys": False,
    "pue": 1.0,
    "wue": 0.0,
}


@contextmanager
def _processor_named_by_kernel() -> Iterator[None]:
    """Make the package cpuinfo return only the processor's name, read from the kernel.

    codecarbon needs nothing else. cpuinfo itself would start processes and compute for a second.
    """
    import cpuinfo  # type: ignore[import-untyped]

    table = Path("/proc/cpuinfo")
    lines = table.read_text(encoding="utf-8", errors="replace").splitlines() if table.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    before = cpuinfo.get_cpu_info
    if name:
        cpuinfo.get_cpu_info = lambda: {"brand_raw": name}
    try:
        yield
    finally:
        cpuinfo.get_cpu_info = before


class _FailureLog(logging.Filter):
    """Remembers the last exception that codecarbon logged, and keeps its messages off standard error."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            self.last = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return False


def _describe_cpu(tracker: Any, configured_tdp: float | None) -> tuple[float | None, str]:
    """Full-load watts of the CPU model, and a description of the CPU method.

    codecarbon has no public access to them. This function reads private attributes, and reports if they are missing.
    """
    from codecarbon.core import cpu

    part = next((part for part in getattr(tracker, "_hardware", ()) if getattr(part, "_mode", None)), None)
    mode, tdp = getattr(part, "_mode", "CPU method not known"), getattr(part, "_tdp", None)
    if mode == "intel_rapl":
        return None, "RAPL"
    if mode not in ("cpu_load", "constant") or tdp is None:
        return None, f"codecarbon {mode}"
    machine = tracker.get_detected_hardware()
    guess = machine["cpu_count"] * cpu.DEFAULT_POWER_PER_CORE * machine["cpu_physical_count"]
    if configured_tdp is not None:
        origin = "configured"
    elif getattr(part, "_is_generic_tdp", False) or tdp == guess:
        origin = "codecarbon default for an unknown CPU"
    else:
        origin = f"codecarbon's table, {machine['cpu_model']}"
    load = "load" if mode == "cpu_load" else "half"
    return float(tdp), f"{load} x TDP {tdp:g} W ({origin})"


def _describe_ram(tracker: Any, configured_watts: float | None) -> str:
    if configured_watts is not None:
        return f"RAM constant {configured_watts:g} W (configured)"
    part = next((part for part in getattr(tracker, "_hardware", ()) if type(part).__name__ == "RAM"), None)
    if part is None:
        return "RAM method not known"
    return f"RAM constant {part.total_power().W:g} W (codecarbon's guess from its size)"


def _describe_gpu(tracker: Any) -> str:
    machine = tracker.get_detected_hardware()
    return f"GPU counters of {machine['gpu_model']}" if machine["gpu_count"] else ""


def _describe_grid(country: str | None) -> str:
    """The country whose carbon intensity codecarbon uses. codecarbon silently falls back to the world's average."""
    from codecarbon.input import DataSource

    if country in DataSource().get_global_energy_mix_data():
        return f"CO2 of the grid of {country}"
    return f"CO2 of the world's average grid ({country or 'no country'} not known)"
