"""`actorq serve`: a trained policy answers simulators without a learner."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest

from actor_service.external.serve import ExportedFile, PolicyServer, PolicySource, RunFolder, run
from actorq import load_policy, wire
from actorq.config.run_config import RunConfig
from actorq.config.sections import TransportConfig
from actorq.domain.leaves import CRITIC_VECTOR, Leaf
from actorq.domain.policy import Checkpoint, PolicyGraph
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import ConflictError, DeniedError, UnavailableError, UserError
from actorq.process import EXIT_OK
from actorq.transport.options import Certificates
from actorq.transport.security.identity import identity_uri
from actorq.transport.server import Server
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, snapshot_parameters
from quantizer_service.emission.emitter import Emitter
from quantizer_service.store.store import PolicyStore
from sitegen import metrics
from tests.actor_service.external.clients import Client
from tests.actor_service.external.simulators import DEADLINE_S, opening, step
from tests.actorq.transport.certificate_authority import Authority
from tests.builders.stored_policies import stored_run
from tests.builders.structured import NUMBERS, packed, random_observations
from tests.integration.training_run import actorq
from tests.learner_service.algorithms.algorithm_parts import BOUNDED, make, random_batch

SPEC = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), (2,), 500, 475.0)


def trained(version: int, algorithm: str = "dqn", spec: EnvironmentSpec = SPEC) -> tuple[PolicyGraph, Checkpoint]:
    """A policy with other weights for each version."""
    made = make(algorithm, spec)
    graph = export_policy_graph(made.policy, spec, made.takes_noise)
    rng = np.random.default_rng(0)
    rows = random_observations(rng, spec, 64) if spec.leaves else random_batch(rng, spec, 64).observations
    calibration = calibration_batch(rows, spec, made.takes_noise, seed=0)
    tensors = {name: version * values for name, values in snapshot_parameters(made.policy).items()}
    return graph, Checkpoint(version, 10 * version, graph.digest, tensors, calibration, 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with one version."""
    graph, checkpoint = trained(1)
    root = tmp_path_factory.mktemp("served") / "run"
    stored_run(root, graph, [checkpoint], spec=SPEC, environment=SPEC.environment_id)
    return root


@pytest.fixture(scope="module")
def exported(folder: Path) -> Path:
    """The file of that version."""
    file = folder.parent / "policy.onnx"
    result = actorq("export", str(folder), "-o", str(file))
    assert result.returncode == 0, result.stderr
    return file


@contextmanager
def serving(source: PolicySource) -> Iterator[tuple[str, PolicyServer, "Future[int]"]]:
    """A server on a thread of its own: its address, and its exit code once it has ended."""
    started: Future[tuple[asyncio.AbstractEventLoop, PolicyServer, str]] = Future()
    ended: Future[int] = Future()

    async def serve() -> int:
        server, service = Server("127.0.0.1:0"), PolicyServer(RunConfig(), source, follow_s=0.05)
        address = await server.start(service.register(server.grpc_server))
        started.set_result((asyncio.get_running_loop(), service, address))
        try:
            return await service.run(address)
        finally:
            await server.stop(grace_s=2.0)

    thread = threading.Thread(target=lambda: ended.set_result(asyncio.run(serve())))
    thread.start()
    loop, service, address = started.result(DEADLINE_S)
    try:
        yield address, service, ended
    finally:
        if not ended.done():
            loop.call_soon_threadsafe(service.begin_drain)
        thread.join(DEADLINE_S)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_served_policy_acts_as_a_loaded_one(kind: str, folder: Path, exported: Path) -> None:
    path = exported if kind == "file" else folder
    loaded = load_policy(path)
    rows = np.random.default_rng(3).standard_normal((8, 4)).astype(np.float32)
    with serving(ExportedFile(path) if kind == "file" else RunFolder(path, "", "")) as (address, _, _):
        client = Client(address)
        ready = client.open(opening(8))
        assert (ready.run_id, ready.environment_id) == ("run", "CartPole-v1")
        for _ in range(3):
            action = client.play(step(rows))
            np.testing.assert_array_equal(wire.tensor_from_proto(action.actions), loaded.predict(rows))
            assert set(action.policy_versions) == {1}
            assert action.scheme == "int8"
            assert not any(action.evaluating)


def test_a_client_needs_neither_the_parts_of_critics_nor_the_other_agents(tmp_path: Path) -> None:
    hidden = Leaf(CRITIC_VECTOR, "numbers", (2,), "float32", critic=True)
    spec = replace(BOUNDED, observations=packed(NUMBERS, hidden), agents=("a", "b"))
    graph, checkpoint = trained(1, "td3", spec)
    root = stored_run(tmp_path / "run", graph, [checkpoint], spec=spec, environment=spec.environment_id).root
    rows = np.random.default_rng(3).standard_normal((3, 3)).astype(np.float32)
    with serving(RunFolder(root, "", "")) as (address, _, _):
        client = Client(address)
        numbers = replace(NUMBERS, name="")
        client.open(opening(3, observations=(numbers,), actions=spec.actions, sizes=(), reward_threshold=None))
        action = client.play(step(rows))
        np.testing.assert_array_equal(wire.tensor_from_proto(action.actions), load_policy(root).predict(rows))


def test_a_client_need_not_know_the_time_limit_and_needs_the_policys_spaces(exported: Path) -> None:
    with serving(ExportedFile(exported)) as (address, _, _):
        client = Client(address)
        client.open(opening(max_episode_steps=0, reward_threshold=None, explore=False))
        client.play(step())
        with pytest.raises(
            ConflictError, match=r"the spaces of the policy, got ones with sizes \(3,\) instead of \(2,\)"
        ):
            Client(address).open(opening(sizes=(3,)))


