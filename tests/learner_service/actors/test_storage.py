"""Work that waits for the replay's lock or the disk runs on its own thread."""

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest

from actorq.errors import ConflictError, CorruptedError, InvalidInputError, UnavailableError
from learner_service.actors.storage_thread import StorageThread
from tests.learner_service.learner_parts import acknowledged, config, on_a_loop, segment
from tests.learner_service.run.run_parts import a_run, opened

DEADLINE_S = 30.0


@on_a_loop
async def test_jobs_run_in_order_on_another_thread_and_report_on_the_loop() -> None:
    storage, told, threads = StorageThread(), list[int](), set[str]()

    def work(number: int) -> int:
        threads.add(threading.current_thread().name)
        return number

    for number in range(100):
        storage.submit(partial(work, number), told.append, lambda error: pytest.fail(str(error)))
    await storage.close()
    assert told == list(range(100))
    assert threads == {"storage"}


@on_a_loop
async def test_the_error_of_a_job_is_reported_and_the_next_job_runs() -> None:
    storage, done, failed = StorageThread(), list[object](), list[BaseException]()
    storage.submit(lambda: [][1], done.append, failed.append)
    storage.submit(lambda: "next", done.append, failed.append)
    await storage.close()
    assert done == ["next"]
    assert isinstance(failed[0], IndexError)


@on_a_loop
async def test_streams_are_not_read_while_many_jobs_wait() -> None:
    storage, go_on = StorageThread(), threading.Event()
    for _ in range(64):
        storage.submit(partial(go_on.wait, DEADLINE_S), lambda _: None, lambda _: None)
    room = asyncio.create_task(storage.has_room.wait())
    await asyncio.sleep(0)
    assert not room.done()
    go_on.set()
    async with asyncio.timeout(DEADLINE_S):
        await room
    await storage.close()


@on_a_loop
async def test_no_job_is_accepted_after_the_end() -> None:
    storage = StorageThread()
    await storage.close()
    with pytest.raises(UnavailableError, match="ending"):
        storage.submit(lambda: None, lambda _: None, lambda _: None)


@on_a_loop
async def test_the_event_loop_runs_while_the_replay_is_locked(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        stream = await opened(run)
        assert run.training is not None
        # As the trainer holds it for a draw.
        with run.training.replay._lock:
            run.streams.receive(stream, 1, lambda: 0, lambda: segment(1))
            run.streams.receive(stream, 2, lambda: 0, lambda: segment(2))
            run.beat()
            assert run.connections.join("b", 0, "actor").resume_after_sequence == 0
            assert run.connections.join("a", 1, "actor").resume_after_sequence == 0
            assert run.lifecycle.state.value == "collecting"
            assert run.training.replay.transitions == run.training.replay.total_transitions == 0
            assert (stream.received, stream.acknowledged) == (2, 0)
        await acknowledged(stream, 2)
        assert run.training.replay.total_transitions == 16
        assert run.connections.join("a", 1, "actor").resume_after_sequence == 2


@on_a_loop
async def test_order_and_duplicates_are_decided_at_the_arrival_of_segments(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(rate_limiter={"samples_per_insert": 4.0, "error_buffer": 1e6})) as run:
        stream = await opened(run)
        assert run.training is not None
        with pytest.raises(CorruptedError, match="sequences 1 to 1 "):
            run.streams.receive(stream, 2, lambda: 0, lambda: segment(2))
        for sequence in (1, 1, 2, 1):
            run.streams.receive(stream, sequence, lambda: 0, partial(segment, sequence))
        with pytest.raises(ConflictError, match=r"sequence.* 2.* 3"):
            run.streams.receive(stream, 3, lambda: 0, lambda: segment(3))
        await acknowledged(stream, 2)
        assert run.training.replay.total_transitions == 16
        assert run.training.intake.statistics().duplicate_segments == 2
        assert run.streams.refused_segments == 2


@on_a_loop
async def test_an_invalid_segment_ends_its_stream_and_releases_its_credit(tmp_path: Path) -> None:
    def broken() -> None:
        raise InvalidInputError("tensor: dtype must be one of them")

    async with a_run(tmp_path) as run:
        stream = await opened(run)
        assert run.training is not None
        run.streams.receive(stream, 1, lambda: 0, broken)  # type: ignore[arg-type]
        run.streams.receive(stream, 2, lambda: 0, lambda: segment(2))
        await run._storage.close()
        assert isinstance(stream.fault, InvalidInputError)
        assert stream.over
        assert (stream.acknowledged, run.streams.refused_segments) == (0, 1)
        assert run.training.replay.total_transitions == 0
        run.connections.close_stream(stream)
        assert run.training.replay.limiter._outstanding == 0
