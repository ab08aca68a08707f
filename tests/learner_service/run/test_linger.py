"""A learner in a pod: a run that is over stays over, however often its learner is restarted."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actorq.client import LearnerClient
from actorq.config.run_config import RunConfig
from actorq.domain.status import RunState, RunStatus
from actorq.errors import UnavailableError
from actorq.process import EXIT_BUDGET_ENDED, EXIT_OK
from actorq.v1 import learner_pb2
from tests.learner_service.learner_parts import SPEC, segment
from tests.learner_service.learner_servers import DEADLINE_S, ActorStream, Running, running_learner, running_quantizer

BUDGET = 200


def config(budget: int = BUDGET) -> RunConfig:
    tree: dict[str, Any] = {
        "environments_per_actor": 2,
        "max_environment_steps": budget,
        "dqn": {"hidden_sizes": (8,), "batch_size": 8, "n_step": 3},
        "replay": {"capacity": 2_000, "min_size": 64},
        "actor": {"segment_length": 4},
    }
    return RunConfig.model_validate(tree)


@pytest.fixture
def quantizer(tmp_path: Path) -> Iterator[str]:
    with running_quantizer(tmp_path / "policies") as address:
        yield address


@contextmanager
def learner(
    directory: Path, quantizer: str, budget: int = BUDGET, linger: bool = True
) -> Iterator[tuple[LearnerClient, Running]]:
    """A learner as a pod starts it: it always resumes."""
    with (
        running_learner(config(budget), directory, quantizer, resume=True, linger=linger) as running,
        LearnerClient(running.address, deadline_s=DEADLINE_S) as client,
    ):
        yield client, running


def join(client: LearnerClient, incarnation: int) -> None:
    """Join as soon as the learner has restored its run."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            client.join("actor-0", incarnation, "actor", "test")
            return
        except UnavailableError as error:
            if "restoring" not in str(error) or time.monotonic() > deadline:
                raise
        threading.Event().wait(0.01)


def feed(client: LearnerClient, incarnation: int = 1) -> None:
    """Send segments until the run is over."""
    join(client, incarnation)
    stream = ActorStream(client, "actor-0", incarnation)
    stream.open(SPEC)
    sequence = 0
    while client.status().environment_steps < client.status().max_environment_steps:
        sequence += 1
        stream.await_credit(sequence)
        stream.send_segment(segment(sequence))
        stream.await_acknowledged(sequence)
    stream.await_directive(learner_pb2.DIRECTIVE_STOP)
    stream.close()


def final(client: LearnerClient) -> RunStatus:
    """The status once the run is over."""
    *_, last = client.watch(0.05)
    assert last.state.final
    return last


def refused(client: LearnerClient) -> bool:
    with pytest.raises(UnavailableError, match="over"):
        client.join("actor-0", 99, "actor", "test")
    return True


def test_a_finished_run_is_served_until_sigterm_and_by_the_next_learner(quantizer: str, tmp_path: Path) -> None:
    directory = tmp_path / "a run that does not exist yet"
    with learner(directory, quantizer) as (client, running):
        feed(client)
        ended = final(client)
        assert ended.state is RunState.BUDGET_ENDED
        assert refused(client)
        assert not running.exit_code.done()
    assert running.exit_code.result(0) == EXIT_OK
    summary = (directory / "summary.json").read_bytes()
    with learner(directory, quantizer) as (client, running):
        again = final(client)
        assert (again.state, again.run_id, again.elapsed_s) == (ended.state, ended.run_id, ended.elapsed_s)
        assert (again.environment_steps, again.updates) == (ended.environment_steps, ended.updates)
        assert refused(client)
    assert running.exit_code.result(0) == EXIT_OK
    assert (directory / "summary.json").read_bytes() == summary


def test_a_run_that_ends_on_a_full_disk_stays_over_once_there_is_room(quantizer: str, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    blocks = [directory / f".{name}.partial" for name in ("summary.json", "outcome.json")]
    with learner(directory, quantizer) as (client, running):
        for block in blocks:
            block.mkdir()
        feed(client)
        ended = final(client)
        for block in blocks:
            block.rmdir()
    assert running.exit_code.result(0) == EXIT_OK
    assert json.loads((directory / "summary.json").read_text())["state"] == "budget ended"
    with learner(directory, quantizer) as (client, _):
        assert final(client).elapsed_s == ended.elapsed_s


class AtTheFirstRecord(logging.Handler):
    """Calls a function once, on the thread that logs."""

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__()
        self._function = function

    def emit(self, record: logging.LogRecord) -> None:
        function, self._function = self._function, lambda: None
        function()


def test_a_learner_that_is_told_to_end_while_the_disk_is_full_tries_once_more(quantizer: str, tmp_path: Path) -> None:
    directory, log = tmp_path / "run", logging.getLogger("actorq.statefiles.tolerance")
    with learner(directory, quantizer) as (client, running):
        block = directory / ".summary.json.partial"
        block.mkdir()

        def make_room_and_end() -> None:
            block.rmdir()
            running.service.begin_drain()

        handler = AtTheFirstRecord(make_room_and_end)
        log.addHandler(handler)
        try:
            feed(client)
            assert running.exit_code.result(DEADLINE_S) == EXIT_OK
        finally:
            log.removeHandler(handler)
    assert json.loads((directory / "summary.json").read_text())["state"] == "budget ended"


def test_a_larger_budget_continues_a_finished_run(quantizer: str, tmp_path: Path) -> None:
    with learner(tmp_path / "run", quantizer) as (client, _):
        feed(client)
    with learner(tmp_path / "run", quantizer, budget=2 * BUDGET) as (client, _):
        feed(client, incarnation=2)
        assert final(client).environment_steps >= 2 * BUDGET
    with learner(tmp_path / "run", quantizer, budget=2 * BUDGET) as (client, _):
        assert final(client).state is RunState.BUDGET_ENDED


def test_without_lingering_a_finished_run_continues_training(quantizer: str, tmp_path: Path) -> None:
    with learner(tmp_path / "run", quantizer, linger=False) as (client, running):
        feed(client)
        assert running.exit_code.result(DEADLINE_S) == EXIT_BUDGET_ENDED
    with learner(tmp_path / "run", quantizer, linger=False) as (client, _):
        join(client, incarnation=2)
    assert not (tmp_path / "run" / "outcome.json").exists()


def test_an_interrupted_run_is_continued(quantizer: str, tmp_path: Path) -> None:
    with learner(tmp_path / "run", quantizer) as (_, running):
        pass
    assert running.exit_code.result(0) == EXIT_OK
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["state"] == "interrupted"
    with learner(tmp_path / "run", quantizer) as (client, _):
        join(client, incarnation=1)


def test_a_stopped_run_stays_stopped(quantizer: str, tmp_path: Path) -> None:
    with learner(tmp_path / "run", quantizer) as (client, _):
        client.stop()
        assert final(client).state is RunState.STOPPED
    with learner(tmp_path / "run", quantizer) as (client, _):
        assert final(client).state is RunState.STOPPED
        assert refused(client)
