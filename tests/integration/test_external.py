"""Simulators in processes of their own play through the actor of a whole run."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorq.client import ActorClient
from actorq.domain.status import RunStatus
from actorq.errors import ActorQError, ConflictError, UnavailableError
from actorq.statefiles.documents import write_twice
from tests.actor_service.external.clients import Client
from tests.actor_service.external.simulators import SPEC, opening, step
from tests.integration.training_run import TrainingRun, actorq

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "simulator"
NAMES = ("access", "tensor", "trajectory", "external")
# What a client in Python needs besides the stubs.
PACKAGES = ("grpc", "google", "typing_extensions.py")
PATIENCE_S = 200
ENDLESS = ("--target-return", "501", "--max-environment-steps", "10000000")

Start = Callable[[str, int], "subprocess.Popen[str]"]


def free_port() -> int:
    """A port that is free now. The next one is probably free too."""
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def training(directory: Path, port: int, *flags: str) -> TrainingRun:
    """A run whose environment are simulators."""
    external = ("--environment", "external/cart-pole", "--external.listen", f"127.0.0.1:{port}")
    return TrainingRun.start(directory, *external, "--like", "CartPole-v1", "--no-energy.enabled", *flags)


@pytest.fixture
def python_client(tmp_path: Path) -> Iterator[Start]:
    """Starts the client in Python, in an interpreter that has no package but grpcio: ActorQ is not there."""
    site = tmp_path / "site"
    site.mkdir()
    for name in PACKAGES:
        installed = next(Path(path) / name for path in sys.path if (Path(path) / name).exists())
        (site / name).symlink_to(installed)
    stubs = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'protos'}", f"--python_out={site}"]
    protos = [str(ROOT / "protos" / "actorq" / "v1" / f"{name}.proto") for name in NAMES]
    subprocess.run([*stubs, f"--grpc_python_out={site}", *protos], check=True)
    shutil.copy(EXAMPLE / "cart_pole.py", tmp_path)
    yield from _starting([sys.executable, "-S", str(tmp_path / "cart_pole.py")], {"PYTHONPATH": str(site)})


@pytest.fixture
def cpp_client(tmp_path: Path) -> Iterator[Start]:
    """Starts the client in C++, once it is compiled."""
    tools = all(shutil.which(name) for name in ("make", "g++", "pkg-config", "protoc", "grpc_cpp_plugin"))
    if not tools or subprocess.run(["pkg-config", "--exists", "grpc++"], check=False).returncode:
        pytest.skip("needs g++, pkg-config, libgrpc++-dev and protobuf-compiler-grpc")
    made = subprocess.run(
        ["make", "-C", str(EXAMPLE), "cart_pole", f"BUILD={tmp_path}", "CXXFLAGS=-O0 -std=c++17 -Wall -Wextra -Werror"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    yield from _starting([str(tmp_path / "cart_pole")], {})


@pytest.fixture
def node_client() -> Iterator[Start]:
    """Starts the client in JavaScript."""
    node = shutil.which("node")
    script = "require('@grpc/grpc-js'); require('@grpc/proto-loader')"
    if node is None or subprocess.run([node, "-e", script], cwd=EXAMPLE, capture_output=True, check=False).returncode:
        pytest.skip("needs node, and npm install in examples/simulator")
    yield from _starting([node, str(EXAMPLE / "cart_pole.js")], {})


def _starting(command: list[str], environment: dict[str, str]) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def start(address: str, environments: int) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*command, address, str(environments)],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("language", ["python", "cpp", "node"])
def test_a_simulator_without_actorq_trains_its_own_cart_pole(
    language: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    start: Start = request.getfixturevalue(f"{language}_client")
    port = free_port()
    run = training(tmp_path / "run", port)
    # It connects again until the actor serves.
    simulator = start(f"127.0.0.1:{port}", 8)
    code, output = run.finish()
    assert code == 0, output
    printed, _ = simulator.communicate(timeout=PATIENCE_S)
    assert (simulator.returncode, printed) == (0, "the run is over\n")
    assert f"simulators: connect them to 127.0.0.1:{port}" in output
    summary = run.summary()
    assert summary["state"] == "solved"
    assert summary["evaluation"]["mean_return"] >= 475
    shown = actorq("evaluate", str(run.directory))
    assert shown.returncode == 2
    assert "exists only in simulators that connect to an actor with --external" in shown.stderr


def steps(count: int) -> Callable[[RunStatus], bool]:
    return lambda status: status.environment_steps >= count


@pytest.mark.timeout(PATIENCE_S)
def test_frozen_and_killed_simulators_do_not_stop_the_others(tmp_path: Path, python_client: Start) -> None:
    port = free_port()
    run = training(tmp_path / "run", port, *ENDLESS)
    try:
        simulators = [python_client(f"127.0.0.1:{port}", 1) for _ in range(4)]
        run.until(steps(1_000))
        with ActorClient(f"127.0.0.1:{port}") as actor:
            assert actor.status().activity.startswith("acting for simulators: 4 connected, 4 environments")
            simulators[0].send_signal(signal.SIGSTOP)
            simulators[1].kill()
            before = run.until(steps(0)).environment_steps
            after = run.until(steps(before + 2_000))
            assert "3 connected" in actor.status().activity
        assert after.episodes > 0
        simulators[0].send_signal(signal.SIGCONT)
        run.until(steps(after.environment_steps + 1_000))
        assert [simulators[number].poll() for number in (0, 2, 3)] == [None] * 3
    finally:
        run.signal(signal.SIGTERM)
        run.finish()


def opened(address: str, given: Any = None) -> Client:
    """A stream of a simulator, once the actor serves."""
    while True:
        client = Client(address)
        try:
            client.open(given)
            return client
        except UnavailableError:
            client.kill()


def refusal(client: Client) -> str:
    """The error that ends a stream."""
    with suppress(ActorQError):
        client.send(step())
    error = client.error()
    assert isinstance(error, ConflictError), error
    return str(error)


@pytest.mark.timeout(PATIENCE_S)
def test_the_spaces_of_the_first_simulator_are_those_of_the_run(tmp_path: Path) -> None:
    port = free_port()
    run = training(tmp_path / "run", port, "--actors", "2", *ENDLESS)
    try:
        first = opened(f"127.0.0.1:{port}")
        first.play(step())
        assert "instead of" in refusal(opened(f"127.0.0.1:{port + 1}", opening(sizes=(3,))))
        # The second actor goes on, and accepts a simulator that fits.
        fitting = opened(f"127.0.0.1:{port + 1}")
        assert len(fitting.play(step()).policy_versions) == 1
        first.play(step(np.zeros((1, 4), np.float32), terminated=1))
    finally:
        run.signal(signal.SIGTERM)
        run.finish()


@pytest.mark.timeout(PATIENCE_S)
def test_spaces_that_the_algorithm_does_not_support_are_refused(tmp_path: Path) -> None:
    port = free_port()
    run = training(tmp_path / "run", port, "--algorithm", "sac", *ENDLESS)
    try:
        assert "sac" in refusal(opened(f"127.0.0.1:{port}"))
    finally:
        run.signal(signal.SIGTERM)
        run.finish()


@pytest.mark.timeout(PATIENCE_S)
def test_recorded_data_have_the_spaces_of_a_run_and_a_simulator_with_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "earlier").mkdir()
    spec = replace(SPEC, environment_id="external/cart-pole")
    write_twice(tmp_path / "earlier" / "environment.json", spec.to_json())
    arrays = {
        "observations": np.zeros((64, 4), np.float32),
        "actions": np.ones(64, np.int64),
        "rewards": np.ones(64, np.float32),
        "terminations": np.arange(1, 65) % 16 == 0,
    }
    np.savez(tmp_path / "data.npz", allow_pickle=False, **arrays)
    command = ("dataset", "import", "data.npz", "--environment", "external/cart-pole")
    refused = actorq(*command, cwd=tmp_path)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
    assert "give --like-run RUN, the folder of a run that a simulator has joined" in refused.stderr
    done = actorq(*command, "--like-run", "earlier", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    port = free_port()
    run = training(tmp_path / "run", port, "--dataset", str(tmp_path / "datasets" / "data"), *ENDLESS)
    try:
        said = refusal(opened(f"127.0.0.1:{port}", opening(sizes=(3,))))
        assert "dataset: expected sizes (3,), got (2,)" in said
        assert "\n" not in said
        # The next simulator fits.
        assert len(opened(f"127.0.0.1:{port}").play(step()).policy_versions) == 1
    finally:
        run.signal(signal.SIGTERM)
        run.finish()
