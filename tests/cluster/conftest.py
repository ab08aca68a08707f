"""Namespaces for tests on a real cluster, and the times that they took."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from cluster_run import Timings, kubeconfig_is_set
from kubernetes import client

from actorq.cluster.connection import connect

_TIMINGS = Timings()
_RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}


@pytest.fixture(scope="session")
def timings() -> Timings:
    return _TIMINGS


@pytest.fixture(scope="module")
def new_namespace() -> Iterator[Callable[[], str]]:
    """Makes namespaces that take only restricted pods, and are gone after the module's tests."""
    if not kubeconfig_is_set():
        pytest.fail("KUBECONFIG must name the cluster to test on")
    core = connect(None).core()
    made: list[str] = []

    def make() -> str:
        name = f"actorq-test-{uuid4().hex[:8]}"
        core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=name, labels=_RESTRICTED)))
        made.append(name)
        return name

    yield make
    for name in made:
        core.delete_namespace(name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _TIMINGS.lines:
        terminalreporter.section("times on the cluster")
        for line in _TIMINGS.lines:
            terminalreporter.write_line(line)
