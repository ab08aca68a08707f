"""Services as forks of a server. The launcher adopts the forks, and starts services itself if it cannot."""

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from actorq.telemetry.process_stats import FORK_SERVER
from actorq_apps.local.child import Child
from actorq_apps.local.events import ChildExited, ChildReady
from actorq_apps.local.forkserver import (
    _FORKED,
    ForkedProcess,
    ForkServers,
    _Server,
    child_environment,
    fork_servers,
)

TIMEOUT_S = 60.0
FORKED = "quantizer_service"
QUANTIZER = (sys.executable, "-m", FORKED, "--name", "quantizer", "--lifeline")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives a process to another parent")


@pytest.fixture
def servers() -> Iterator[ForkServers]:
    with fork_servers() as servers:
        assert servers is not None
        yield servers


def _quantizer(folder: Path, servers: ForkServers, events: "queue.SimpleQueue[ChildExited | ChildReady]") -> Child:
    command = (*QUANTIZER, "--store", str(folder / "store"))
    return Child(
        "quantizer",
        command,
        folder / "log",
        events.put,
        (),
        servers,
        lambda child, line: events.put(ChildReady(child.name, child.pid)),
    )


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
        assert servers.by_module[FORKED]._process.pid in {each.pid for each in psutil.Process().children()}
        assert psutil.Process(servers.by_module[FORKED]._process.pid).name() == FORK_SERVER
        child.terminate()
        assert events.get(timeout=TIMEOUT_S) == ChildExited("quantizer", child.pid, 0)
        assert "serving on" in (tmp_path / "log").read_text()
    finally:
        child.kill()


def test_the_servers_imports_do_not_appear_in_logs_of_services(tmp_path: Path, servers: ForkServers) -> None:
    events: queue.SimpleQueue[ChildExited | ChildReady] = queue.SimpleQueue()
    for module in _FORKED:
        log = tmp_path / module
        child = Child(module, (sys.executable, "-m", module, "--help"), log, events.put, (), servers)
        assert events.get(timeout=TIMEOUT_S) == ChildExited(module, child.pid, 0), log.read_text()
        assert log.read_text().startswith("usage: "), log.read_text()


def test_a_forked_service_drains_when_its_lifeline_ends(tmp_path: Path, servers: ForkServers) -> None:
    events: queue.SimpleQueue[ChildExited | ChildReady] = queue.SimpleQueue()
    child = _quantizer(tmp_path, servers, events)
    try:
        assert events.get(timeout=TIMEOUT_S) == ChildReady("quantizer", child.pid)
        child.release()
        assert events.get(timeout=TIMEOUT_S) == ChildExited("quantizer", child.pid, 0)
    finally:
        child.kill()


def test_reports_a_killed_fork_as_killed(tmp_path: Path, servers: ForkServers) -> None:
    events: queue.SimpleQueue[ChildExited | ChildReady] = queue.SimpleQueue()
    child = _quantizer(tmp_path, servers, events)
    assert events.get(timeout=TIMEOUT_S) == ChildReady("quantizer", child.pid)
    os.kill(child.pid, signal.SIGKILL)
    assert events.get(timeout=TIMEOUT_S) == ChildExited("quantizer", child.pid, -signal.SIGKILL)


def test_without_its_server_a_service_is_started_as_usual(tmp_path: Path, servers: ForkServers) -> None:
    servers.by_module[FORKED]._process.kill()
    servers.by_module[FORKED]._process.wait()
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
    server = _Server(("actor_service.environments.__main__",), once=True)
    with (tmp_path / "output").open("w+") as output, open(os.devnull) as nothing:
        streams = (nothing.fileno(), output.fileno(), output.fileno())
        arguments = ("CartPole-v1",)
        process = server.start("actor_service.environments", arguments, streams)
        assert isinstance(process, subprocess.Popen)
        assert server.start("actor_service.environments", arguments, streams) is None
        assert process.wait(TIMEOUT_S) == 0
        output.seek(0)
        assert '"environment_id": "CartPole-v1"' in output.read()


