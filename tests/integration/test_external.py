"""Simulators in processes of their own play through the actor of a whole run."""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorq.client import ActorClient, LearnerClient
from actorq.domain.status import RunStatus
from actorq.errors import ActorQError, ConflictError, UnavailableError
from actorq.statefiles.documents import write_twice
from actorq.transport.options import Certificates
from actorq.transport.security.identity import identity_uri
from benchmarks.scale.simulators.clients import CPP, NODE, PYTHON, cpp_client, ended, node_client
from benchmarks.scale.simulators.clients import Client as Simulator
from tests.actor_service.external.clients import Client, served
from tests.actor_service.external.simulators import DEADLINE_S, SPEC, door, opening, step
from tests.actorq.transport.certificate_authority import Authority
from tests.builders.forked_commands import ForkedCommand
from tests.builders.service_process import service_process
from tests.integration.training_run import TrainingRun, actorq

ROOT = Path(__file__).parents[2]
NAMES = ("access", "tensor", "trajectory", "external")
# What a client in Python needs besides the stubs.
PACKAGES = ("grpc", "google", "typing_extensions.py")
PATIENCE_S = 200
ENDLESS = ("--target-return", "501", "--max-environment-steps", "10000000")


def free_port() -> int:
    """A port that is free now. The next one is probably free too."""
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def training(directory: Path, port: int, *flags: str) -> TrainingRun:
    """A run whose environment are simulators."""
    external = ("--environment", "external/cart-pole", "--external.listen", f"127.0.0.1:{port}")
    return TrainingRun.start(directory, *external, "--like", "CartPole-v1", "--no-energy.enabled", *flags)


def python_client(folder: Path) -> Simulator:
    """The client in Python, in an interpreter that has no package but grpcio: ActorQ is not there."""
    site = folder / "site"
    site.mkdir()
    for name in PACKAGES:
        installed = next(Path(path) / name for path in sys.path if (Path(path) / name).exists())
        (site / name).symlink_to(installed)
    stubs = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'protos'}", f"--python_out={site}"]
    protos = [str(ROOT / "protos" / "actorq" / "v1" / f"{name}.proto") for name in NAMES]
    subprocess.run([*stubs, f"--grpc_python_out={site}", *protos], check=True)
    program = shutil.copy(ROOT / "examples" / "simulator" / "cart_pole.py", folder)
    return Simulator(PYTHON, (sys.executable, "-S", str(program)), {"PYTHONPATH": str(site)})


@pytest.fixture(scope="module", params=[PYTHON, CPP, NODE])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    """Each client of examples/simulator. Skips the tests of a client for which this machine lacks something."""
    folder = tmp_path_factory.mktemp("client")
    if request.param == PYTHON:
        return python_client(folder)
    strict = "CXXFLAGS=-O0 -std=c++17 -Wall -Wextra -Werror"
    made = node_client(folder) if request.param == NODE else cpp_client(folder, strict)
    if isinstance(made, str):
        pytest.skip(made)
    return made


def in_pod(client: Simulator, **variables: str) -> Simulator:
    """The client with the variables of a pod."""
    return replace(client, variables={**client.variables, **variables})


@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_simulator_without_actorq_trains_its_own_cart_pole(client: Simulator, tmp_path: Path) -> None:
    port = free_port()
    # Some seeds forget what they have learned, and need several times the steps of others.
    run = training(tmp_path / "run", port, "--max-environment-steps", "400000")
    # It connects again until the actor serves.
    with client.playing(f"127.0.0.1:{port}") as simulator:
        code, output = run.finish()
        assert code == 0, output
        ended(client, simulator)
    assert f"simulators: connect them to 127.0.0.1:{port}" in output
    summary = run.summary()
    assert summary["state"] == "solved"
    assert summary["evaluation"]["mean_return"] >= 475
    shown = actorq("evaluate", str(run.directory))
    assert shown.returncode == 2
    assert "exists only in simulators that connect to an actor with --external" in shown.stderr


