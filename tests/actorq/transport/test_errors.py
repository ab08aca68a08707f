"""Each error becomes one status and the same error again, through a real server and a real channel."""

import asyncio
import gc
import logging
import re
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from actorq import errors
from actorq.client import LearnerClient, QuantizerClient
from actorq.transport.errors import translated
from actorq.v1 import learner_pb2
from tests.actorq.transport.staged_servicer import TIMEOUT_S, StagedLearner, serving

# The error that the service raises, and the error that the caller gets.
MAP: list[tuple[type[errors.ActorQError], type[errors.ActorQError]]] = [
    (errors.InvalidInputError, errors.InvalidInputError),
    (errors.UserError, errors.InvalidInputError),
    (errors.NotFoundError, errors.NotFoundError),
    (errors.ConflictError, errors.ConflictError),
    (errors.ExhaustedError, errors.ExhaustedError),
    (errors.DeniedError, errors.DeniedError),
    (errors.UnavailableError, errors.UnavailableError),
    (errors.CorruptedError, errors.CorruptedError),
    (errors.UnreadableError, errors.UnavailableError),
]


def raising(error: Exception) -> Callable[[], Coroutine[Any, Any, None]]:
    async def act() -> None:
        raise error

    return act


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def unary(client: LearnerClient) -> None:
    client.status()


def server_stream(client: LearnerClient) -> None:
    statuses = client.watch(patience_s=0.0)
    next(statuses)
    next(statuses)


def bidirectional_stream(client: LearnerClient) -> None:
    requests = iter([learner_pb2.StreamTrajectoriesRequest()])
    with translated(client.peer):
        responses = client.stub.StreamTrajectories(requests, timeout=TIMEOUT_S)
        next(responses)
        next(responses)


CALLS = [unary, server_stream, bidirectional_stream]


def test_every_error_of_the_domain_has_a_status() -> None:
    domain = {kind for kind in vars(errors).values() if isinstance(kind, type)} - {errors.ActorQError}
    assert {sent for sent, _ in MAP} == domain


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("sent", "received"), MAP)
def test_an_error_of_the_domain_arrives_as_itself(
    sent: type[errors.ActorQError], received: type[errors.ActorQError], call: Callable[[LearnerClient], None]
) -> None:
    with (
        serving(StagedLearner(raising(sent("rewards: expected 3, got 4 ümlaut\nand a line")))) as stage,
        LearnerClient(stage.address) as client,
        pytest.raises(errors.ActorQError) as caught,
    ):
        call(client)
    assert type(caught.value) is received
    assert f"learner at {stage.address}" in str(caught.value)
    assert r"rewards: expected 3, got 4 ümlaut\nand a line" in str(caught.value)


@pytest.mark.parametrize("call", CALLS)
def test_an_unexpected_exception_is_internal_and_its_traceback_stays_in_the_services_log(
    call: Callable[[LearnerClient], None], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serving(StagedLearner(raising(ZeroDivisionError("by zero")))) as stage,
        LearnerClient(stage.address) as client,
        pytest.raises(errors.ActorQError) as caught,
    ):
        call(client)
    assert type(caught.value) is errors.ActorQError
    assert re.search(f"learner at {stage.address}.*ZeroDivisionError: by zero.* log", str(caught.value))
    logged = [record for record in caplog.records if record.name == "actorq.transport.errors"]
    assert [record.levelno for record in logged] == [logging.ERROR]
    assert logged[0].exc_info is not None


def test_an_unavailable_answer_is_not_reported_as_unreachable() -> None:
    with (
        serving(StagedLearner(raising(errors.UnavailableError("the run is over")))) as stage,
        LearnerClient(stage.address) as client,
        pytest.raises(errors.UnavailableError, match=f"learner at {stage.address}: the run is over$"),
    ):
        client.status()


def test_reports_the_address_of_another_service() -> None:
    with (
        serving(StagedLearner()) as stage,
        QuantizerClient(stage.address) as client,
        pytest.raises(errors.UnavailableError, match=f"quantizer at {stage.address}.*Method not found.*address"),
    ):
        client.list()


