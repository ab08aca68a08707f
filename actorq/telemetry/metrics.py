"""Serves a process's metrics to Prometheus: read when they are scraped, from a registry of the process's own.

Services give families made with the functions here. A family whose value is not known yet is served without a sample,
so that every name is there from the start. docs/metrics.md lists them.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from actorq import __version__
from actorq.errors import UserError
from actorq.telemetry.histogram import Histogram
from actorq.transport.addresses import split_listen_address
from actorq.transport.calls import CallCounts

# An event loop that does not answer in this time hangs; the scrape still gets what needs no loop.
_PATIENCE_S = 5.0

_log = logging.getLogger(__name__)


def gauge(name: str, text: str, value: float | None) -> Metric:
    """A value that rises and falls; no sample when it is None."""
    return labelled_gauge(name, text, (), {} if value is None else {(): value})


def counter(name: str, text: str, value: float | None) -> Metric:
    """A value that only rises; served as `name`_total; no sample when it is None."""
    return labelled_counter(name, text, (), {} if value is None else {(): value})


def labelled_gauge(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float | None]
) -> Metric:
    """A gauge for each combination of label values whose value is known."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for of_labels, value in values.items():
        if value is not None:
            family.add_metric(of_labels, value)
    return family


def labelled_counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
    """A counter for each combination of label values; served as `name`_total."""
    family = CounterMetricFamily(name, text, labels=labels)
    for of_labels, value in values.items():
        family.add_metric(of_labels, value)
    return family


def histogram(name: str, text: str, values: Histogram) -> Metric:
    """A distribution, served with its cumulative buckets, its sum and its count."""
    buckets, total = values.snapshot()
    return HistogramMetricFamily(name, text, buckets=_named(buckets), sum_value=total)


class MetricsServer:
    """Answers scrapes over HTTP, on threads of its own, until it is closed or the process ends.

    address: "HOST:PORT" with the port that was bound.
    """

    def __init__(self, listen: str, collectors: Iterable[Collector]) -> None:
        """Bind and serve; raises UserError when `listen` is no address or cannot be bound."""
        host, port = split_listen_address("--metrics", listen)
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        for collector in collectors:
            registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UserError(
                f"--metrics: cannot listen on {listen} ({error.strerror}); free the port, choose another one, or let "
                "the system choose with port 0"
            ) from None
        self.address = f"{listen.rpartition(':')[0]}:{self._server.server_port}"

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def open_metrics(
    listen: str, calls: CallCounts, collect: Callable[[], Iterable[Metric]], loop: asyncio.AbstractEventLoop
) -> MetricsServer:
    """Serve what `collect` tells on `loop`, how calls ended, and what the process uses."""
    server = MetricsServer(listen, (_OnLoop(collect, loop), _Calls(calls)))
    _log.info("metrics on http://%s/metrics", server.address)
    return server


class _OnLoop(Collector):
    """Asks on the event loop, where services live, for a scrape that came on another thread."""

    def __init__(self, collect: Callable[[], Iterable[Metric]], loop: asyncio.AbstractEventLoop) -> None:
        self._collect = collect
        self._loop = loop

    def collect(self) -> Iterable[Metric]:
        answer: Future[list[Metric]] = Future()

        def ask() -> None:
            try:
                answer.set_result(list(self._collect()))
            except Exception as error:
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(ask)
        except RuntimeError:
            # The loop is closed: the process is about to end.
            return []
        try:
            return answer.result(_PATIENCE_S)
        except TimeoutError:
            _log.warning("metrics: the service has not answered for %.0f s", _PATIENCE_S)
            return []


class _Calls(Collector):
    def __init__(self, calls: CallCounts) -> None:
        self._calls = calls

    def collect(self) -> Iterable[Metric]:
        handled: dict[tuple[str, ...], float] = {}
        errors: dict[tuple[str, ...], float] = {}
        for end, count in self._calls.snapshot().items():
            handled[end.service, end.method, end.code] = count
            if end.streaming:
                failed = 0 if end.code == "OK" else count
                errors[end.service, end.method] = errors.get((end.service, end.method), 0) + failed
        yield labelled_gauge("actorq_info", "Always 1; tells the version.", ("version",), {(__version__,): 1})
        yield labelled_counter(
            "actorq_grpc_handled", "Calls that have ended.", ("grpc_service", "grpc_method", "grpc_code"), handled
        )
        yield labelled_counter(
            "actorq_stream_errors", "Streams that ended otherwise than OK.", ("grpc_service", "grpc_method"), errors
        )


def _named(buckets: list[tuple[float, int]]) -> list[tuple[str, int]]:
    return [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in buckets]
