"""Moves the learner of a run. Actors and watchers wait for the next learner, and no data are lost."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from actorq.client import LearnerClient
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import RunState, RunStatus
from actorq.errors import UnavailableError
from actorq.statefiles.documents import read_document
from actorq_apps.local.services import reserved_addresses
from learner_service.replay import ReplayStore
from tests.builders.forked_commands import ForkedCommand

PATIENCE_S = 120.0
CAPACITY = 400_000
CONFIG: dict[str, Any] = {
    "environments_per_actor": 4,
    "target_return": 501.0,
    "max_environment_steps": 10_000_000,
    "dqn": {"hidden_sizes": [16], "batch_size": 16},
    "replay": {"capacity": CAPACITY, "min_size": 500},
    "actor": {"segment_length": 8, "report_period_s": 0.2},
    # An evaluation for each version. The default share of the CPU would make the evaluator wait.
    "evaluation": {"episodes": 2, "share": 1.0},
}


@dataclass(frozen=True)
class Fleet:
    """The processes of a run, each started as in a pod."""

    directory: Path
    learner: str
    quantizer: str
    processes: dict[str, ForkedCommand]

    def start(self, name: str, module: str, *arguments: str) -> None:
        """Start a process, or restart it."""
        given = ("--config", str(self.directory / "config.yaml"), "--name", name, *arguments)
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = ForkedCommand(module, *given, errors=log.fileno())

    def start_learner(self) -> None:
        """Start the learner. It continues an existing run."""
        state = ("--run-directory", str(self.directory / "run"), "--quantizer", self.quantizer)
        self.start("learner", "learner_service", "--listen", self.learner, *state, "--resume", "--linger")

    def start_all(self) -> None:
        """Start the whole run."""
        (self.directory / "config.yaml").write_text(yaml.safe_dump(CONFIG))
        self.start_learner()
        store = str(self.directory / "policies")
        self.start("quantizer", "quantizer_service", "--listen", self.quantizer, "--store", store)
        for name, role in (("actor-0", "actor"), ("actor-1", "actor"), ("evaluator", "evaluator")):
            peers = ("--learner", self.learner, "--quantizer", self.quantizer)
            self.start(name, "actor_service", *peers, "--role", role)

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal a process and return its exit code."""
        self.processes[name].send_signal(number)
        return self.processes[name].wait(PATIENCE_S)

    def ended(self) -> set[str]:
        """The processes that have ended."""
        return {name for name, process in self.processes.items() if process.poll() is not None}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with reserved_addresses(2) as (learner, quantizer):
        fleet = Fleet(tmp_path, learner, quantizer, {})
        try:
            yield fleet
        finally:
            for process in fleet.processes.values():
                with process:
                    process.kill()


class Watcher:
    """One watch of the run, over all restarts of its learner."""

    def __init__(self, client: LearnerClient) -> None:
        self._changed = threading.Condition()
        self._seen: list[RunStatus] = []
        self._thread = threading.Thread(target=self._watch, args=(client,), daemon=True)
        self._thread.start()

    def until(self, condition: Callable[[RunStatus], bool], after: int = 0) -> tuple[int, RunStatus]:
        """The first status for which `condition` holds after skipping some, and the number of statuses up to it."""

        def found() -> tuple[int, RunStatus] | None:
            seen = enumerate(self._seen[after:], after + 1)
            return next(((number, status) for number, status in seen if condition(status)), None)

        with self._changed:
            answer = self._changed.wait_for(found, PATIENCE_S)
            assert answer, self._seen[-1:]
            return answer

    def _watch(self, client: LearnerClient) -> None:
        # The stream ends this way when the client is closed.
        with suppress(UnavailableError):
            for status in client.watch(0.05):
                with self._changed:
                    self._seen.append(status)
                    self._changed.notify_all()


@contextmanager
def watching(address: str) -> Iterator[Watcher]:
    """Watch as soon as the learner serves."""
    with LearnerClient(address) as client:
        client.wait()
        yield Watcher(client)


def goes_on(status: RunStatus) -> bool:
    """Whether all processes are connected and there is an evaluation."""
    connected = {actor.name for actor in status.actors if actor.connected}
    whole = connected == {"actor-0", "actor-1", "evaluator"}
    return status.state is RunState.TRAINING and whole and status.evaluation is not None


def test_a_move_of_the_learner_ends_no_process_and_loses_no_data(fleet: Fleet) -> None:
    fleet.start_all()
    with watching(fleet.learner) as watcher:
        seen, before = watcher.until(lambda status: goes_on(status) and status.updates > 50)
        assert before.evaluation is not None
        evaluated = before.evaluation.policy_version
        assert fleet.end("learner") == 0
        seen, interrupted = watcher.until(lambda status: status.state is not RunState.TRAINING, after=seen)
        assert (interrupted.state, interrupted.state.final) == (RunState.INTERRUPTED, False)
        assert fleet.ended() == {"learner"}

        fleet.start_learner()
        seen, after = watcher.until(
            lambda status: goes_on(status) and status.environment_steps > interrupted.environment_steps, after=seen
        )
        assert after.run_id == before.run_id
        assert after.updates >= before.updates
        # The waiting evaluator has sent another evaluation.
        watcher.until(
            lambda status: status.evaluation is not None and status.evaluation.policy_version > evaluated, after=seen
        )
        assert fleet.ended() == set()
    for name in ("actor-0", "actor-1", "evaluator", "learner"):
        assert fleet.end(name) == 0
    assert_stored_exactly_once(fleet.directory / "run", actors=2)


def assert_stored_exactly_once(run: Path, actors: int) -> None:
    """Checks that each actor had one incarnation, and that all of its segments are stored once, in order."""
    spec = EnvironmentSpec.from_json(read_document(run / "environment.json"))
    store = ReplayStore.open(run / "replay", spec, CAPACITY)
    try:
        stored: dict[tuple[bytes, int], list[int]] = {}
        for record in store.segments.live:
            stored.setdefault((record.source.actor_key, record.source.incarnation), []).append(record.source.sequence)
    finally:
        store.close()
    assert len(stored) == actors
    for sequences in stored.values():
        assert sequences == list(range(1, len(sequences) + 1))
