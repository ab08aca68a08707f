"""Prometheus metrics over HTTP, while calls begin and end."""

import asyncio
import itertools
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from actorq import __version__
from actorq.client import LearnerClient
from actorq.errors import NotFoundError, UserError
from actorq.telemetry.histogram import Histogram
from actorq.telemetry.http import HttpServer
from actorq.telemetry.metrics import counter, gauge, histogram, labelled_gauge, open_metrics
from actorq.transport.calls import CallCounts
from tests.actorq.transport.staged_servicer import TIMEOUT_S, StagedLearner, serving


def scrape(address: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by its name and labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as response:
        text = response.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def probe(server: HttpServer, path: str) -> int:
    """The status code of the answer."""
    try:
        with urllib.request.urlopen(f"http://{server.address}{path}", timeout=20) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def answer_ok(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [])
    return [b"ok"]


def connected(server: HttpServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT_S)


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def open_server(
    families: list[Metric],
    calls: CallCounts | None = None,
    serving: Callable[[], bool] = lambda: True,
    listen: str = "127.0.0.1:0",
    alive: Callable[[], bool] = lambda: True,
) -> Iterator[HttpServer]:
    with running_loop() as loop:
        server = open_metrics(listen, calls or CallCounts(), lambda: families, alive, serving, loop)
        try:
            yield server
        finally:
            server.close()


def test_a_scrape_has_metrics_of_the_service_and_of_its_process() -> None:
    families = [
        gauge("actorq_height_meters", "How high.", 1.5),
        counter("actorq_falls", "How often.", 3),
        gauge("actorq_depth_meters", "Not known yet.", None),
        labelled_gauge("actorq_version", "Which.", ("scheme",), {("int8",): 7, ("fp32",): None}),
    ]
    with open_server(families) as server:
        samples = scrape(server.address)
    assert samples["actorq_height_meters", ()] == 1.5
    assert samples["actorq_falls_total", ()] == 3
    assert ("actorq_depth_meters", ()) not in samples
    assert samples["actorq_version", (("scheme", "int8"),)] == 7
    assert ("actorq_version", (("scheme", "fp32"),)) not in samples
    assert samples["actorq_info", (("version", __version__),)] == 1
    assert samples["process_resident_memory_bytes", ()] > 1e6
    assert samples["process_cpu_seconds_total", ()] > 0


def test_two_servers_in_one_process_share_nothing() -> None:
    with open_server([gauge("actorq_a", "A.", 1)]) as one, open_server([gauge("actorq_a", "A.", 2)]) as two:
        assert scrape(one.address)["actorq_a", ()] == 1
        assert scrape(two.address)["actorq_a", ()] == 2


def test_a_histogram_counts_values_up_to_each_bound() -> None:
    values = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        values.observe(value)
    with open_server([histogram("actorq_wait_seconds", "How long.", values)]) as server:
        samples = scrape(server.address)
    buckets = [samples["actorq_wait_seconds_bucket", (("le", bound),)] for bound in ("0.1", "1.0", "+Inf")]
    assert buckets == [2, 3, 4]
    assert samples["actorq_wait_seconds_count", ()] == 4
    assert samples["actorq_wait_seconds_sum", ()] == pytest.approx(7.65)


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def refuse() -> None:
    raise NotFoundError("no run")


def test_calls_are_counted_by_how_they_ended() -> None:
    calls = CallCounts()
    with serving(StagedLearner(), calls=calls) as stage, LearnerClient(stage.address) as client:
        client.status()
        client.status()
        assert len(list(client.watch())) == 1
    with serving(StagedLearner(refuse), calls=calls) as stage, LearnerClient(stage.address) as client:
        with pytest.raises(NotFoundError):
            client.status()
        with pytest.raises(NotFoundError):
            list(client.watch())
    hanging = StagedLearner(wait_for_ever)
    with serving(hanging, calls=calls) as stage, LearnerClient(stage.address) as client:
        watched = client.watch()
        next(watched)
        watched.close()  # type: ignore[attr-defined]
        del watched
        assert hanging.cancelled.wait(TIMEOUT_S)

    with open_server([], calls) as server:
        samples = scrape(server.address)
    service = ("grpc_service", "actorq.v1.LearnerService")
    handled = {
        (dict(labels)["grpc_method"], dict(labels)["grpc_code"]): value
        for (name, labels), value in samples.items()
        if name == "actorq_grpc_handled_total"
    }
    assert handled == {
        ("GetStatus", "OK"): 2,
        ("GetStatus", "NOT_FOUND"): 1,
        ("WatchStatus", "OK"): 1,
        ("WatchStatus", "NOT_FOUND"): 1,
        ("WatchStatus", "CANCELLED"): 1,
    }
    assert samples["actorq_stream_errors_total", (("grpc_method", "WatchStatus"), service)] == 2


def test_a_service_with_a_hanging_loop_still_serves_process_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck, closed = asyncio.new_event_loop(), asyncio.new_event_loop()
    closed.close()
    for loop in (stuck, closed):
        families = [gauge("actorq_a", "A.", 1)]
        server = open_metrics("127.0.0.1:0", CallCounts(), families.copy, lambda: True, lambda: True, loop, 0.05)
        samples = scrape(server.address)
        assert ("actorq_a", ()) not in samples
        assert ("process_cpu_seconds_total", ()) in samples
        assert probe(server, "/healthz") == probe(server, "/readyz") == 503
        server.close()
    stuck.close()
    assert "not answered" in caplog.text


def test_probes_report_liveness_and_readiness() -> None:
    alive, serving = [True], [False]
    with open_server([], serving=lambda: serving[0], alive=lambda: alive[0]) as server:
        assert (probe(server, "/healthz"), probe(server, "/readyz")) == (200, 503)
        serving[0] = True
        assert (probe(server, "/healthz"), probe(server, "/readyz")) == (200, 200)
        alive[0] = False
        assert (probe(server, "/healthz"), probe(server, "/readyz")) == (503, 200)


def test_readiness_over_http_is_health_over_grpc() -> None:
    with (
        serving(StagedLearner()) as stage,
        open_server([], serving=lambda: stage.server.serving) as server,
    ):
        assert probe(server, "/readyz") == 200
        stage.perform(stage.server.say_not_serving())
        assert probe(server, "/readyz") == 503


def test_a_silent_or_disconnecting_client_leaves_no_log_line(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with closing(HttpServer("--metrics", "127.0.0.1:0", answer_ok, patience_s=0.05)) as server:
        with connected(server) as silent:
            # The server closes the connection after its patience.
            assert silent.recv(1) == b""
        with connected(server) as leaving:
            # This resets the connection.
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert probe(server, "/healthz") == 200
    assert (capfd.readouterr().err, caplog.messages) == ("", [])


def test_a_client_that_sends_its_request_too_slowly_is_cut_off() -> None:
    with closing(HttpServer("--metrics", "127.0.0.1:0", answer_ok, patience_s=0.5)) as server:
        with connected(server) as slow:
            slow.settimeout(0.05)
            received: bytes | None = None
            while received is None:
                try:
                    received = slow.recv(1)
                except TimeoutError:
                    slow.send(b"G")
        assert received == b""


def test_idle_connections_leave_room_for_probes() -> None:
    with closing(HttpServer("--metrics", "127.0.0.1:0", answer_ok, patience_s=1e6)) as server, ExitStack() as opened:
        idle = [opened.enter_context(connected(server)) for _ in range(40)]
        assert probe(server, "/healthz") == 200
        # The oldest connections were closed for the others and for the probe.
        assert [each.recv(1) for each in idle[:9]] == [b""] * 9
        assert len(server._server._open) <= 32


def test_the_metrics_server_listens_on_ipv6_too() -> None:
    with open_server([], listen="[::1]:0") as server:
        assert server.address.startswith("[::1]:")
        assert probe(server, "/healthz") == 200


def test_a_used_port_is_the_users_mistake() -> None:
    with open_server([]) as server, pytest.raises(UserError, match=f"--metrics.*{server.address}.*in use"):
        HttpServer("--metrics", server.address, lambda environ, start_response: [])


def test_a_malformed_address_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match=r"--metrics.*HOST:PORT.*9090"):
        HttpServer("--metrics", "9090", lambda environ, start_response: [])


def test_expensive_scrapes_get_the_last_metrics() -> None:
    collected, scrapes = itertools.count(1), 0

    def collect() -> list[Metric]:
        time.sleep(0.3)
        return [gauge("actorq_collected", "How often.", next(collected))]

    with running_loop() as loop:
        server = open_metrics("127.0.0.1:0", CallCounts(), collect, lambda: True, lambda: True, loop)
        with closing(server):
            while scrape(server.address)["actorq_collected", ()] == scrapes + 1:
                scrapes += 1
    assert scrapes > 1
