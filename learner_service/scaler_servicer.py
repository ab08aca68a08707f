"""KEDA's ExternalScaler: decode, ask the run, encode."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from actorq.externalscaler import externalscaler_pb2 as pb
from actorq.externalscaler import externalscaler_pb2_grpc
from learner_service.run import Run

# Of one replica: with it the metric is the number of replicas, whatever KEDA and HPA divide.
_TARGET = 1
_METRIC = "actorq-desired-actors"


class ScalerServicer(externalscaler_pb2_grpc.ExternalScalerServicer):
    """Tells KEDA how many actors a run can use."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def IsActive(self, request: pb.ScaledObjectRef, context: Any) -> pb.IsActiveResponse:
        """Whether the run wants actors."""
        return pb.IsActiveResponse(result=self._run.wants_actors)

    async def StreamIsActive(self, request: pb.ScaledObjectRef, context: Any) -> AsyncIterator[pb.IsActiveResponse]:
        """Whether the run wants actors, now and when it is over; then nothing changes any more."""
        if self._run.wants_actors:
            yield pb.IsActiveResponse(result=True)
            await self._run.over.wait()
        yield pb.IsActiveResponse(result=False)
        # KEDA would open an ended stream again and again.
        await asyncio.Event().wait()

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Any) -> pb.GetMetricSpecResponse:
        """The number of actors, in units of one."""
        spec = pb.MetricSpec(metricName=_METRIC, targetSize=_TARGET, targetSizeFloat=_TARGET)
        return pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Any) -> pb.GetMetricsResponse:
        """How many actors the run can use, under the name that KEDA knows the metric by."""
        value = self._run.scaling.desired_actors * _TARGET if self._run.wants_actors else 0
        metric = pb.MetricValue(metricName=request.metricName or _METRIC, metricValue=value, metricValueFloat=value)
        return pb.GetMetricsResponse(metricValues=[metric])
