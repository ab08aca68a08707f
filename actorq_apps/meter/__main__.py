"""`python -m actorq_apps.meter`, also `actorq meter`: the meter of one node. It reports to the learner."""

import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from pydantic import Field

from actorq.client import LearnerClient
from actorq.config.run_config import RunConfig
from actorq.config.settings import Settings
from actorq.errors import ActorQError, UnavailableError
from actorq.lifeline import await_parents_end
from actorq.process import EXIT_OK, MemberSettings, main, parse_arguments
from actorq.telemetry.logs import configure_logging
from actorq.telemetry.process_stats import measure_launcher, measure_process
from actorq.transport.reconnect import keep_connected
from actorq_apps.meter.node_meter import MINIMUM_INTERVAL_S, NodeMeter
from actorq_apps.meter.tracker import CodecarbonTracker

# The settings of the run that the meter reads.
_READS = (
    *("energy.country", "energy.tdp_watts", "energy.ram_watts", "energy.period_s", "telemetry.log_format"),
    *("transport.certificates", "transport.run", "transport.allow_readable_keys"),
)

_log = logging.getLogger(__name__)


class MeterProcessSettings(Settings):
    """Settings of the meter's process."""

    learner: str = Field("127.0.0.1:50051", description="HOST:PORT of the learner")
    run_started: float = Field(
        0.0, ge=0, description="Unix seconds at which the run started; its energy counts from then on; 0 for now"
    )
    busy_at_start: float = Field(0.0, ge=0, description="CPU seconds that this machine had used by then")


def report(
    client: LearnerClient,
    meter: NodeMeter,
    name: str,
    node: str,
    period_s: float,
    launched: bool,
    stop: threading.Event,
) -> None:
    """Send a reading to the learner every `period_s` seconds until `stop` is set. Retries while the learner is away.

    launched: whether the parent process is the run's launcher. The launcher cannot report itself.
    """

    def send(connected: Callable[[], None]) -> None:
        while not stop.is_set():
            stats = measure_process(name, "meter", node)
            launcher = measure_launcher(node) if launched else None
            client.report_energy(meter.read(), (stats, launcher) if launcher else (stats,))
            connected()
            stop.wait(period_s)

    # The first reading needs this time to measure the power.
    stop.wait(MINIMUM_INTERVAL_S)
    keep_connected(send, stop, client.peer, random.Random())


def _main() -> int:
    text = "Measure this node's energy and report it to the learner."
    models = (RunConfig, MemberSettings, MeterProcessSettings)
    config, process, settings = parse_arguments("actorq meter", text, models, reads=_READS)
    assert isinstance(config, RunConfig)
    assert isinstance(process, MemberSettings)
    assert isinstance(settings, MeterProcessSettings)
    configure_logging(process.name or "meter", "meter", config.transport.run, config.telemetry.log_format)
    client = LearnerClient(settings.learner, config.transport.certificates_of("meter"))
    node = measure_process("meter", "meter", process.node).node
    energy = config.energy
    tracker = partial(CodecarbonTracker, energy.country, energy.tdp_watts, energy.ram_watts)
    started, busy = settings.run_started or time.time(), settings.busy_at_start if settings.run_started else None
    meter = NodeMeter(node, tracker, earlier_s=max(0.0, time.time() - started), busy_at_start=busy)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if process.lifeline:
        threading.Thread(target=_hold_lifeline, args=(stop,), name="lifeline", daemon=True).start()
    try:
        report(client, meter, process.name or "meter", node, energy.period_s, settings.run_started > 0, stop)
    except UnavailableError as error:
        _log.info("the learner is gone: %s", error)
    except ActorQError as error:
        _log.error("the learner takes no more readings: %s", error)
    meter.close()
    client.close()
    return EXIT_OK


def _hold_lifeline(stop: threading.Event) -> None:
    await_parents_end()
    stop.set()


if __name__ == "__main__":
    sys.exit(main(_main))
