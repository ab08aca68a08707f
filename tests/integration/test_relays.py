"""Relays as processes: a tree of three levels, killed relays, certificates, a drain, metrics."""

import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from actorq.client import QuantizerClient
from actorq.domain.policy import Policy
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UnavailableError
from actorq.transport.options import Certificates
from actorq_apps.local.services import reserved_addresses
from benchmarks.scale.watchers import Source
from tests.builders.forked_commands import ForkedCommand
from tests.builders.service_process import refusal, service_process
from tests.integration.training_run import actorq

SPEC = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), sizes=(2,))
SCHEME = "int8"
# Labels of policies for a client that requests no encoding.
VARIANT = '{scheme="int8",weight_encoding="signed"}'


@contextmanager
def publishing(address: str) -> Iterator[Source]:
    source = Source(address, (32, 32), SPEC)
    try:
        yield source
    finally:
        source.close()


def seen_until(policies: Iterator[Policy], version: int) -> list[int]:
    seen: list[int] = []
    while not seen or seen[-1] < version:
        seen.append(next(policies).descriptor.version)
    return seen


def test_a_tree_of_three_levels_survives_the_kill_of_its_middle_relay(tmp_path: Path) -> None:
    with ExitStack() as stack:
        root = stack.enter_context(service_process("quantizer", "--store", str(tmp_path / "policies")))
        # Held while there is no middle relay.
        (address,) = stack.enter_context(reserved_addresses(1))
        of_middle = ("--upstream", root.address, "--listen", address)
        with service_process("quantizer", *of_middle) as middle:
            leaf = stack.enter_context(service_process("quantizer", "--upstream", middle.address))
            beside = stack.enter_context(service_process("quantizer", "--upstream", root.address))
            source = stack.enter_context(publishing(root.address))
            below = stack.enter_context(QuantizerClient(leaf.address))
            other = stack.enter_context(QuantizerClient(beside.address))
            watch, watch_beside = below.watch(SCHEME), other.watch(SCHEME)
            first = source.publish()
            assert seen_until(watch, first.version)[-1] == first.version
            assert seen_until(watch_beside, first.version)[-1] == first.version
            with QuantizerClient(root.address) as of_root:
                assert below.get(SCHEME) == other.get(SCHEME) == of_root.get(SCHEME)
                assert below.list() == of_root.list()

        # After the kill, the leaf serves its newest policy. It gets newer policies when a middle relay runs again.
        # Other watchers are not affected.
        missed = source.publish()
        assert seen_until(watch_beside, missed.version) == [missed.version]
        assert below.get(SCHEME).descriptor.version == first.version
        with QuantizerClient(leaf.address) as late:
            assert next(late.watch(SCHEME)).descriptor.version == first.version

        stack.enter_context(service_process("quantizer", *of_middle))
        newest = source.publish()
        seen = seen_until(watch, newest.version)
        assert seen in ([missed.version, newest.version], [newest.version])


def test_a_relay_outlives_its_upstream_and_drains(tmp_path: Path) -> None:
    with ExitStack() as stack:
        with service_process("quantizer", "--store", str(tmp_path / "policies")) as root:
            with publishing(root.address) as source:
                published = source.publish()
            process = stack.enter_context(ForkedCommand("quantizer_service", "--upstream", root.address))
            stack.callback(process.kill)
            serving = next(line for line in process.stderr if "serving on" in line)
            client = stack.enter_context(QuantizerClient(serving.split()[-1]))
            watch = client.watch(SCHEME)
            assert next(watch).descriptor.version == published.version

        assert client.get(SCHEME).descriptor.version == published.version
        with pytest.raises(UnavailableError):
            client.list()
        process.send_signal(signal.SIGTERM)

        with pytest.raises(UnavailableError, match="draining"):
            next(watch)
        assert process.wait(30) == 0


def test_a_relay_requires_certificates_on_both_sides(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    assert actorq("certificates", "init", str(folder)).returncode == 0
    secure = ("--transport.certificates", str(folder))
    store = ("--store", str(tmp_path / "policies"))
    with service_process("quantizer", *store) as plain, publishing(plain.address) as source:
        version = source.publish().version
    with (
        service_process("quantizer", *store, *secure) as root,
        service_process("quantizer", "--upstream", root.address, *secure) as secured,
        QuantizerClient(secured.address, Certificates.of(folder, "operator")) as client,
        QuantizerClient(secured.address) as stranger,
    ):
        assert next(client.watch(SCHEME)).descriptor.version == version
        assert client.get("fp32").descriptor.version == version
        with pytest.raises(UnavailableError):
            stranger.get(SCHEME)


def test_the_metrics_of_a_relay(tmp_path: Path) -> None:
    with ExitStack() as stack:
        root = stack.enter_context(service_process("quantizer", "--store", str(tmp_path / "policies")))
        flags = ("--upstream", root.address, "--metrics", "127.0.0.1:0")
        middle = stack.enter_context(service_process("quantizer", *flags))
        source = stack.enter_context(publishing(root.address))
        client = stack.enter_context(QuantizerClient(middle.address))
        watch = client.watch(SCHEME)
        version = source.publish().version
        seen_until(watch, version)
        with urllib.request.urlopen(f"http://{middle.metrics}/metrics", timeout=20) as response:
            text = response.read().decode()

    for sample in (
        f"actorq_relay_watchers{VARIANT} 1.0",
        f"actorq_relay_upstream_connected{VARIANT} 1.0",
        f"actorq_relay_policy_version{VARIANT} {version}.0",
    ):
        assert sample in text, text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values[f"actorq_relay_policies_total{VARIANT}"]) >= 1
    assert 0 < float(values[f"actorq_relay_lag_seconds{VARIANT}"]) < 60
    assert "actorq_grpc_handled_total" in text


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["--upstream", "127.0.0.1:1", "--store", "x"], "--upstream: .*--store"),
        (["--upstream", "127.0.0.1:1", "--read-only"], "--upstream: .*--read-only"),
        (["--upstream", "nowhere"], "HOST:PORT.*'nowhere'"),
    ],
)
def test_a_users_mistake_is_one_line(arguments: list[str], fact: str) -> None:
    assert re.search(fact, refusal("quantizer", *arguments))
