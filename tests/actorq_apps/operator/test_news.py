"""The news of runs: which changes count. Neither objects nor failures stop the news."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from actorq.errors import UserError
from actorq_apps.cluster.connection import Cluster
from actorq_apps.operator.controller import DueQueue
from actorq_apps.operator.news import News, follow
from actorq_apps.operator.reconcile import Key
from tests.actorq_apps.operator.kube_api import NAMESPACE, KubeApi, Object, kube_api
from tests.actorq_apps.operator.operator_world import training_run


@pytest.fixture
def api() -> Iterator[KubeApi]:
    with kube_api() as server:
        yield server


def change(kind: str, name: str, version: str, **spec: Any) -> bytes:
    metadata = {"namespace": NAMESPACE, "name": name, "uid": name, "generation": 1, "resourceVersion": version}
    return json.dumps({"type": kind, "object": {"metadata": metadata, "spec": spec}}).encode() + b"\n"


@contextmanager
def watching(cluster: Cluster) -> Iterator[DueQueue[Key]]:
    queue: DueQueue[Key] = DueQueue()
    follow(cluster, (NAMESPACE,), queue, pause_s=0.01)
    try:
        yield queue
    finally:
        queue.close()


def heard(queue: DueQueue[Key]) -> str:
    found = queue.get(20)
    assert found is not None
    return found.name


def test_only_a_new_specification_and_a_deletion_are_news() -> None:
    queue: DueQueue[Key] = DueQueue()
    news = News(queue)

    def heard(kind: str, generation: int, **more: str) -> bool:
        metadata: Object = {"namespace": "lab", "name": "tiny", "uid": "u", "generation": generation, **more}
        news.notice(kind, {"metadata": metadata})
        return queue.get(0) == Key("lab", "tiny")

    assert heard("ADDED", 1)
    assert not heard("MODIFIED", 1)
    assert heard("MODIFIED", 2)
    assert heard("MODIFIED", 2, deletionTimestamp="2026-01-01T00:00:00Z")
    assert heard("DELETED", 2)
    assert heard("ADDED", 2)


def test_runs_that_are_there_and_changes_are_news(api: KubeApi) -> None:
    api.put(training_run("first"))
    api.streams = [change("ADDED", "second", "7"), b""]
    with watching(api.cluster()) as queue:
        assert [heard(queue), heard(queue)] == ["first", "second"]
        # The next stream begins where the last one ended.
        api.awaited.get(timeout=20)
        assert api.awaited.get(timeout=20) == "7"


def test_a_version_that_the_server_has_forgotten_lists_the_runs_anew(api: KubeApi) -> None:
    def create_later(verb: str, kind: str, name: str) -> None:
        # Between the first list and the first answer. This server reports no changes, so only a second list has it.
        if verb == "watch" and not api.names("trainingruns"):
            api.put(training_run("later"))

    api.refuse = create_later
    api.streams = [change("ERROR", "", "")]
    with watching(api.cluster()) as queue:
        assert heard(queue) == "later"


def test_an_object_that_is_nested_too_deeply_hides_no_other(api: KubeApi) -> None:
    deep = b'{"type":"ADDED","object":{"metadata":{"namespace":"lab","name":"deep","uid":"d"},"spec":'
    deep += b"[" * 5000 + b"]" * 5000 + b"}}\n"
    api.streams = [deep + change("ADDED", "good", "9")]
    with watching(api.cluster()) as queue:
        assert [heard(queue), heard(queue)] == ["deep", "good"]


def test_continues_after_failures(api: KubeApi) -> None:
    failed = threading.Event()

    def refuse(verb: str, kind: str, name: str) -> tuple[int, str] | None:
        if verb == "watch" and not failed.is_set():
            failed.set()
            return 500, "etcd leader changed"
        return None

    api.refuse = refuse
    api.streams = [b"no JSON\n", change("ADDED", "good", "9")]
    with watching(api.cluster()) as queue:
        assert heard(queue) == "good"


def test_a_missing_permission_is_an_error_of_this_project(api: KubeApi) -> None:
    api.forbidden = {("watch", "trainingruns")}
    with pytest.raises(UserError, match=r"watch .*trainingruns"):
        next(api.cluster().changes("actorq.dev/v1alpha1", "TrainingRun", "1", 1))
