"""The queue of TrainingRuns counts what it must not see."""

from typing import Any

import pytest

from benchmarks.faults.training_runs import KIND, Queue

Object = dict[str, Any]


class Cluster:
    """Objects by kind and name; as much of actorq_apps.cluster.connection.Cluster as the queue uses."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}

    def apply(self, manifest: Object) -> None:
        self.objects[KIND, manifest["metadata"]["name"]] = {**manifest, "status": {}}

    def list(self, api_version: str, kind: str, selector: str = "") -> list[Object]:
        return [each for (found, _), each in self.objects.items() if found == kind]

    def patch(self, api_version: str, kind: str, name: str, change: Object) -> None:
        self.objects[kind, name]["spec"] |= change["spec"]

    def delete(self, api_version: str, kind: str, name: str) -> None:
        del self.objects[kind, name]

    def await_pod_change(self, selector: str, at_most_s: int) -> None:
        pass

    def status(self, name: str, **status: Any) -> None:
        self.objects[KIND, name]["status"] |= status

    def learner(self, run: str, uid: str) -> None:
        self.objects["Pod", uid] = {"metadata": {"name": uid, "uid": uid, "labels": {"actorq/run": run}}}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def queue(cluster: Cluster) -> Queue:
    made = Queue(cluster, runs=4, at_most=2)  # type: ignore[arg-type]
    made.make()
    return made


def active(cluster: Cluster) -> list[str]:
    return [each["metadata"]["name"] for each in cluster.list("", KIND) if not each["spec"]["suspend"]]


def test_few_runs_are_active_and_the_next_follows_one_that_is_over(cluster: Cluster) -> None:
    made = queue(cluster)
    assert made.step() == 0
    assert active(cluster) == ["queued-1", "queued-2"]
    made.step()
    assert active(cluster) == ["queued-1", "queued-2"]
    cluster.status("queued-1", finishedAt="now", state="Solved")
    assert made.step() == 1
    assert active(cluster) == ["queued-1", "queued-2", "queued-3"]
    made.step()
    assert made.most == 2


def test_falling_steps_and_second_learners_are_counted(cluster: Cluster) -> None:
    made = queue(cluster)
    for steps in (100, 200, 150, 160):
        cluster.status("queued-1", environmentSteps=steps)
        made.step()
    # Both later looks are below what was seen.
    assert made.falls == 2
    assert made.learners_too_many() == 0
    for run, uid in (("queued-1", "a"), ("queued-2", "b"), ("queued-1", "c")):
        cluster.learner(run, uid)
    made.step()
    assert made.learners_too_many() == 1


def test_what_is_left_after_deletion_is_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    made = queue(cluster)
    assert made.clean() == []
    made.make()
    cluster.learner("queued-1", "stays")
    monkeypatch.setattr("benchmarks.faults.training_runs._CLEAN_S", 0.0)
    assert made.clean() == ["Pod stays"]
