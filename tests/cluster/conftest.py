"""Namespaces for tests on a real cluster, and their measured times. CLUSTER_TIMES names a JSON file for the times."""

import json
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from kubernetes import client

from actorq_apps.cluster.context import connect
from tests.cluster.cluster_run import Timings, describe, kubeconfig_is_set
from tests.cluster.older_kubernetes import Offered, Overlays

_TIMINGS = Timings()
_NAMESPACES: list[str] = []
_MODES = ("enforce", "warn", "audit")


@pytest.fixture(scope="session")
def timings() -> Timings:
    return _TIMINGS


@pytest.fixture(scope="session")
def overlays(tmp_path_factory: pytest.TempPathFactory) -> Overlays:
    if not kubeconfig_is_set():
        pytest.fail("KUBECONFIG must name the cluster to test on")
    return Overlays(Offered.by(connect(None)), tmp_path_factory.mktemp("overlays"))


@pytest.fixture(scope="module")
def new_namespace() -> Iterator[Callable[..., str]]:
    """Makes namespaces for restricted pods, or of another level, and deletes them after the module's tests."""
    if not kubeconfig_is_set():
        pytest.fail("KUBECONFIG must name the cluster to test on")
    core = connect(None).core()

    def make(level: str = "restricted") -> str:
        name = f"actorq-test-{uuid4().hex[:8]}"
        labels = {f"pod-security.kubernetes.io/{mode}": level for mode in _MODES}
        core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=name, labels=labels)))
        _NAMESPACES.append(name)
        return name

    yield make
    while _NAMESPACES:
        core.delete_namespace(_NAMESPACES.pop())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Print the state of the cluster after a failure, because the namespace will be deleted."""
    report = yield
    if report.failed and call.when != "teardown":
        for namespace in _NAMESPACES:
            try:
                report.sections.append(("cluster", describe(namespace)))
            except Exception as error:
                # The failure itself is more important, and the cluster may be unreachable.
                report.sections.append(("cluster", f"namespace {namespace}: {error!r}"))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if path := os.environ.get("CLUSTER_TIMES"):
        Path(path).write_text(json.dumps(_TIMINGS.noted, indent=2) + "\n", encoding="utf-8")
    if _TIMINGS.lines:
        terminalreporter.section("times on the cluster")
        for line in _TIMINGS.lines:
            terminalreporter.write_line(line)