def test_a_refused_call_is_one_warning_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with (
        serving(StagedLearner(raising(errors.NotFoundError("version 7 is not retained")))) as stage,
        LearnerClient(stage.address) as client,
        pytest.raises(errors.NotFoundError),
    ):
        client.status()
    (logged,) = [record for record in caplog.records if record.name.startswith("actorq.transport")]
    assert re.search("/actorq.v1.LearnerService/GetStatus .*version 7 is not retained", logged.getMessage())
    assert logged.exc_info is None


def test_an_error_with_a_very_long_message_still_arrives_as_itself() -> None:
    with (
        serving(StagedLearner(raising(errors.ConflictError("expected " + "ä" * 20_000)))) as stage,
        LearnerClient(stage.address) as client,
        pytest.raises(errors.ConflictError, match="expected äää"),
    ):
        client.status()


def test_an_error_that_another_task_went_through_leaves_that_task_running() -> None:
    failure = errors.ConflictError("told to several")
    tasks: list[asyncio.Task[str]] = []
    finished: list[str] = []

    async def goes_on(go: asyncio.Event) -> str:
        try:
            raise failure
        except errors.ConflictError:
            await go.wait()
        return "went on"

    go = asyncio.Event()

    async def act() -> None:
        if not tasks:
            tasks.append(asyncio.create_task(goes_on(go)))
            # It runs until it waits. From then on, its frame belongs to the error's frames.
            await asyncio.sleep(0)
            raise failure
        go.set()
        finished.append(await tasks[0])

    with serving(StagedLearner(act)) as stage, LearnerClient(stage.address) as client:
        with pytest.raises(errors.ConflictError):
            client.status()
        client.status()
    assert finished == ["went on"]


def test_the_memory_of_a_refused_call_is_freed_at_once() -> None:
    class Held:
        """Something large."""

    alive: list[weakref.ref[Held]] = []
    failed: list[asyncio.Future[None]] = []

    async def act() -> None:
        if alive:
            assert alive[0]() is None
            return
        held = Held()
        alive.append(weakref.ref(held))
        failed.append(asyncio.get_running_loop().create_future())
        # As with work in another thread, the error comes through a future.
        asyncio.get_running_loop().call_soon(failed[0].set_exception, errors.InvalidInputError("no"))
        await failed.pop()

    gc.disable()
    try:
        with serving(StagedLearner(act)) as stage, LearnerClient(stage.address) as client:
            with pytest.raises(errors.InvalidInputError):
                client.status()
            client.status()
    finally:
        gc.enable()


def test_a_service_that_does_not_answer_in_time_cannot_be_reached() -> None:
    with (
        serving(StagedLearner(wait_for_ever)) as stage,
        LearnerClient(stage.address, deadline_s=0.05) as client,
        pytest.raises(errors.UnavailableError, match=rf"learner at {stage.address} .*(?i:deadline.exceeded)"),
    ):
        client.status()


def test_a_service_that_is_not_there_cannot_be_reached() -> None:
    with serving(StagedLearner()) as stage:
        address = stage.address
    with (
        LearnerClient(address) as client,
        pytest.raises(errors.UnavailableError, match=f"learner at {address} "),
    ):
        client.status()


def test_reports_an_unknown_host_name_in_words() -> None:
    with (
        LearnerClient("learner.invalid:1") as client,
        pytest.raises(errors.UnavailableError, match=r"^learner at learner\.invalid:1 [^(]+\([^:\[\]()]+\)$"),
    ):
        client.status()


def test_closing_a_client_ends_its_streams() -> None:
    with serving(StagedLearner(wait_for_ever)) as stage, LearnerClient(stage.address) as client:
        statuses = client.watch()
        next(statuses)
        client.close()
        with pytest.raises(errors.UnavailableError, match=f"learner at {stage.address} "):
            next(statuses)


def test_closing_a_stream_ends_it_in_the_service() -> None:
    learner = StagedLearner(wait_for_ever)
    with serving(learner) as stage, LearnerClient(stage.address) as client:
        statuses = client.watch()
        next(statuses)
        statuses.close()  # type: ignore[attr-defined]
        assert learner.cancelled.wait(TIMEOUT_S)
        assert client.save_checkpoint() == ""