def test_a_server_forks_commands_before_its_last_and_ends_with_it(tmp_path: Path, servers: ForkServers) -> None:
    command = (sys.executable, "-m", "learner_service", "--help")
    with (tmp_path / "output").open("w+") as output, open(os.devnull) as nothing:
        streams = (nothing.fileno(), output.fileno(), output.fileno())
        for _ in range(2):
            forked = servers.forking().start(command, streams)
            assert isinstance(forked, ForkedProcess)
            assert forked.wait() == 0
        server = psutil.Process(servers.by_module["learner_service"]._process.pid)
        last = servers.start(command, streams)
        # The learner's clock begins with its process.
        assert isinstance(last, ForkedProcess)
        assert last.wait() == 0
        assert not server.is_running()
        assert servers.start(command, streams) is None
        output.seek(0)
        assert output.read().count("usage: ") == 3


def test_other_commands_are_not_forked(servers: ForkServers) -> None:
    assert servers.start((sys.executable, "-c", "pass"), (0, 1, 2)) is None
    assert servers.start((sys.executable, "-m", "benchmarks.speedup.torch_actor"), (0, 1, 2)) is None


def test_servers_end_with_their_launcher() -> None:
    script = (
        "import os, signal\nfrom actorq_apps.local.forkserver import fork_servers\nwith fork_servers() as servers:\n"
        "    print(*(server._process.pid for server in servers.by_module.values()), flush=True)\n"
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


# A command that starts a module as its own fork.
FORKING = """
import os, signal, sys
import actorq.client
from actorq_apps.local.forkserver import ForkedProcess, once_forked
os.environ["ACTORQ_SEED"] = "3"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = os.open(os.devnull, os.O_RDONLY)
with once_forked(sys.argv[1:]) as servers:
    process = servers.start((sys.executable, "-m", sys.argv[1], "more"), (0, 1, 2))
    assert isinstance(process, ForkedProcess), process
    print(process.wait())
"""
TELLS = """
import os, signal, sys
settings = [name for name in os.environ if name.startswith("ACTORQ_")]
print(__name__, sys.argv[1:], settings)
print(os.getsid(0) == os.getpid(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
# One is that of the listing.
print(len(os.listdir("/proc/self/fd")) - 1)
sys.exit(3)
"""


def _fork_of_a_command(folder: Path, module: str, text: str) -> tuple[list[str], str]:
    """Standard output and standard error of a module that FORKING starts."""
    (folder / f"{module}.py").write_text(text)
    told = subprocess.run(
        [sys.executable, "-c", FORKING, module],
        env=os.environ | {"PYTHONPATH": f"{folder}:{Path(__file__).parents[3]}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    return told.stdout.splitlines(), told.stderr


def test_a_command_that_has_the_modules_forks_itself(tmp_path: Path) -> None:
    lines, errors = _fork_of_a_command(tmp_path, "tells", TELLS)
    assert lines == ["__main__ ['more'] []", "True True", "3", "3"], errors


def test_reports_a_fault_in_a_fork_of_the_command(tmp_path: Path) -> None:
    lines, errors = _fork_of_a_command(tmp_path, "fails", "raise RuntimeError('broken')")
    assert lines == ["1"]
    assert errors.splitlines()[-1] == "RuntimeError: broken"


def test_a_process_with_threads_is_not_forked() -> None:
    script = (
        "import json, subprocess, threading\nfrom actorq_apps.local.forkserver import _Server\n"
        "go = threading.Event()\nother = threading.Thread(target=go.wait)\nother.start()\n"
        "server = _Server(('json',), once=True)\nprint(isinstance(server._process, subprocess.Popen))\n"
        "server.close()\ngo.set()"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    assert told.stdout == "True\n"
