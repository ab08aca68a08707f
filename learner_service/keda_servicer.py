"""KEDA's ExternalScaler: decode, ask the run, encode."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from actorq.errors import UnavailableError
from actorq.externalscaler import externalscaler_pb2 as pb
from actorq.externalscaler import externalscaler_pb2_grpc
from actorq.wire import bounds
from learner_service.run.run import Run

# Of one replica: with it the metric is the number of replicas, whatever KEDA and HPA divide.
_TARGET = 1
_METRIC = "actorq-desired-actors"


class ScalerServicer(externalscaler_pb2_grpc.ExternalScalerServicer):
    """Tells KEDA how many actors a run can use."""

    def __init__(self, run: Run) -> None:
        self._run = run
        # Actors that it had before may be on their way back; a new run has none to lose.
        self._comes_back = not run.restored.is_set()

    async def IsActive(self, request: pb.ScaledObjectRef, context: Any) -> pb.IsActiveResponse:
        """Whether the run wants actors."""
        return pb.IsActiveResponse(result=self._run.wants_actors)

    async def StreamIsActive(self, request: pb.ScaledObjectRef, context: Any) -> AsyncIterator[pb.IsActiveResponse]:
        """Whether the run wants actors, now and when it is over; then nothing changes any more.

        Raises UnavailableError when the learner leaves a run that goes on.
        """
        if self._run.wants_actors:
            yield pb.IsActiveResponse(result=True)
            await self._run.ended.wait()
            self._run.require_here()
        yield pb.IsActiveResponse(result=False)
        # KEDA would open an ended stream again and again.
        await asyncio.Event().wait()

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Any) -> pb.GetMetricSpecResponse:
        """The number of actors, in units of one."""
        spec = pb.MetricSpec(metricName=_METRIC, targetSize=_TARGET, targetSizeFloat=_TARGET)
        return pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Any) -> pb.GetMetricsResponse:
        """How many actors the run can use, under the name that KEDA knows the metric by.

        Raises UnavailableError while that cannot be told, so that KEDA and HPA leave the number as it is.
        """
        name = bounds.optional_name("metricName", request.metricName)
        value = self._desired_actors() * _TARGET
        metric = pb.MetricValue(metricName=name or _METRIC, metricValue=value, metricValueFloat=value)
        return pb.GetMetricsResponse(metricValues=[metric])

    def _desired_actors(self) -> int:
        run = self._run
        run.require_here()
        if run.ended.is_set():
            return 0
        if not run.wants_actors:
            raise UnavailableError("the learner is saving its run, and cannot tell yet whether it wants actors")
        run.require_restored()
        if self._comes_back and not run.records.scaling.can_tell:
            raise UnavailableError("the learner has not measured yet how many actors its run can use")
        return run.records.scaling.desired_actors
