"""Keeps the processes of a run alive until the run is over, then ends them."""

import math
import os
import queue
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto

from actorq.domain.status import RunState, RunStatus
from actorq.process import EXIT_FAILED, EXIT_HUNG, EXIT_INTERRUPTED, EXIT_OF_STATE, EXIT_OK, EXIT_USER_ERROR
from actorq.rundirectory import RunDirectory
from actorq.statefiles.files import DISK_FULL
from actorq.text import one_line
from actorq_apps.local.child import Child, describe_exit
from actorq_apps.local.events import ChildExited, ChildReady, Event, Events, SignalReceived
from actorq_apps.local.forkserver import ForkServers
from actorq_apps.local.observer import Observer, ProcessState, ProcessView
from actorq_apps.local.restarts import METER_POLICY, RestartHistory, RestartPolicy
from actorq_apps.local.services import Kind, Service

_METER_NICENESS = 10
_LAST_LINES = 5
# `timeout` and others send SIGTERM to the process and to its group, so that it arrives twice.
_SAME_SIGNAL_S = 0.5
_LAST_LINE_BYTES = 300
_TRACEBACK_LINES = 200
_AFTER_LEARNER = (Kind.ACTOR, Kind.EVALUATOR)
# All services print this when their address is in use. This may happen with the launcher's ports.
_CANNOT_LISTEN = "cannot listen"
# Services quote the system's error text when they cannot write.
_DISK_FULL = tuple(map(os.strerror, DISK_FULL))
# Wait before a restart after a clean exit, because an ending learner may have dismissed the actor.
_AFTER_CLEAN_EXIT_S = 2.0
_FATES = {EXIT_OK: "ended", EXIT_INTERRUPTED: "was interrupted", EXIT_HUNG: "hung in a call, or was stopped"}
# The learner's exit codes when a run is over.
_OVER = {code for state, code in EXIT_OF_STATE.items() if state.final}


@dataclass(frozen=True)
class Outcome:
    """The launcher's exit code, and the user's error if any. began: whether the learner reported stored transitions."""

    exit_code: int
    error: str | None = None
    port_taken: bool = False
    began: bool = False


class _Phase(Enum):
    RUNNING = auto()
    ENDING_LEARNER = auto()
    ENDING_OTHERS = auto()


