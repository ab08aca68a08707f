"""Services as forks of a server: the launcher adopts them, and starts them itself where it cannot."""

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from actorq.local.child import Child
from actorq.local.events import ChildExited, ChildReady
from actorq.local.forkserver import ForkServers, _Server, child_environment, fork_servers
from actorq.telemetry.process_stats import FORK_SERVER

TIMEOUT_S = 60.0
QUANTIZER = (sys.executable, "-m", "quantizer_service", "--name", "quantizer", "--lifeline")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives a process to another parent")


@pytest.fixture
def servers() -> Iterator[ForkServers]:
    with fork_servers() as servers:
        assert servers is not None
        yield servers


def _quantizer(folder: Path, servers: ForkServers, events: "queue.SimpleQueue[ChildExited | ChildReady]") -> Child:
    command = (*QUANTIZER, "--store", str(folder / "store"))
    return Child("quantizer", command, folder / "log", events.put, (), servers, events.put)


def test_a_forked_service_is_a_child_of_the_launcher_in_a_session_of_its_own(
    tmp_path: Path, servers: ForkServers
) -> None:
    events: queue.SimpleQueue[ChildExited | ChildReady] = queue.SimpleQueue()
    child = _quantizer(tmp_path, servers, events)
    try:
        assert events.get(timeout=TIMEOUT_S) == ChildReady("quantizer", child.pid), (tmp_path / "log").read_text()
        process = psutil.Process(child.pid)
        assert process.ppid() == os.getpid()
        assert os.getsid(child.pid) == child.pid
        assert process.name() == "quantizer"
        assert servers.others._process.pid in {each.pid for each in psutil.Process().children()}
        assert psutil.Process(servers.others._process.pid).name() == FORK_SERVER
        child.terminate()
        assert events.get(timeout=TIMEOUT_S) == ChildExited("quantizer", child.pid, 0)
        assert "serving on" in (tmp_path / "log").read_text()
    finally:
        child.kill()


def test_a_forked_service_drains_when_its_lifeline_ends(tmp_path: Path, servers: ForkServers) -> None:
    events: queue.SimpleQueue[ChildExited | ChildReady] = queue.SimpleQueue()
    child = _quantizer(tmp_path, servers, events)
    try:
        assert events.get(timeout=TIMEOUT_S) == ChildReady("quantizer", child.pid)
        child.release()
        assert events.get(timeout=TIMEOUT_S) == ChildExited("quantizer", child.pid, 0)
    finally:
        child.kill()


def test_a_killed_fork_is_told_as_killed(tmp_path: Path, servers: ForkServers) -> None:
    events: queue.SimpleQueue[ChildExited | ChildReady] = queue.SimpleQueue()
    child = _quantizer(tmp_path, servers, events)
    assert events.get(timeout=TIMEOUT_S) == ChildReady("quantizer", child.pid)
    os.kill(child.pid, signal.SIGKILL)
    assert events.get(timeout=TIMEOUT_S) == ChildExited("quantizer", child.pid, -signal.SIGKILL)


def test_without_its_server_a_service_is_started_as_usual(tmp_path: Path, servers: ForkServers) -> None:
    servers.others._process.kill()
    servers.others._process.wait()
    events: queue.SimpleQueue[ChildExited | ChildReady] = queue.SimpleQueue()
    child = _quantizer(tmp_path, servers, events)
    try:
        assert isinstance(child._process, subprocess.Popen)
        assert events.get(timeout=TIMEOUT_S) == ChildReady("quantizer", child.pid)
    finally:
        child.kill()


def test_a_service_outlives_its_server(tmp_path: Path) -> None:
    events: queue.SimpleQueue[ChildExited | ChildReady] = queue.SimpleQueue()
    with fork_servers() as servers:
        assert servers is not None
        child = _quantizer(tmp_path, servers, events)
        assert events.get(timeout=TIMEOUT_S) == ChildReady("quantizer", child.pid)
    try:
        assert psutil.Process(child.pid).is_running()
        child.terminate()
        assert events.get(timeout=TIMEOUT_S) == ChildExited("quantizer", child.pid, 0)
    finally:
        child.kill()


def test_a_server_of_one_command_becomes_it_and_forks_no_other(tmp_path: Path) -> None:
    server = _Server((), once=True)
    with (tmp_path / "output").open("w+") as output, open(os.devnull) as nothing:
        streams = (nothing.fileno(), output.fileno(), output.fileno())
        arguments = ("CartPole-v1",)
        process = server.start("actor_service.environments", arguments, streams)
        assert isinstance(process, subprocess.Popen)
        assert server.start("actor_service.environments", arguments, streams) is None
        assert process.wait(TIMEOUT_S) == 0
        output.seek(0)
        assert '"environment_id": "CartPole-v1"' in output.read()


def test_other_commands_are_not_forked(servers: ForkServers) -> None:
    assert servers.start((sys.executable, "-c", "pass"), (0, 1, 2)) is None
    assert servers.start((sys.executable, "-m", "benchmarks.speedup.torch_actor"), (0, 1, 2)) is None


def test_servers_end_with_their_launcher() -> None:
    script = (
        "import os, signal\nfrom actorq.local.forkserver import fork_servers\nwith fork_servers() as servers:\n"
        "    print(servers.learner._process.pid, servers.others._process.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    for pid in map(int, told.stdout.split()):
        try:
            psutil.Process(pid).wait(TIMEOUT_S)
        except psutil.NoSuchProcess:
            continue


def test_settings_in_the_environment_do_not_reach_services() -> None:
    assert child_environment({"ACTORQ_SEED": "3", "PATH": "/bin"}) == {"PATH": "/bin"}
