"""LearnerService: decode, call the run, encode."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from actorq import wire
from actorq.errors import ActorQError, InvalidInputError
from actorq.status import RunState
from actorq.v1 import learner_pb2, learner_pb2_grpc, trajectory_pb2
from learner_service.credits import ActorStream
from learner_service.report import Reporter
from learner_service.run import Run

_WATCH_PERIOD_S = (0.05, 3600.0)


class LearnerServicer(learner_pb2_grpc.LearnerServiceServicer):
    """Serves one run."""

    def __init__(self, run: Run, reporter: Reporter) -> None:
        self._run = run
        self._reporter = reporter

    async def Join(self, request: learner_pb2.JoinRequest, context: Any) -> learner_pb2.JoinResponse:
        """An actor announces itself."""
        role = wire.role_from_proto(request.role)
        return wire.membership_to_proto(self._run.join(request.actor_name, request.incarnation, role))

    async def StreamTrajectories(
        self, request_iterator: AsyncIterator[learner_pb2.StreamTrajectoriesRequest], context: Any
    ) -> AsyncIterator[learner_pb2.StreamTrajectoriesResponse]:
        """Segments, evaluations and reports up; acknowledgements, credits and directives down."""
        first = await anext(aiter(request_iterator), None)
        if first is None or first.WhichOneof("payload") != "open":
            raise InvalidInputError("stream: the first message must be `open`")
        spec = wire.environment_from_proto(first.open.environment)
        stream = await self._run.open_stream(first.open.actor_name, first.open.incarnation, spec)
        reader = asyncio.create_task(self._read(request_iterator, stream))
        try:
            while not reader.done():
                stream.changed.clear()
                yield _response(stream)
                changed = asyncio.create_task(stream.changed.wait())
                await asyncio.wait((reader, changed), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            await reader
            yield _response(stream)
        finally:
            reader.cancel()
            with contextlib.suppress(BaseException):
                await reader
            self._run.close_stream(stream)

    async def _read(
        self, request_iterator: AsyncIterator[learner_pb2.StreamTrajectoriesRequest], stream: ActorStream
    ) -> None:
        async for request in request_iterator:
            match request.WhichOneof("payload"):
                case "segment":
                    self._insert(stream, request.segment)
                case "evaluation":
                    self._run.evaluated(stream, wire.evaluation_from_proto(request.evaluation))
                case "report":
                    self._run.note_report(stream, wire.actor_report_from_proto(request.report))
                case other:
                    raise InvalidInputError(
                        f"stream: expected a segment, evaluation or report, got {other or 'an empty message'}"
                    )

    def _insert(self, stream: ActorStream, segment: trajectory_pb2.Segment) -> None:
        try:
            self._run.insert(stream, wire.segment_from_proto(segment))
        except ActorQError:
            self._run.refused_segments += 1
            raise

    async def GetStatus(self, request: learner_pb2.GetStatusRequest, context: Any) -> learner_pb2.GetStatusResponse:
        """How the run goes."""
        self._run.require_restored()
        return learner_pb2.GetStatusResponse(status=wire.run_status_to_proto(self._reporter.status()))

    async def WatchStatus(
        self, request: learner_pb2.WatchStatusRequest, context: Any
    ) -> AsyncIterator[learner_pb2.WatchStatusResponse]:
        """How the run goes, again and again."""
        period = request.period.ToNanoseconds() / 1e9 if request.HasField("period") else 1.0
        lowest, highest = _WATCH_PERIOD_S
        if not lowest <= period <= highest:
            raise InvalidInputError(f"period: must be {lowest} to {highest} s, got {period}")
        await self._run.restored.wait()
        while True:
            status = self._reporter.status()
            yield learner_pb2.WatchStatusResponse(status=wire.run_status_to_proto(status))
            if status.state.final:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period):
                    await self._run.over.wait()

    async def PauseTraining(
        self, request: learner_pb2.PauseTrainingRequest, context: Any
    ) -> learner_pb2.PauseTrainingResponse:
        """Stop updating."""
        return learner_pb2.PauseTrainingResponse(updates=await self._run.pause())

    async def ResumeTraining(
        self, request: learner_pb2.ResumeTrainingRequest, context: Any
    ) -> learner_pb2.ResumeTrainingResponse:
        """Go on updating."""
        return learner_pb2.ResumeTrainingResponse(updates=self._run.resume())

    async def SaveCheckpoint(
        self, request: learner_pb2.SaveCheckpointRequest, context: Any
    ) -> learner_pb2.SaveCheckpointResponse:
        """Write a checkpoint."""
        path, updates = await self._run.save()
        return learner_pb2.SaveCheckpointResponse(path=str(path), updates=updates)

    async def StopRun(self, request: learner_pb2.StopRunRequest, context: Any) -> learner_pb2.StopRunResponse:
        """End the run."""
        self._run.finish(RunState.STOPPED)
        assert self._run.outcome is not None
        return learner_pb2.StopRunResponse(state=wire.run_state_to_proto(self._run.outcome))

    async def ReportEnergy(
        self, request: learner_pb2.ReportEnergyRequest, context: Any
    ) -> learner_pb2.ReportEnergyResponse:
        """Take a node's energy."""
        processes = tuple(wire.process_from_proto(stats) for stats in request.processes)
        self._run.resources.report_energy(wire.node_energy_from_proto(request.energy), processes)
        return learner_pb2.ReportEnergyResponse()


def _response(stream: ActorStream) -> learner_pb2.StreamTrajectoriesResponse:
    directive = learner_pb2.DIRECTIVE_UNSPECIFIED
    if stream.evaluate_version:
        directive = learner_pb2.DIRECTIVE_EVALUATE
    if stream.stop:
        directive = learner_pb2.DIRECTIVE_STOP
    return learner_pb2.StreamTrajectoriesResponse(
        acknowledged_sequence=stream.acknowledged,
        credit_through_sequence=stream.credit,
        directive=directive,
        evaluate_version=stream.evaluate_version,
    )