class Supervisor:
    """Runs `services` in the given order and restarts services that die. Actors start once the learner serves.

    Four events end the run: the learner's exit code says so, a process reports a user's error, a process dies too
    often, or a signal arrives. The learner ends first, because it saves the run. The others follow. Each has `drain_s`
    seconds. A second signal ends everything at once. A learner that was interrupted from outside is restarted.
    All work happens on the calling thread, which waits only on `events`.
    """

    def __init__(
        self,
        services: Sequence[Service],
        run: RunDirectory,
        events: Events,
        observer: Observer,
        drain_s: float,
        *,
        policy: RestartPolicy,
        inherited: tuple[int, ...] = (),
        servers: ForkServers | None = None,
    ) -> None:
        self._services = {service.name: service for service in services}
        self._run, self._events, self._observer = run, events, observer
        self._drain_s, self._inherited, self._servers = drain_s, inherited, servers
        policies = {Kind.METER: METER_POLICY}
        self._histories = {
            service.name: RestartHistory(policies.get(service.kind, policy), time.monotonic, random.Random())
            for service in services
        }
        self._children: dict[str, Child] = {}
        self._later = [service.name for service in services if service.kind in _AFTER_LEARNER]
        self._due: dict[str, float] = {}
        self._phase = _Phase.RUNNING
        self._interrupted_at = -math.inf
        self._deadline = math.inf
        self._outcome = Outcome(EXIT_FAILED, "the run ended before it began")
        self._learner_is_ending = False
        self._final_state: RunState | None = None
        self._began = False
        self._earlier_summary_ns = run.summary_written_ns()

    def run(self) -> Outcome:
        """Start everything. Returns when no process runs anymore."""
        try:
            for name in self._services:
                if name not in self._later:
                    self._start(name)
            while self._phase is _Phase.RUNNING or self._children:
                if event := self._next_event():
                    self._act_on(event)
                else:
                    self._act_on_time()
            return replace(self._outcome, began=self._began)
        finally:
            # After an error, such as a closed pipe of the display, the learner still saves the run.
            if learner := self._children.get("learner"):
                learner.end(self._drain_s)
            for child in self._children.values():
                child.kill()

    def _next_event(self) -> Event | None:
        moment = min([*self._due.values(), self._deadline])
        timeout = max(0.0, moment - time.monotonic()) if moment < math.inf else None
        with suppress(queue.Empty):
            return self._events.get(timeout=timeout)
        return None

    def _act_on_time(self) -> None:
        now = time.monotonic()
        for name in [name for name, moment in self._due.items() if moment <= now]:
            del self._due[name]
            self._start(name)
            if restarts := self._histories[name].total:
                self._observer.event(f"{name} restarted {restarts}x")
        if self._deadline <= now:
            self._deadline = math.inf
            late = ["learner"] if self._phase is _Phase.ENDING_LEARNER else list(self._children)
            self._observer.event(f"{', '.join(late)} took longer than {self._drain_s:g} s to end: killed")
            for name in late:
                self._children[name].kill()

    def _act_on(self, event: Event) -> None:
        match event:
            case RunStatus() as status:
                self._began |= status.environment_steps > 0
                self._learner_is_ending = status.state.final or status.state is RunState.STOPPING
                self._final_state = status.state if status.state.final else None
                self._observer.status(status)
            case SignalReceived(number):
                self._interrupted(number)
            case ChildReady(name, pid) if name in self._children and self._children[name].pid == pid:
                self._show(name, ProcessState.RUNNING)
                if self._services[name].kind is Kind.LEARNER and self._phase is _Phase.RUNNING:
                    # These processes need a serving learner. Started earlier, they would only slow its start.
                    while self._later:
                        self._start(self._later.pop(0))
            case ChildExited(name, pid, code) if name in self._children and self._children[name].pid == pid:
                self._exited(self._children.pop(name), code)

    def _interrupted(self, number: signal.Signals) -> None:
        now = time.monotonic()
        last, self._interrupted_at = self._interrupted_at, now
        if number is signal.SIGTERM and now - last < _SAME_SIGNAL_S:
            return
        if self._phase is not _Phase.RUNNING:
            self._observer.event(f"{number.name} again: ending everything at once")
            for child in self._children.values():
                child.kill()
            return
        self._observer.event(f"{number.name}: saving the run and ending (a second signal ends at once)")
        self._end(Outcome(128 + number))

    def _exited(self, child: Child, code: int) -> None:
        service = self._services[child.name]
        if self._phase is not _Phase.RUNNING:
            self._show(child.name, ProcessState.EXITED)
            if service.kind is Kind.LEARNER and self._phase is _Phase.ENDING_LEARNER:
                self._end_others()
        elif service.kind is Kind.LEARNER and code in _OVER:
            self._show(child.name, ProcessState.EXITED)
            self._end(Outcome(code))
        elif service.kind is Kind.LEARNER and (ended := self._ended_state()):
            self._observer.event(f"learner died ({describe_exit(code)}) after the run was over: {ended.value}")
            self._show(child.name, ProcessState.EXITED)
            self._end(Outcome(EXIT_OF_STATE[ended]))
        elif self._learner_is_ending and code == EXIT_OK:
            self._show(child.name, ProcessState.EXITED)
        elif code == EXIT_USER_ERROR and service.kind is not Kind.METER and (mistake := child.user_error()):
            self._mistaken(child, mistake)
        else:
            self._restart_later(child, code)

    def _ended_state(self) -> RunState | None:
        """The run's final state, if the learner has reported and saved it. The learner's death then changes nothing."""
        is_new = self._run.summary_written_ns() != self._earlier_summary_ns
        if self._final_state and is_new and self._run.read_summary().get("state") == self._final_state.value:
            return self._final_state
        return None

    def _mistaken(self, child: Child, mistake: str) -> None:
        port_taken = _CANNOT_LISTEN in mistake
        passes = port_taken or any(text in mistake for text in _DISK_FULL)
        if passes and self._histories[child.name].total:
            # The process could listen or write there before. It is therefore not a user's error, and may pass.
            self._restart_later(child, EXIT_USER_ERROR)
            return
        self._show(child.name, ProcessState.EXITED)
        # An actor may only repeat an error that the learner has sent.
        for each in (child, self._children.get(Kind.LEARNER.value, child)):
            if any("Traceback" in line for line in each.last_lines(_TRACEBACK_LINES)):
                mistake += f"; the traceback is in {each.log}"
                break
        self._end(Outcome(EXIT_USER_ERROR, mistake, port_taken))

    def _restart_later(self, child: Child, code: int) -> None:
        delay = self._histories[child.name].next_delay(code)
        fate = _FATES.get(code) or f"died ({describe_exit(code)})"
        if delay is None:
            self._given_up(child, fate)
            return
        if code == EXIT_OK:
            delay = max(delay, _AFTER_CLEAN_EXIT_S)
        self._due[child.name] = time.monotonic() + delay
        if self._services[child.name].kind is Kind.LEARNER:
            self._recall_actors(self._due[child.name])
        # An actor ends itself when the run is over. The launcher may learn this a moment later.
        if code != EXIT_OK or self._services[child.name].kind not in _AFTER_LEARNER:
            last = one_line("".join(child.last_lines(1)), _LAST_LINE_BYTES) if code not in _FATES else ""
            self._observer.event(f"{child.name} {fate}, restarting in {delay:.1f} s" + (f": {last}" if last else ""))
        self._show(child.name, ProcessState.RESTARTING)

    def _recall_actors(self, moment: float) -> None:
        """Restart ended actors. A learner that died while ending the run may have dismissed them."""
        self._learner_is_ending = False
        for name, service in self._services.items():
            is_gone = name not in self._children and name not in self._due and name not in self._later
            if is_gone and service.kind in _AFTER_LEARNER:
                self._due[name] = moment
                self._show(name, ProcessState.RESTARTING)

    def _given_up(self, child: Child, fate: str) -> None:
        restarts = self._histories[child.name].total
        self._show(child.name, ProcessState.GIVEN_UP)
        if self._services[child.name].kind is Kind.METER:
            self._observer.event(f"meter {fate} again: the run continues without a meter, see {child.log}")
            return
        lines = "".join(f"\n  {line}" for line in child.last_lines(_LAST_LINES))
        self._end(Outcome(EXIT_FAILED, f"{child.name} {fate} after {restarts} restarts; end of {child.log}:{lines}"))

    def _end(self, outcome: Outcome) -> None:
        """Begin to end the run. The learner ends first if it still runs."""
        self._outcome = outcome
        for name in (*self._due, *self._later):
            self._show(name, ProcessState.EXITED)
        self._due.clear()
        self._later.clear()
        if "learner" in self._children:
            self._phase = _Phase.ENDING_LEARNER
            self._terminate(["learner"])
        else:
            self._end_others()

    def _end_others(self) -> None:
        self._phase = _Phase.ENDING_OTHERS
        self._terminate(list(self._children))
        for child in self._children.values():
            # Without a learner, actors need not wait to send their queues.
            child.release()

    def _terminate(self, names: list[str]) -> None:
        # A service ends itself after its drain time. One more second lets it log the reason.
        self._deadline = time.monotonic() + self._drain_s + 1.0
        for name in names:
            self._children[name].terminate()
            self._show(name, ProcessState.ENDING)

    def _start(self, name: str) -> None:
        service, put = self._services[name], self._events.put
        command = service.restart_command if self._histories[name].total else service.command
        self._run.announcement(name).unlink(missing_ok=True)
        child = Child(name, command, self._run.log(name), put, self._inherited, self._servers, self._heard)
        self._children[name] = child
        if service.kind is Kind.METER:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, child.pid, _METER_NICENESS)
        # The meter never reports that it serves.
        self._show(name, ProcessState.RUNNING if service.kind is Kind.METER else ProcessState.STARTING)

    def _heard(self, child: Child, line: str) -> None:
        self._events.put(ChildReady(child.name, child.pid))

    def _show(self, name: str, state: ProcessState) -> None:
        pid = self._children[name].pid if name in self._children else None
        kind, restarts = self._services[name].kind, self._histories[name].total
        self._observer.process(ProcessView(name, kind, state, pid, restarts))
