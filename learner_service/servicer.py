"""The learner's gRPC service. Each method decodes the request, calls the run and encodes the answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from actorq import wire
from actorq.domain.status import RunStatus
from actorq.errors import InvalidInputError
from actorq.telemetry.rationed import Rationed
from actorq.transport.security.identity import owner_of, require_member
from actorq.v1 import learner_pb2 as pb
from actorq.v1 import learner_pb2_grpc
from learner_service.actors.credits import ActorStream
from learner_service.report import Reporter
from learner_service.run.run import Run

# Limit of the rate at which statuses are sent to all watchers together.
_PERIOD_PER_WATCHER_S = 0.002


class LearnerServicer(learner_pb2_grpc.LearnerServiceServicer):
    """Serves one run."""

    def __init__(self, run: Run, reporter: Reporter) -> None:
        self._run = run
        self._connections = run.connections
        self._lifecycle = run.lifecycle
        # The time for a status grows with the number of actors. A new state of the run is always sent.
        self._statuses = Rationed(
            lambda: _with_message(reporter.status()), lambda last: last[0].state is not run.lifecycle.state
        )
        self._watchers = 0

    async def Join(self, request: pb.JoinRequest, context: Any) -> pb.JoinResponse:
        """Admit an actor or evaluator to the run."""
        joining = wire.joining_from_proto(request)
        require_member(context, joining.actor_name, joining.role)
        self._connections.check_state(joining.actor_name, joining.epoch, joining.newest_version)
        membership = self._connections.join(
            joining.actor_name, joining.incarnation, joining.role, joining.nonce, owner_of(context)
        )
        return wire.membership_to_proto(membership)

    async def StreamTrajectories(
        self, request_iterator: AsyncIterator[pb.StreamTrajectoriesRequest], context: Any
    ) -> AsyncIterator[pb.StreamTrajectoriesResponse]:
        """Receive segments, evaluations and reports; send acknowledgments, credits and directives."""
        first = await anext(aiter(request_iterator), None)
        if first is None or first.WhichOneof("payload") != "open":
            raise InvalidInputError("stream: the first message must be `open`")
        opening = wire.stream_opening_from_proto(first.open)
        member = self._run.records.members.known(opening.name)
        require_member(context, opening.name, member.role if member else None)
        stream = await self._connections.open_stream(
            opening.name, opening.incarnation, opening.environment, opening.lost_through
        )
        reader = asyncio.create_task(self._read(request_iterator, stream))
        try:
            while not stream.over:
                stream.changed.clear()
                yield _response(stream)
                await stream.changed.wait()
            if stream.fault is not None:
                raise stream.fault
            yield _response(stream)
        finally:
            reader.cancel()
            with contextlib.suppress(BaseException):
                await reader
            self._connections.close_stream(stream)

    async def _read(self, request_iterator: AsyncIterator[pb.StreamTrajectoriesRequest], stream: ActorStream) -> None:
        try:
            async for request in request_iterator:
                self._handle(request, stream)
                await self._connections.storage.has_room.wait()
            stream.end()
        except Exception as error:
            stream.fail(error)

    def _handle(self, request: pb.StreamTrajectoriesRequest, stream: ActorStream) -> None:
        match request.WhichOneof("payload"):
            case "segment":
                segment = request.segment
                decode = partial(wire.segment_from_proto, segment)
                self._run.streams.receive(stream, segment.sequence, request.ByteSize, decode)
            case "evaluation":
                self._connections.evaluated(stream, wire.evaluation_from_proto(request.evaluation))
            case "report":
                stream.check_sent(request.sent_sequence)
                self._run.records.record_report(stream.member, wire.actor_report_from_proto(request.report))
            case other:
                raise InvalidInputError(
                    f"stream: expected a segment, evaluation or report, got {other or 'an empty message'}"
                )

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        """Return the status of the run."""
        self._lifecycle.require_restored()
        return pb.GetStatusResponse(status=self._statuses.get()[1])

    async def WatchStatus(self, request: pb.WatchStatusRequest, context: Any) -> AsyncIterator[pb.WatchStatusResponse]:
        """Send the status of the run periodically until the run is over or this learner leaves it."""
        period = wire.watch_period_from_proto(request)
        await self._lifecycle.until_restored()
        self._watchers += 1
        try:
            while True:
                last, (status, message) = self._lifecycle.ended.is_set(), self._statuses.get()
                yield pb.WatchStatusResponse(status=message)
                if status.state.final:
                    return
                if last:
                    self._lifecycle.require_here()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(period, self._watchers * _PERIOD_PER_WATCHER_S)):
                        await self._lifecycle.ended.wait()
        finally:
            self._watchers -= 1

    async def PauseTraining(self, request: pb.PauseTrainingRequest, context: Any) -> pb.PauseTrainingResponse:
        """Pause training."""
        return pb.PauseTrainingResponse(updates=await self._run.pause())

    async def ResumeTraining(self, request: pb.ResumeTrainingRequest, context: Any) -> pb.ResumeTrainingResponse:
        """Resume training."""
        return pb.ResumeTrainingResponse(updates=await self._run.resume())

    async def SaveCheckpoint(self, request: pb.SaveCheckpointRequest, context: Any) -> pb.SaveCheckpointResponse:
        """Write a checkpoint."""
        path, updates = await self._run.save()
        return pb.SaveCheckpointResponse(path=str(path), updates=updates)

    async def StopRun(self, request: pb.StopRunRequest, context: Any) -> pb.StopRunResponse:
        """End the run."""
        return pb.StopRunResponse(state=wire.run_state_to_proto(await self._lifecycle.stop()))

    async def ResetEnvironment(self, request: pb.ResetEnvironmentRequest, context: Any) -> pb.ResetEnvironmentResponse:
        """Forget the run's environment spec."""
        return wire.environment_reset_to_proto(await self._run.preparation.reset(request.discard))

    async def ReportEnergy(self, request: pb.ReportEnergyRequest, context: Any) -> pb.ReportEnergyResponse:
        """Record the energy that a node measured."""
        energy, processes = wire.node_energy_from_proto(request.energy), wire.processes_from_proto(request.processes)
        self._run.records.resources.report_energy(energy, processes)
        return pb.ReportEnergyResponse()


def _with_message(status: RunStatus) -> tuple[RunStatus, pb.RunStatus]:
    return status, wire.run_status_to_proto(status)


def _response(stream: ActorStream) -> pb.StreamTrajectoriesResponse:
    return wire.stream_answer_to_proto(
        wire.StreamAnswer(
            *(stream.acknowledged, stream.credit, stream.durable, stream.evaluate_version, stream.stop, stream.share)
        )
    )
