"""Runs all services on this machine, from the start of a run to its end."""

import logging
import queue
from contextlib import closing
from dataclasses import replace

from actorq.config.run_config import RunConfig
from actorq.domain.status import RunStatus
from actorq.rundirectory import Addresses, RunDirectory
from actorq.statefiles.tolerance import Tolerated
from actorq_apps.local.events import Events, signals_as_events
from actorq_apps.local.forkserver import ForkServers
from actorq_apps.local.observer import Observer, ProcessView
from actorq_apps.local.restarts import policy_where_calls_hang
from actorq_apps.local.services import reserved_addresses, services_of_run
from actorq_apps.local.supervisor import Outcome, Supervisor
from actorq_apps.local.watching import StatusWatch
from actorq_apps.meter.node_meter import RunStart

_PORT_ATTEMPTS = 3

_log = logging.getLogger(__name__)


def run_locally(
    run: RunDirectory,
    config: RunConfig,
    observer: Observer,
    resume: bool,
    lock: int,
    actor_module: str = "",
    servers: ForkServers | None = None,
    begun: RunStart | None = None,
    acts: bool = True,
) -> Outcome:
    """Run all services on this machine until the run is over or a signal ends it. Main thread only.

    run: directory with the written configuration. lock: descriptor of the run's lock, which the services inherit.
    actor_module: module to run instead of the actor service; empty for the actor service.
    begun: start of the run for its energy account; None for the meter's start.
    acts: whether to start the actors and the evaluator. Otherwise the calling program does their work.
    """
    certificates = config.transport.certificates_of("monitor")
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        events: Events = queue.SimpleQueue()
        with (
            reserved_addresses(2) as (learner, quantizer),
            signals_as_events(events),
            closing(AddressBook(run, Addresses(learner, quantizer), observer)) as addresses,
        ):
            supervisor = Supervisor(
                services_of_run(run, config, learner, quantizer, resume, actor_module, begun, acts),
                *(run, events, addresses, config.transport.drain_s),
                policy=policy_where_calls_hang(config.actor.environment_timeout_s),
                inherited=(lock,),
                servers=servers,
            )
            with closing(StatusWatch(learner, certificates, events.put, until_close=True)):
                outcome = supervisor.run()
        if not outcome.port_taken:
            break
        observer.event(f"a port was taken by another program (attempt {attempt} of {_PORT_ATTEMPTS})")
    return outcome


class AddressBook:
    """An observer that forwards everything. It also updates the addresses on disk when processes start and end."""

    def __init__(self, run: RunDirectory, addresses: Addresses, observer: Observer) -> None:
        self._run, self._addresses, self._observer = run, addresses, observer
        self._file = Tolerated(run.addresses.name)
        self._write()

    def process(self, view: ProcessView) -> None:
        """Forward."""
        self._observer.process(view)

    def status(self, status: RunStatus) -> None:
        """Forward, and record the addresses of new actors."""
        connected = [actor.name for actor in status.actors if actor.connected]
        found = {name: address for name in connected if (address := self._run.read_announcement(name))}
        if found != self._addresses.actors or self._file.error:
            self._addresses = replace(self._addresses, actors=found)
            self._write()
        self._observer.status(status)

    def event(self, text: str) -> None:
        """Forward, and write to the launcher's log."""
        _log.info("%s", text)
        self._observer.event(text)

    def close(self) -> None:
        """Remove the addresses, because the run is over."""
        self._run.addresses.unlink(missing_ok=True)

    def _write(self) -> None:
        # The run continues even if the disk is full.
        self._file.attempt(lambda: self._run.write_addresses(self._addresses))