@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_client_of_the_examples_passes_the_check(client: Simulator) -> None:
    with ForkedCommand("actorq_apps.cli.main", "external", "check", "127.0.0.1:0", "--steps", "200") as check:
        address = check.stdout.readline().rpartition(" ")[2].strip()
        with in_pod(client, ACTOR_ADDRESS=address).playing() as simulator:
            printed, errors = check.communicate(timeout=PATIENCE_S)
            assert check.returncode == 0, printed + errors
            ended(client, simulator)
    words = [line.split()[:2] for line in printed.splitlines() if not line.startswith("note")]
    assert words == [["ok", name] for name in ("open", "steps", "episodes", "observations", "reconnects", "ends")]


@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_client_of_the_examples_fits_into_a_pod(client: Simulator, tmp_path: Path) -> None:
    """It reads the address and the certificates from variables, and ends at SIGTERM."""
    authority, at = Authority(), door()
    for role in ("actor", "simulator"):
        authority.issue(tmp_path, role, uris=(identity_uri(role, "actorq"),))
    client = in_pod(client, ACTOR_CERTIFICATES=str(tmp_path / "simulator"))
    with (
        served(at, Certificates.load(tmp_path / "actor"), answers=False) as stage,
        in_pod(client, ACTOR_ADDRESS=stage.address).playing() as simulator,
    ):
        assert at.take(DEADLINE_S).arrivals
        simulator.send_signal(signal.SIGTERM)
        printed, _ = simulator.communicate(timeout=DEADLINE_S)
    assert simulator.returncode == 0, printed


@pytest.mark.timeout(PATIENCE_S)
def test_a_client_of_the_examples_names_a_certificate_that_it_cannot_read(client: Simulator, tmp_path: Path) -> None:
    without = in_pod(client, ACTOR_ADDRESS="127.0.0.1:9", ACTOR_CERTIFICATES=str(tmp_path))
    with without.playing() as simulator:
        printed, _ = simulator.communicate(timeout=DEADLINE_S)
    assert simulator.returncode == 1, printed
    assert printed.splitlines() == [f"error: cannot read {tmp_path / 'ca.crt'}"]


def steps(count: int) -> Callable[[RunStatus], bool]:
    return lambda status: status.environment_steps >= count


@pytest.mark.timeout(PATIENCE_S)
def test_frozen_and_killed_simulators_do_not_stop_the_others(tmp_path: Path) -> None:
    port, client = free_port(), python_client(tmp_path)
    run = training(tmp_path / "run", port, *ENDLESS)
    with ExitStack() as stack:
        stack.callback(run.finish)
        stack.callback(run.signal, signal.SIGTERM)
        simulators = [stack.enter_context(client.playing(f"127.0.0.1:{port}", 1)) for _ in range(4)]
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


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """A learner and a quantizer of a run in CartPole-v1: the flags of its actors."""
    run = ("--environment", "CartPole-v1", "--no-energy.enabled", *ENDLESS)
    with service_process("quantizer", *run, "--store", str(tmp_path / "store")) as quantizer:
        peer = ("--quantizer", quantizer.address)
        with service_process("learner", *run, *peer, "--run-directory", str(tmp_path / "run")) as learner:
            yield ("--learner", learner.address, *peer)


@pytest.mark.timeout(PATIENCE_S)
def test_simulators_need_the_spaces_of_the_runs_own_environments(peers: tuple[str, ...]) -> None:
    with service_process("actor", *peers) as own, service_process("actor", "--external", *peers) as actor:
        with LearnerClient(peers[1]) as learner:
            next(status for status in learner.watch(period_s=0.05) if status.environment_steps)
        told = refusal(opened(actor.address, opening(sizes=(3,))))
        assert "environment: expected the run's CartPole-v1, got one with sizes (3,) instead of (2,)" in told
        assert "\n" not in told
        # Both actors go on, and simulators that fit may connect.
        assert len(opened(actor.address).play(step()).policy_versions) == 1
        with ActorClient(own.address) as client:
            assert client.status().activity == "acting"


@pytest.mark.timeout(PATIENCE_S)
def test_own_environments_need_the_spaces_of_the_first_simulator(peers: tuple[str, ...]) -> None:
    with service_process("actor", "--external", *peers) as actor:
        first = opened(actor.address, opening(sizes=(3,)))
        first.play(step())
        with service_process("actor", *peers) as own:
            code, line = own.end()
        assert code == 1
        assert "environment: expected the run's CartPole-v1, got one with sizes (2,) instead of (3,)" in line
        first.play(step())