def test_a_server_that_ends_ends_its_streams(exported: Path) -> None:
    with serving(ExportedFile(exported)) as (address, service, ended):
        client = Client(address)
        client.open()
        client.play(step())
        service.begin_drain()
        assert isinstance(client.error(), UnavailableError)
        assert ended.result(DEADLINE_S) == EXIT_OK


@pytest.mark.parametrize(("version", "served"), [("newest", 2), ("1", 1)])
def test_a_server_follows_the_newest_version_unless_one_is_given(version: str, served: int, tmp_path: Path) -> None:
    graph, first = trained(1)
    run_folder = stored_run(tmp_path / "run", graph, [first], spec=SPEC, environment=SPEC.environment_id)
    with serving(RunFolder(run_folder.root, version, "")) as (address, _, _):
        client = Client(address)
        client.open()
        assert list(client.play(step()).policy_versions) == [1]
        store = PolicyStore(run_folder.policies, 10, 1)
        store.claim("run")
        emitter = Emitter(store, RunConfig().resolved_quantizer())
        emitter.add_graph(graph)
        emitter.publish(trained(2)[1], ["int8"])
        store.close()
        for _ in range(20 if served == 1 else 10_000):
            found = list(client.play(step()).policy_versions)
            if found == [2]:
                break
        assert found == [served]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["policy.onnx"], r"policy\.onnx: cannot be read"),
        (["policy.onnx", "--version", "3"], "a file has one version and scheme"),
        (["policy.onnx", "--scheme", "fp32"], "a file has one version and scheme"),
        ([], "PATH"),
        (["policy.onnx", "--follow-s", "0"], "follow"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], error: str) -> None:
    with pytest.raises(UserError, match=error):
        run(arguments)


def test_a_version_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="version 9 is not in"):
        PolicyServer(RunConfig(), RunFolder(folder, "9", ""), 1.0)
    with pytest.raises(UserError, match="not in fp32; write a file with: actorq export"):
        PolicyServer(RunConfig(), RunFolder(folder, "1", "fp32"), 1.0)


def test_a_file_for_other_spaces_is_refused(exported: Path) -> None:
    source = ExportedFile(exported)
    source.spec = replace(SPEC, observations=ArraySpec((5,), "float32"))
    with pytest.raises(UserError, match=r"cannot run the model on observations float32\[1, 5\]"):
        PolicyServer(RunConfig(), source, 1.0)


def test_metrics_show_the_version_the_streams_and_the_time_to_an_answer(exported: Path) -> None:
    with serving(ExportedFile(exported)) as (address, service, _):
        client = Client(address)
        client.open(opening(8))
        for _ in range(3):
            client.play(step(np.zeros((8, 4), np.float32)))
        families = list(service.metrics())
        found = {sample.name: sample.value for each in families for sample in each.samples if "le" not in sample.labels}
    assert found.pop("actorq_actor_simulator_answer_seconds_sum") > 0
    assert found == {
        "actorq_actor_policy_version": 1,
        "actorq_actor_simulators": 1,
        "actorq_actor_simulator_environments": 8,
        "actorq_actor_simulator_actions_total": 24,
        "actorq_actor_simulator_answer_seconds_count": 3,
        "actorq_actor_refused_simulators_total": 0,
        "actorq_actor_cut_episodes_total": 0,
    }
    documented = {each.name: each.kind for each in metrics.of_service(metrics.ACTOR)}
    served = {f"{each.name}_total" if each.type == "counter" else each.name: each.type for each in families}
    assert served.items() <= documented.items()


class ServerProcess:
    """`python -m actor_service.external`, as in a pod."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "actor_service.external", *arguments, "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    @cached_property
    def address(self) -> str:
        """Where it serves. Waits until it does."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "serving on " in line:
                return line.partition("serving on ")[2].split()[0]
        raise AssertionError(f"the server ended with {self.process.wait()}")

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_terminated_server_ends_all_streams_in_time_and_they_go_on_at_another(exported: Path) -> None:
    with ServerProcess(str(exported)) as first, ServerProcess(str(exported)) as second:
        addresses = first.address, second.address
        clients = [Client(addresses[0]) for _ in range(20)]
        for client in clients:
            client.open()
            client.play(step())
        # Answers to these steps may be on their way when the streams end.
        for client in clients:
            client.send(step())
        began = time.monotonic()
        first.process.send_signal(signal.SIGTERM)
        for client in clients:
            error = client.error()
            assert isinstance(error, UnavailableError)
            assert "connect again" in str(error)
        assert first.process.wait(DEADLINE_S) == EXIT_OK
        # A pod is killed after its grace period, which is longer.
        assert time.monotonic() - began < TransportConfig().drain_s
        for _ in clients:
            moved = Client(addresses[1])
            moved.open()
            assert list(moved.play(step()).policy_versions) == [1]


def test_with_certificates_only_simulators_of_the_servers_run_may_connect(exported: Path, tmp_path: Path) -> None:
    authority = Authority()
    members = {"server": ("actor", "policy-server"), "client": ("simulator", "policy-server")}
    members |= {"actor": ("actor", "policy-server"), "stranger": ("simulator", "actorq")}
    for name, (role, run_name) in members.items():
        authority.issue(tmp_path, name, uris=(identity_uri(role, run_name),))
    # The settings of k8s/serve/mtls.
    tls = ("--transport.certificates", str(tmp_path / "server"), "--transport.run", "policy-server")
    with ServerProcess(str(exported), *tls) as server:
        client = Client(server.address, Certificates.load(tmp_path / "client"))
        client.open()
        assert list(client.play(step()).policy_versions) == [1]
        for name in ("actor", "stranger"):
            with pytest.raises(DeniedError):
                Client(server.address, Certificates.load(tmp_path / name)).open()
