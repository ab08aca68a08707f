"""Images with a user's package: a run uses its environment, network and algorithm."""

import time
from collections.abc import Callable

from actorq.domain.status import RunState
from tests.cluster.cluster_run import ClusterRun, Timings, on_cluster
from tests.cluster.older_kubernetes import Overlays

pytestmark = on_cluster(400)


def test_the_example_package_trains_to_its_target(
    new_namespace: Callable[[], str], overlays: Overlays, timings: Timings
) -> None:
    run = ClusterRun.in_namespace(new_namespace(), overlays.path("hover"))
    begin = time.monotonic()
    run.up()
    status = run.until(lambda status: status.state.final)
    timings.record(f"own package solved, {status.environment_steps:,} environment steps", time.monotonic() - begin)
    assert status.state is RunState.SOLVED
    assert (status.environment_id, status.algorithm) == ("hover.environment:Hover-v0", "soft-q-learning")
    run.down("--delete-volume")
