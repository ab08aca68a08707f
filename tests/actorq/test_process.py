"""The life of a service process, tested with a small service in a real process."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from actorq.errors import ActorQError, UserError
from actorq.process import main
from actorq.transport.channels import open_channel
from tests.actorq.small_process import TIMEOUT_S, SmallProcess


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallProcess]:
    small = SmallProcess(tmp_path)
    yield small
    small.close()


def test_a_process_announces_its_address_and_drains_on_sigterm(small: SmallProcess) -> None:
    small.start("--linger").hear("running")
    announced = small.announced()
    assert small.process
    assert announced["pid"] == small.process.pid
    with open_channel(announced["address"]) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        request = health_pb2.HealthCheckRequest(service="small.Service")
        assert check(request, timeout=TIMEOUT_S).status == health_pb2.HealthCheckResponse.SERVING
        small.signal(signal.SIGTERM)
        small.hear("draining")
        small.read_log("SIGTERM", "20 s")
        assert check(request, timeout=TIMEOUT_S).status == health_pb2.HealthCheckResponse.NOT_SERVING
        small.signal(signal.SIGUSR1)
        assert small.end()[0] == 0


def test_http_probes_report_a_draining_process_as_alive_but_not_ready(small: SmallProcess) -> None:
    small.start("--linger", "--metrics", "127.0.0.1:0").hear("running")
    metrics = small.metrics()
    assert urllib.request.urlopen(f"{metrics}/readyz", timeout=TIMEOUT_S).status == 200
    small.signal(signal.SIGTERM)
    small.hear("draining")
    small.read_log("SIGTERM", "20 s")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(f"{metrics}/readyz", timeout=TIMEOUT_S)
    assert urllib.request.urlopen(f"{metrics}/healthz", timeout=TIMEOUT_S).status == 200
    small.signal(signal.SIGUSR1)
    assert small.end()[0] == 0


def test_every_line_of_a_json_log_is_an_object_with_the_run_and_the_process(small: SmallProcess) -> None:
    small.start("--telemetry.log-format", "json", "--transport.run", "mine").hear("running")
    small.signal(signal.SIGTERM)
    code, lines = small.end()
    assert code == 0
    objects = [json.loads(line) for line in lines]
    assert {(each["name"], each["run"], each["level"]) for each in objects} == {("small", "mine", "INFO")}
    assert "SIGTERM" in objects[-1]["message"]


def test_an_interrupt_from_the_keyboard_drains_as_well_and_the_services_exit_code_counts(small: SmallProcess) -> None:
    small.start("--code", "3").hear("running")
    small.signal(signal.SIGINT)
    small.hear("draining")
    assert small.end()[0] == 3


def test_a_second_signal_ends_the_process_at_once(small: SmallProcess) -> None:
    small.start("--linger").hear("running")
    small.signal(signal.SIGTERM)
    small.hear("draining")
    small.signal(signal.SIGTERM)
    code, lines = small.end()
    assert code == 1
    assert "SIGTERM" in lines[-1]
    assert "at once" in lines[-1]


def test_a_process_that_does_not_drain_in_time_is_ended(small: SmallProcess) -> None:
    small.start("--linger", "--transport.drain-s", "0.05").hear("running")
    small.signal(signal.SIGTERM)
    assert small.end()[0] == 1


def test_a_process_whose_thread_hangs_after_the_service_has_ended_is_ended(small: SmallProcess) -> None:
    small.start("--hanging-thread", "--transport.drain-s", "0.05").hear("running")
    small.signal(signal.SIGUSR1)
    assert small.end()[0] == 1


def test_a_signal_after_the_service_has_ended_does_not_change_its_exit_code(small: SmallProcess) -> None:
    small.start("--code", "3", "--slow-end").hear("running")
    small.signal(signal.SIGUSR1)
    small.hear("the loop is closed")
    for number in (signal.SIGTERM, signal.SIGINT):
        small.signal(number)
    small.say("go on")
    assert small.end()[0] == 3


def test_a_process_drains_when_its_parent_is_gone(small: SmallProcess) -> None:
    small.start("--lifeline").hear("running")
    small.lose_parent()
    small.hear("draining")
    assert small.end()[0] == 0


def test_a_process_drains_when_its_parent_is_killed_and_has_not_read_that_it_serves(small: SmallProcess) -> None:
    parents_end, lifeline = socket.socketpair()
    with parents_end, lifeline:
        small.start("--lifeline", lifeline=lifeline.fileno()).hear("running")
    small.hear("draining")
    assert small.end()[0] == 0


def test_the_first_signal_after_the_parents_end_does_not_cut_the_drain_short(small: SmallProcess) -> None:
    small.start("--lifeline", "--linger").hear("running")
    small.lose_parent()
    small.hear("draining")
    small.hear("alone")
    small.signal(signal.SIGTERM)
    small.read_log("SIGTERM", "continues")
    small.signal(signal.SIGUSR1)
    assert small.end()[0] == 0


def test_a_service_is_alive_before_it_is_ready(small: SmallProcess) -> None:
    small.start("--unready", "--metrics", "127.0.0.1:0").hear("running")
    metrics = small.metrics()
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(f"{metrics}/readyz", timeout=TIMEOUT_S)
    assert urllib.request.urlopen(f"{metrics}/healthz", timeout=TIMEOUT_S).status == 200
    with open_channel(small.announced()["address"]) as channel:
        health, status = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckResponse
        watch = health.Watch(health_pb2.HealthCheckRequest(service="small.Service"), timeout=TIMEOUT_S)
        assert next(watch).status == status.NOT_SERVING
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S).status == status.SERVING
        small.signal(signal.SIGUSR2)
        assert next(watch).status == status.SERVING
        assert urllib.request.urlopen(f"{metrics}/readyz", timeout=TIMEOUT_S).status == 200
        watch.cancel()
    small.signal(signal.SIGTERM)
    assert small.end()[0] == 0


def test_probes_report_a_service_without_progress_as_not_alive(small: SmallProcess) -> None:
    small.start("--hanging", "--metrics", "127.0.0.1:0").hear("running")
    metrics, status = small.metrics(), health_pb2.HealthCheckResponse
    with open_channel(small.announced()["address"]) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert any(answer.status == status.NOT_SERVING for answer in watch)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{metrics}/healthz", timeout=TIMEOUT_S)
        small.signal(signal.SIGUSR2)
        assert next(watch).status == status.SERVING
        assert urllib.request.urlopen(f"{metrics}/healthz", timeout=TIMEOUT_S).status == 200
        watch.cancel()
    small.signal(signal.SIGTERM)
    code, lines = small.end()
    assert code == 0
    assert any(line.endswith(" SERVING") for line in lines)


def test_a_parent_that_goes_after_its_signal_does_not_cut_the_drain_short(small: SmallProcess) -> None:
    small.start("--lifeline", "--linger").hear("running")
    small.signal(signal.SIGTERM)
    small.hear("draining")
    small.lose_parent()
    small.read_log("parent", "continues")
    small.hear("alone")
    small.signal(signal.SIGUSR1)
    assert small.end()[0] == 0


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["--seed", "-1"], "'seed'.* 0 .*'-1'"),
        (["--fail", "register"], "--fail: register"),
        (["--transport.certificates", "/absent"], "certificates.*/absent/ca.crt.*No such file"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(small: SmallProcess, arguments: list[str], fact: str) -> None:
    code, (line,) = small.start(*arguments).end()
    assert code == 2
    assert re.match(f"error: .*{fact}", line)


def test_an_announcement_that_cannot_be_written_is_the_users_mistake(small: SmallProcess, tmp_path: Path) -> None:
    path = tmp_path / "absent" / "small.json"
    code, lines = small.start("--announce", str(path)).end()
    assert code == 2
    assert re.match(f"error: --announce.*{path}.*No such file", lines[-1])


def test_a_service_runs_without_an_announcement_on_a_full_disk(small: SmallProcess, tmp_path: Path) -> None:
    (tmp_path / "announced" / ".small.json.partial").symlink_to("/dev/full")
    small.start().hear("running")
    small.signal(signal.SIGTERM)
    code, lines = small.end()
    assert code == 0
    assert any("small.json" in line and "No space left" in line for line in lines)


def test_failed_work_reports_one_line_and_exit_code_1(small: SmallProcess) -> None:
    code, lines = small.start("--fail", "run").end()
    assert code == 1
    assert lines[-1] == "error: the work failed"


def raising(error: BaseException) -> Callable[[], int]:
    def run() -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (UserError("--seed: no"), 2, "error: --seed: no\n"),
        (ActorQError("broken"), 1, "error: broken\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_the_end_of_a_process_has_a_code_and_at_most_a_line(
    error: BaseException, code: int, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(raising(error)) == code
    assert capsys.readouterr().err == shown


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        main(raising(ZeroDivisionError()))


def test_a_process_that_has_closed_everything_leaves_at_once_and_loses_no_output() -> None:
    body = "import atexit; from actorq.process import leave; atexit.register(print, 'late'); print('said'); leave(3)"
    ended = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "said\n", "")
