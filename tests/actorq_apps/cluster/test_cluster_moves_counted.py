"""The benchmark of moves counts each restart of another pod; how long a move takes needs a cluster."""

from dataclasses import replace

from benchmarks.faults.cluster_moves import Growth, restarted, restarts
from tests.actorq_apps.cluster.cluster_api import cluster_api
from tests.actorq_apps.cluster.cluster_objects import STATUS, ready_pod


def test_pods_that_restarted_or_were_replaced_count_and_new_ones_do_not() -> None:
    before = {"actor-1": 0, "actor-2": 3, "actor-3": 1, "quantizer-a": 0}
    after = {"actor-1": 0, "actor-2": 5, "quantizer-a": 0, "actor-4": 0}
    assert restarted(before, after) == {"actor-2": 2, "actor-3": 1}
    assert restarted(before, before) == {}


def test_the_learner_and_pods_that_end_are_left_out() -> None:
    with cluster_api() as api:
        ending = ready_pod("actor-2", "actor", 1)
        ending["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
        for pod in (ready_pod("learner-0", "learner", 7), ready_pod("actor-1", "actor", 2), ending):
            api.add("v1", "pods", pod)
        assert restarts(api.cluster()) == {"actor-1": 2}


def test_a_run_continues_once_its_learner_has_new_steps() -> None:
    grown = Growth()
    answers = [grown(replace(STATUS, environment_steps=steps)) for steps in (500, 500, 564)]
    assert answers == [False, False, True]
