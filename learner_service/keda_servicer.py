"""KEDA's ExternalScaler service: reports to KEDA how many actors the run can use."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from actorq.errors import UnavailableError
from actorq.externalscaler import externalscaler_pb2 as pb
from actorq.externalscaler import externalscaler_pb2_grpc
from actorq.wire import bounds
from learner_service.run.run import Run

# Target of one replica: KEDA and HPA divide the metric by it, so the metric is the number of replicas.
_TARGET = 1
_METRIC = "actorq-desired-actors"


class ScalerServicer(externalscaler_pb2_grpc.ExternalScalerServicer):
    """Decodes a request, asks the run, and encodes the answer."""

    def __init__(self, run: Run) -> None:
        self._lifecycle = run.lifecycle
        self._records = run.records
        # A resumed run may have actors that will rejoin soon. A new run has none.
        self._comes_back = not run.lifecycle.restored.is_set()

    async def IsActive(self, request: pb.ScaledObjectRef, context: Any) -> pb.IsActiveResponse:
        """Whether the run wants actors."""
        return pb.IsActiveResponse(result=self._lifecycle.wants_actors)

    async def StreamIsActive(self, request: pb.ScaledObjectRef, context: Any) -> AsyncIterator[pb.IsActiveResponse]:
        """Answer whether the run wants actors: once now, and again when the run is over.

        Raises UnavailableError when the learner leaves a run that is not over.
        """
        if self._lifecycle.wants_actors:
            yield pb.IsActiveResponse(result=True)
            await self._lifecycle.ended.wait()
            self._lifecycle.require_here()
        yield pb.IsActiveResponse(result=False)
        # KEDA would open an ended stream again and again.
        await asyncio.Event().wait()

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Any) -> pb.GetMetricSpecResponse:
        """The name of the metric, and its target of one per replica."""
        spec = pb.MetricSpec(metricName=_METRIC, targetSize=_TARGET, targetSizeFloat=_TARGET)
        return pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Any) -> pb.GetMetricsResponse:
        """How many actors the run can use, under the metric name of the request.

        Raises UnavailableError while the number is unknown. KEDA and HPA then keep the current number.
        """
        name = bounds.optional_name("metricName", request.metricName)
        value = self._desired_actors() * _TARGET
        metric = pb.MetricValue(metricName=name or _METRIC, metricValue=value, metricValueFloat=value)
        return pb.GetMetricsResponse(metricValues=[metric])

    def _desired_actors(self) -> int:
        lifecycle, scaling = self._lifecycle, self._records.scaling
        lifecycle.require_here()
        if lifecycle.ended.is_set():
            return 0
        if not lifecycle.wants_actors:
            raise UnavailableError("the learner is saving its run and does not know yet whether the run needs actors")
        lifecycle.require_restored()
        if self._comes_back and not scaling.can_tell:
            raise UnavailableError("the learner has not measured yet how many actors its run can use")
        return scaling.desired_actors
