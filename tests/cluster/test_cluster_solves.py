"""One command deploys a run on a real cluster and solves CartPole."""

import time
from collections.abc import Callable

from actorq.domain.status import RunState
from tests.cluster.cluster_run import ClusterRun, Timings, on_cluster
from tests.cluster.older_kubernetes import Overlays

pytestmark = on_cluster(400)


def test_one_command_trains_cartpole_to_its_target(
    new_namespace: Callable[[], str], overlays: Overlays, timings: Timings
) -> None:
    run = ClusterRun.in_namespace(new_namespace(), overlays.path("overlay"))
    begin = time.monotonic()
    run.up()
    timings.record("actorq cluster up, until the run makes progress", time.monotonic() - begin)
    assert "solved" in run.command("wait", "--timeout", "300").splitlines()[-1]
    status = run.until(lambda status: status.state.final)
    timings.record(f"CartPole solved, {status.environment_steps:,} environment steps", time.monotonic() - begin)
    assert status.state is RunState.SOLVED

    assert "solved" in run.status_command()
    with run.quantizer() as quantizer:
        assert status.evaluation
        assert quantizer.get("int8", status.evaluation.policy_version).model
    # The run is over, and stays over when its learner moves. Its pods wait without errors.
    run.delete_pod("learner-0")
    assert run.until(lambda status: status.state.final).state is RunState.SOLVED
    run.await_pods(lambda pods: all(pod.ready for pod in pods))
    assert run.restarts() <= len(run.pods())
    run.down("--delete-volume")
    assert not run.pods()
