"""The way of a segment from its message to the rows of the replay has few calls."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

from actorq import wire
from actorq.v1 import learner_pb2
from learner_service.actors.storage_thread import StorageThread
from learner_service.replay.storage.rows import RowWriter
from learner_service.report import Reporter
from learner_service.servicer import LearnerServicer
from tests.learner_service.learner_parts import acknowledged, on_a_loop, segment
from tests.learner_service.run.run_parts import a_run, opened

PROJECT = str(Path(__file__).parents[3] / "learner_service")


def project_frames(frame: FrameType | None) -> list[str]:
    """The functions of the learner on a stack, outermost first."""
    names: list[str] = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PROJECT):
            names.insert(0, frame.f_code.co_qualname)
        frame = frame.f_back
    return names


@on_a_loop
async def test_a_segment_needs_six_calls_from_the_servicer_to_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks: dict[str, list[str]] = {}

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def record(*arguments: Any) -> Any:
            stacks[function.__qualname__] = [*project_frames(sys._getframe(1)), function.__qualname__]
            return function(*arguments)

        return record

    monkeypatch.setattr(RowWriter, "write", recorded(RowWriter.write))
    async with a_run(tmp_path) as run:
        stream = await opened(run)
        monkeypatch.setattr(StorageThread, "submit", recorded(StorageThread.submit))
        servicer = LearnerServicer(run, cast(Reporter, None))
        request = learner_pb2.StreamTrajectoriesRequest(segment=wire.segment_to_proto(segment(1)))
        servicer._handle(request, stream)
        await acknowledged(stream, 1)
    servicer_frame, *on_the_loop = stacks["StorageThread.submit"]
    thread, *on_the_thread = stacks["RowWriter.write"]
    assert (servicer_frame, thread) == ("LearnerServicer._handle", "StorageThread._run")
    # The thread's own frame is the other half of `submit`.
    calls = [*on_the_loop, *on_the_thread]
    assert calls == [
        "Streams.receive",
        "StorageThread.submit",
        "Intake.store",
        "SegmentBuffer.insert",
        "ReplayStore.insert",
        "RowWriter.write",
    ]
