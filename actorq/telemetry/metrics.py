"""Serves a process's metrics to Prometheus from a separate registry.

Metrics are collected at each scrape. If scrapes use too much of the service's time, they get the previous metrics.
The same server answers health probes of clients without a certificate.

Services create metric families with the functions here. A family without a known value is served without a sample, so
every name exists from the start. The documentation's reference is generated from these calls.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from actorq import __version__
from actorq.domain.policy import Variant
from actorq.errors import UnavailableError
from actorq.telemetry.histogram import Histogram
from actorq.telemetry.http import HttpServer
from actorq.telemetry.rationed import Rationed
from actorq.transport.calls import CallCounts

_log = logging.getLogger(__name__)

T = TypeVar("T")


def gauge(name: str, text: str, value: float | None) -> Metric:
    """A value that may rise and fall; no sample when it is None."""
    return labelled_gauge(name, text, (), {} if value is None else {(): value})


def counter(name: str, text: str, value: float | None) -> Metric:
    """A value that only rises, served as `name`_total; no sample when it is None."""
    return labelled_counter(name, text, (), {} if value is None else {(): value})


def labelled_gauge(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float | None]
) -> Metric:
    """A gauge for each combination of label values with a known value."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for of_labels, value in values.items():
        if value is not None:
            family.add_metric(of_labels, value)
    return family


def labelled_counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
    """A counter for each combination of label values, served as `name`_total."""
    family = CounterMetricFamily(name, text, labels=labels)
    for of_labels, value in values.items():
        family.add_metric(of_labels, value)
    return family


def variant_gauge(name: str, text: str, values: Mapping[Variant, float | None]) -> Metric:
    """A gauge for each variant with a known value."""
    return labelled_gauge(name, text, Variant._fields, {tuple(variant): value for variant, value in values.items()})


def variant_counter(name: str, text: str, values: Mapping[Variant, float]) -> Metric:
    """A counter for each variant, served as `name`_total."""
    return labelled_counter(name, text, Variant._fields, {tuple(variant): value for variant, value in values.items()})


def histogram(name: str, text: str, values: Histogram | None) -> Metric:
    """A distribution, served as cumulative buckets, sum and count; no sample when it is None."""
    if values is None:
        return HistogramMetricFamily(name, text)
    buckets, total = values.snapshot()
    named = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in buckets]
    return HistogramMetricFamily(name, text, buckets=named, sum_value=total)


def open_metrics(
    listen: str,
    calls: CallCounts,
    collect: Callable[[], Iterable[Metric]],
    alive: Callable[[], bool],
    serving: Callable[[], bool],
    loop: asyncio.AbstractEventLoop,
    patience_s: float = 5.0,
) -> HttpServer:
    """Serve metrics from `collect` (called on `loop`), of ended calls, and of the process's resources.

    Also answers probes. /healthz is 200 while `alive` (called on `loop`) is true, and /readyz is 200 while `serving` is
    true. Otherwise both are 503.

    patience_s: a `loop` that does not answer within this time hangs. Scrapes then get only metrics that need no loop.

    Raises UserError when `listen` is malformed or cannot be bound.
    """
    on_loop = _OnLoop(loop, patience_s)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_OfService(collect, on_loop))
    registry.register(_Calls(calls))
    probes = {"/healthz": lambda: on_loop.holds(alive), "/readyz": lambda: on_loop.holds(serving)}
    server = HttpServer("--metrics", listen, _application(make_wsgi_app(registry), probes))
    _log.info("metrics on http://%s/metrics", server.address)
    return server


def _application(
    metrics: Callable[..., Iterable[bytes]], probes: Mapping[str, Callable[[], bool]]
) -> Callable[..., Iterable[bytes]]:
    """Answers probes at their paths, and metrics at all other paths."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        probe = probes.get(environ["PATH_INFO"])
        if probe is None:
            return metrics(environ, start_response)
        holds = probe()
        headers = [("Content-Type", "text/plain; charset=utf-8")]
        start_response("200 OK" if holds else "503 Service Unavailable", headers)
        return [b"yes\n" if holds else b"no\n"]

    return answer


class _OnLoop:
    """Calls functions on the services' event loop for requests on other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patience_s: float) -> None:
        self._loop = loop
        self._patience_s = patience_s

    def ask(self, question: Callable[[], T]) -> T:
        """The result of `question`. Raises UnavailableError when the loop hangs or is closed."""
        answer: Future[T] = Future()

        def ask() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(ask)
        except RuntimeError:
            raise UnavailableError("the process is about to end") from None
        try:
            return answer.result(self._patience_s)
        except TimeoutError:
            raise UnavailableError(f"the service has not answered for {self._patience_s:.0f} s") from None

    def holds(self, condition: Callable[[], bool]) -> bool:
        """Whether `condition` is true and the loop answers in time."""
        try:
            return self.ask(condition)
        except UnavailableError:
            return False


class _OfService(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]], on_loop: _OnLoop) -> None:
        # Rationed, so that frequent scrapes leave the loop time for the service.
        self._metrics = Rationed(lambda: list(collect()))
        self._on_loop = on_loop

    def collect(self) -> Iterable[Metric]:
        try:
            return self._on_loop.ask(self._metrics.get)
        except UnavailableError as error:
            _log.warning("metrics: %s", error)
            return []


class _Calls(Collector):
    def __init__(self, calls: CallCounts) -> None:
        self._calls = calls

    def collect(self) -> Iterable[Metric]:
        yield counter(
            "actorq_flooding_connections_closed",
            "Connections closed because they sent far more bytes than messages while memory grew.",
            self._calls.closed_connections,
        )
        handled: dict[tuple[str, ...], float] = {}
        errors: dict[tuple[str, ...], float] = {}
        for end, count in self._calls.snapshot().items():
            handled[end.service, end.method, end.code] = count
            if end.streaming:
                failed = 0 if end.code == "OK" else count
                errors[end.service, end.method] = errors.get((end.service, end.method), 0) + failed
        yield labelled_gauge("actorq_info", "Always 1; the label has the version.", ("version",), {(__version__,): 1})
        yield labelled_counter(
            "actorq_grpc_handled",
            "Ended calls of this project's services; CANCELLED when the client disconnected.",
            ("grpc_service", "grpc_method", "grpc_code"),
            handled,
        )
        yield labelled_counter(
            "actorq_stream_errors",
            "Streams that ended with a code other than OK.",
            ("grpc_service", "grpc_method"),
            errors,
        )
