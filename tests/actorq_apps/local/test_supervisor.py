"""The supervisor with small real processes instead of the services."""

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from actorq.domain.status import RunState, RunStatus
from actorq.process import EXIT_HUNG, EXIT_INTERRUPTED
from actorq.rundirectory import RunDirectory
from actorq.statefiles.documents import write_document
from actorq.transport.reconnect import Backoff
from actorq_apps.local.events import Events, SignalReceived
from actorq_apps.local.observer import ProcessState, ProcessView
from actorq_apps.local.restarts import RestartPolicy
from actorq_apps.local.services import Kind, Service
from actorq_apps.local.supervisor import Outcome, Supervisor
from tests.builders.run_status import run_status

TIMEOUT_S = 60.0

# argv: descriptor for reports, name, behavior, then the arguments of a restart.
FAKE = """
import os, select, signal, sys
speak, name, behaviour, *more = sys.argv[1:]
def say(text):
    os.write(int(speak), f"{name} {os.getpid()} {text}\\n".encode())
def drain(number, frame):
    say("drained")
    os._exit(int(behaviour.removeprefix("leave")) if behaviour.startswith("leave") else 0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "stubborn" else drain)
woken, wakes = os.pipe()
os.set_blocking(wakes, False)
signal.set_wakeup_fd(wakes)
print("a line of", name, flush=True)
if behaviour != "silent":
    os.write(0, b"ready\\n")
# Last: a test may end the run as soon as it has heard this.
say(" ".join(["started", *more]))
if behaviour in ("mistaken", "broken"):
    print("  Traceback (most recent call last):" if behaviour == "broken" else "", flush=True)
    print("error: --seed: expected a number", flush=True)
    sys.exit(2)
if behaviour == "full" or (behaviour == "full later" and more):
    print("error: --run-directory: run cannot be written or read: No space left on device", flush=True)
    sys.exit(2)
if behaviour.startswith("exit"):
    sys.exit(int(behaviour.removeprefix("exit")))
# Not a read: it would not end by a signal that arrives just before it begins.
select.select([0, woken], [], [])
say("lost its lifeline")
"""


STOPPING = run_status(
    state=RunState.STOPPING,
    target_return=None,
    max_environment_steps=1,
)


class Recorder:
    """An observer that records everything."""

    def __init__(self) -> None:
        self.breaks = False
        self.events: list[str] = []
        self.statuses: list[RunStatus] = []
        self.states: dict[str, list[ProcessState]] = {}

    def process(self, view: ProcessView) -> None:
        self.states.setdefault(view.name, []).append(view.state)

    def status(self, status: RunStatus) -> None:
        self.statuses.append(status)

    def event(self, text: str) -> None:
        self.events.append(text)
        if self.breaks:
            raise BrokenPipeError


