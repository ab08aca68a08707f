"""Scales a training run on a cluster and kills its pods; the run continues with all of its data. The tests of this
module depend on each other and run in order.
"""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from actorq.domain.status import RunStatus
from benchmarks.faults.cluster_moves import FEW, MOVES, Learner, moves, restarted, restarts
from tests.cluster.cluster_run import ClusterRun, Timings, acting, on_cluster
from tests.cluster.older_kubernetes import Overlays

pytestmark = on_cluster(300)

EVALUATIONS = "/data/run/evaluations.jsonl"


@pytest.fixture(scope="module")
def run(new_namespace: Callable[[], str], overlays: Overlays) -> Iterator[ClusterRun]:
    run = ClusterRun.in_namespace(new_namespace(), overlays.path("endless"))
    run.up()
    yield run
    run.down("--delete-volume")


def exactly(actors: int, status: RunStatus) -> bool:
    """Whether exactly this number of actors act and are connected."""
    connected = [actor for actor in status.actors if actor.role == "actor" and actor.connected]
    return len(acting(status)) == len(connected) == actors


def goes_on(run: ClusterRun) -> RunStatus:
    """Wait until there are new steps, new updates and a new policy."""
    now = run.until(lambda status: True)
    return run.until(
        lambda status: (
            status.environment_steps > now.environment_steps
            and status.updates > now.updates
            and status.policy_version > now.policy_version
        )
    )


def scale(run: ClusterRun, timings: Timings, before: int, after: int) -> RunStatus:
    with timings.measure(f"scaled {before} -> {after}: that many act, no others are connected"):
        run.scale(after)
        return run.until(partial(exactly, after))


def test_actors_are_scaled_while_the_run_trains(run: ClusterRun, timings: Timings) -> None:
    goes_on(run)
    assert {actor.index for actor in acting(scale(run, timings, 1, 4))} == {0, 1, 2, 3}
    scale(run, timings, 4, 2)
    goes_on(run)
    assert run.restarts() == 0


def test_eight_actors_start_and_end_without_a_restart(run: ClusterRun, timings: Timings) -> None:
    scale(run, timings, 2, 8)
    goes_on(run)
    scale(run, timings, 8, 2)
    with timings.measure("scaled 8 -> 2: their pods are gone"):
        run.await_pods(lambda pods: len(pods) == 2, "actor")
    goes_on(run)
    assert run.restarts() == 0


def test_a_new_actor_stores_transitions_within_seconds(run: ClusterRun, timings: Timings) -> None:
    run.scale(0)
    run.await_pods(lambda pods: not pods, "actor")
    still = run.until(lambda status: not acting(status))
    with timings.measure("actor pod asked for, until its first transition is stored"):
        run.scale(1)
        run.until(lambda status: status.environment_steps > still.environment_steps, period_s=0.05)
    scale(run, timings, 1, 2)


def test_an_actor_pod_dies(run: ClusterRun, timings: Timings) -> None:
    victim = run.pods("actor")[0].name
    with timings.measure("actor pod deleted, until another acts in its place"):
        run.delete_pod(victim)
        run.until(lambda status: exactly(2, status) and victim not in {actor.name for actor in status.actors})
    goes_on(run)


def test_the_quantizer_pod_dies(run: ClusterRun, timings: Timings) -> None:
    with run.quantizer() as quantizer:
        retained = {policy.version for policy in quantizer.list()}
    with timings.measure("quantizer pod deleted, until actors have a policy of its successor"):
        victim = run.pods("quantizer")[0].name
        run.delete_pod(victim)
        run.await_pods(lambda pods: any(pod.ready and pod.name != victim for pod in pods), "quantizer")
        version = run.until(lambda status: status.quantizer_connected).policy_version
        run.until(lambda status: all(actor.report.policy_version > version for actor in acting(status) if actor.report))
    run.await_pods(lambda pods: all(pod.ready for pod in pods), "quantizer")
    with run.quantizer() as quantizer:
        assert {policy.version for policy in quantizer.list()} & retained, "its store outlives the pod"


def test_the_learner_pod_is_killed(run: ClusterRun, timings: Timings) -> None:
    before, others = run.until(lambda status: True), restarts(run.cluster)
    evaluations = run.read_file("learner-0", EVALUATIONS)
    with timings.measure("learner pod killed, until the run goes on"):
        run.delete_pod("learner-0", kill=True)
        run.await_pods(lambda pods: not any(pod.ready for pod in pods), "learner")
        steps = run.environment_steps
        status = run.until(lambda status: status.environment_steps > steps)
    assert status.run_id == before.run_id
    assert goes_on(run).policy_version > before.policy_version
    assert restarted(others, restarts(run.cluster)) == {}, "actors keep their queues, and wait"
    assert run.read_file("learner-0", EVALUATIONS).startswith(evaluations)


def test_the_learner_moves_four_times_and_nothing_else_restarts(run: ClusterRun, timings: Timings) -> None:
    before, others = run.until(lambda status: True), restarts(run.cluster)
    assert len(others) == FEW + 2, "the quantizer and the evaluator, too"
    evaluations = run.read_file("learner-0", EVALUATIONS)
    # Each deletion follows the first new steps. A learner that is not yet ready must save, too.
    for number, seconds in enumerate(moves(Learner(run.cluster, None), MOVES, 0.0, print), 1):
        timings.record(f"learner pod deleted, time {number} of {MOVES}, until the run goes on", seconds)
    after = goes_on(run)
    assert after.run_id == before.run_id
    assert after.policy_version > before.policy_version
    assert restarted(others, restarts(run.cluster)) == {}, "actors keep their queues, and wait"
    assert run.read_file("learner-0", EVALUATIONS).startswith(evaluations)


def test_a_run_continues_after_down_and_up(run: ClusterRun, timings: Timings) -> None:
    before = run.until(lambda status: True)
    with timings.measure("actorq cluster down"):
        assert "down --delete-volume" in run.down()
    with timings.measure("actorq cluster up again, until the run makes progress"):
        run.up()
    after = goes_on(run)
    assert after.run_id == before.run_id
    assert after.environment_steps > before.environment_steps