class Stage:
    """Runs a supervisor on a thread and reads the reports of its processes."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDirectory(folder)
        for path in (self.run.logs, self.run.announcement("").parent):
            path.mkdir(parents=True)
        self.events: Events = Events()
        self.recorder = Recorder()
        self.pids: set[int] = set()
        self._unheeded: list[tuple[str, int, str]] = []
        self.outcome: Outcome | None = None
        self.error: BrokenPipeError | None = None
        reading, self._writing = os.pipe()
        self._said = os.fdopen(reading)
        self._thread = threading.Thread(target=lambda: None)

    def start(self, drain_s: float = TIMEOUT_S, limit: int = 3, **behaviours: str) -> None:
        services = [self._service(name.replace("_", "-"), text) for name, text in behaviours.items()]
        supervisor = Supervisor(
            services,
            self.run,
            self.events,
            self.recorder,
            drain_s,
            policy=RestartPolicy(limit=limit, backoff=Backoff(initial_s=0.01, maximum_s=0.01)),
            inherited=(self._writing,),
        )

        def work() -> None:
            try:
                self.outcome = supervisor.run()
            except BrokenPipeError as error:
                self.error = error

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def hear(self, name: str, text: str) -> int:
        """Wait until a process has reported something with this prefix; returns its process id."""
        for heard in self._unheeded:
            if heard[0] == name and heard[2].startswith(text):
                self._unheeded.remove(heard)
                return heard[1]
        for line in self._said:
            speaker, pid, said = line.rstrip("\n").split(" ", 2)
            self.pids.add(int(pid))
            if speaker == name and said.startswith(text):
                return int(pid)
            self._unheeded.append((speaker, int(pid), said))
        raise AssertionError(f"nobody is left to say {text!r}")

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        self.events.put(SignalReceived(number))

    def end(self) -> Outcome:
        """Wait for the end of the run and check that no process is left."""
        self._await_end()
        assert self.outcome is not None
        return self.outcome

    def end_broken(self) -> None:
        """The same for a run whose display broke."""
        self._await_end()
        assert self.error is not None

    def _await_end(self) -> None:
        self._thread.join(TIMEOUT_S)
        assert not [pid for pid in self.pids if psutil.pid_exists(pid)]

    def close(self) -> None:
        for _ in range(2):
            self.interrupt()
        self._thread.join(TIMEOUT_S)
        os.close(self._writing)
        self._said.close()

    def _service(self, name: str, behaviour: str) -> Service:
        kind = Kind(name.partition("-")[0])
        command = (sys.executable, "-S", "-c", FAKE, str(self._writing), name, behaviour)
        return Service(name, kind, command, (*command, "--resume"))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 3), (4, 4)])
def test_the_run_ends_with_the_learner_and_has_its_exit_code(stage: Stage, code: int, expected: int) -> None:
    stage.start(actor_0="serve", learner=f"exit{code}")
    assert stage.end() == Outcome(expected)
    assert stage.recorder.states["actor-0"][-1] is ProcessState.EXITED


def test_actors_and_evaluators_start_once_the_learner_serves(stage: Stage) -> None:
    stage.start(actor_0="serve", evaluator="serve", meter="serve", learner="silent")
    for name in ("learner", "meter"):
        stage.hear(name, "started")
    stage.interrupt()
    assert stage.end() == Outcome(130)
    assert stage.recorder.states["actor-0"] == stage.recorder.states["evaluator"] == [ProcessState.EXITED]


def test_a_service_is_shown_as_running_once_it_reports_so(stage: Stage) -> None:
    stage.start(actor_0="serve", learner="serve", quantizer="silent")
    stage.hear("actor-0", "started")
    stage.hear("quantizer", "started")
    stage.interrupt()
    stage.end()
    assert stage.recorder.states["learner"][:2] == [ProcessState.STARTING, ProcessState.RUNNING]
    assert ProcessState.RUNNING not in stage.recorder.states["quantizer"]


def test_a_killed_process_is_restarted_with_its_restart_command(stage: Stage) -> None:
    stage.start(learner="serve", actor_1="serve")
    os.kill(stage.hear("actor-1", "started"), signal.SIGKILL)
    stage.hear("actor-1", "started --resume")
    stage.interrupt()
    assert stage.end().exit_code == 130
    died, restarted, *_ = stage.recorder.events
    assert re.match(r"actor-1 .*SIGKILL.* 0\.0 s: a line of actor-1$", died)
    assert re.match(r"actor-1 .*\b1x", restarted)


def test_a_learner_that_somebody_interrupted_is_restarted_and_the_others_stay(stage: Stage) -> None:
    stage.start(limit=1, learner=f"leave{EXIT_INTERRUPTED}", actor_0="serve")
    # Before the run ends: an actor that has not begun would end without a report.
    actor = stage.hear("actor-0", "started")
    for text in ("started", "started --resume"):
        os.kill(stage.hear("learner", text), signal.SIGTERM)
    outcome = stage.end()
    assert outcome.error is not None
    assert re.match("learner .*interrupted .* 1 restarts", outcome.error)
    assert re.match(r"learner .*interrupted.* 0\.0 s$", stage.recorder.events[0])
    assert stage.hear("actor-0", "drained") == actor


def test_reports_the_restart_of_a_hung_process(stage: Stage) -> None:
    stage.start(limit=1, learner="serve", actor_0=f"leave{EXIT_HUNG}")
    for _ in range(2):
        os.kill(stage.hear("actor-0", "started"), signal.SIGTERM)
    stage.end()
    assert re.match(r"actor-0 hung .* 0\.0 s$", stage.recorder.events[0])


def test_an_actor_that_ends_itself_restarts_without_an_event(stage: Stage) -> None:
    # The run may be over. The learner reports this a moment later.
    stage.start(learner="serve", actor_0="serve")
    os.kill(stage.hear("actor-0", "started"), signal.SIGTERM)
    stage.hear("actor-0", "drained")
    stage.hear("actor-0", "started")
    stage.interrupt()
    stage.end()
    assert not [event for event in stage.recorder.events if "restarting" in event]


def test_processes_that_wait_for_the_ended_learner_lose_their_lifeline(stage: Stage) -> None:
    stage.start(learner="serve", actor_0="stubborn")
    stage.hear("learner", "started")
    stage.hear("actor-0", "started")
    stage.interrupt()
    stage.hear("learner", "drained")
    stage.hear("actor-0", "lost its lifeline")
    assert stage.end() == Outcome(130)


def test_restarts_actors_that_a_dying_learner_dismissed(stage: Stage) -> None:
    stage.events.put(STOPPING)
    stage.start(learner="serve", actor_0="serve")
    learner = stage.hear("learner", "started")
    os.kill(stage.hear("actor-0", "started"), signal.SIGTERM)
    stage.hear("actor-0", "drained")
    os.kill(learner, signal.SIGKILL)
    stage.hear("actor-0", "started")
    stage.interrupt()
    assert stage.end().exit_code == 130


@pytest.mark.parametrize(("state", "code"), [(RunState.SOLVED, 0), (RunState.BUDGET_ENDED, 3), (RunState.STOPPED, 4)])
def test_does_not_restart_a_learner_that_died_after_the_end(stage: Stage, state: RunState, code: int) -> None:
    stage.events.put(replace(STOPPING, state=state))
    stage.start(learner="serve", actor_0="serve")
    learner = stage.hear("learner", "started")
    write_document(stage.run.summary, {"state": state.value})
    os.kill(learner, signal.SIGKILL)
    assert stage.end() == Outcome(code)
    (event,) = stage.recorder.events
    assert re.match(f"learner .*SIGKILL.* over: {state.value}$", event)


def test_ignores_a_summary_of_an_earlier_session(stage: Stage) -> None:
    write_document(stage.run.summary, {"state": "solved"})
    stage.events.put(replace(STOPPING, state=RunState.SOLVED))
    stage.start(learner="serve")
    os.kill(stage.hear("learner", "started"), signal.SIGKILL)
    stage.hear("learner", "started --resume")
    stage.interrupt()
    assert stage.end().exit_code == 130


def test_a_process_that_dies_too_often_fails_the_run_and_its_log_is_quoted(stage: Stage) -> None:
    stage.start(limit=2, learner="serve", quantizer="exit7")
    outcome = stage.end()
    assert outcome.exit_code == 1
    assert outcome.error is not None
    assert re.match("quantizer .*exit code 7.* 2 restarts", outcome.error)
    assert str(stage.run.log("quantizer")) in outcome.error
    assert outcome.error.endswith("\n  a line of quantizer")


def test_a_users_mistake_ends_the_run_without_a_restart(stage: Stage) -> None:
    stage.start(learner="serve", actor_0="mistaken")
    assert stage.end() == Outcome(2, "--seed: expected a number")
    assert not [event for event in stage.recorder.events if "restart" in event]


def test_a_disk_without_room_at_the_start_is_a_users_mistake(stage: Stage) -> None:
    stage.start(learner="full")
    outcome = stage.end()
    assert outcome.exit_code == 2
    assert re.match("--run-directory: run .*: No space left", outcome.error or "")


def test_retries_a_restart_that_found_a_full_disk(stage: Stage) -> None:
    stage.start(limit=2, learner="full later")
    os.kill(stage.hear("learner", "started"), signal.SIGKILL)
    for _ in range(2):
        stage.hear("learner", "started --resume")
    outcome = stage.end()
    assert outcome.exit_code == 1
    assert outcome.error is not None
    assert re.match("learner .*exit code 2.* 2 restarts", outcome.error)
    assert outcome.error.endswith("No space left on device")


def test_the_log_with_the_traceback_of_users_code_is_named(stage: Stage) -> None:
    stage.start(learner="broken")
    outcome = stage.end()
    assert outcome.exit_code == 2
    assert re.match(f"--seed: expected a number; .*{stage.run.log('learner')}$", outcome.error or "")


def test_the_run_continues_without_its_meter(stage: Stage) -> None:
    stage.start(learner="serve", meter="exit1")
    for life in ("started", *["started --resume"] * 3):
        stage.hear("meter", life)
    stage.interrupt()
    assert stage.end().exit_code == 130


def test_an_interrupt_ends_the_learner_first_and_then_the_others(stage: Stage) -> None:
    stage.start(learner="serve", quantizer="serve")
    stage.hear("learner", "started")
    stage.interrupt(signal.SIGTERM)
    stage.hear("learner", "drained")
    assert stage.end() == Outcome(143)


def test_a_sigterm_that_arrives_twice_at_once_still_saves_the_run(stage: Stage) -> None:
    stage.start(learner="serve", quantizer="serve")
    stage.hear("learner", "started")
    stage.interrupt(signal.SIGTERM)
    stage.interrupt(signal.SIGTERM)
    stage.hear("learner", "drained")
    assert stage.end() == Outcome(143)
    assert not [event for event in stage.recorder.events if "again" in event]


def test_the_learner_saves_the_run_when_the_display_is_closed(stage: Stage) -> None:
    stage.recorder.breaks = True
    stage.start(learner="serve", actor_0="serve")
    stage.hear("learner", "started")
    os.kill(stage.hear("actor-0", "started"), signal.SIGKILL)
    stage.hear("learner", "drained")
    stage.end_broken()


def test_a_second_interrupt_kills_processes_that_do_not_end(stage: Stage) -> None:
    stage.start(learner="stubborn", actor_0="stubborn")
    stage.hear("learner", "started")
    stage.interrupt()
    stage.interrupt()
    assert stage.end() == Outcome(130)


def test_a_process_that_does_not_end_within_the_drain_time_is_killed(stage: Stage) -> None:
    stage.start(drain_s=-0.9, learner="stubborn")
    stage.hear("learner", "started")
    stage.interrupt()
    assert stage.end() == Outcome(130)
    assert "killed" in stage.recorder.events[-1]
