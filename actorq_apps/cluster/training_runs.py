"""A user's view of TrainingRuns: whether a run is a TrainingRun, and how it ended."""

from collections.abc import Sequence
from dataclasses import dataclass

from actorq.domain.status import RunState
from actorq.errors import ActorQError
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.objects import TRAINING_RUN, Object, items, part


def state_name(state: RunState) -> str:
    """A state in the style of Kubernetes: WaitingForActors."""
    return "".join(word.capitalize() for word in state.value.split())


_ENDS = {state_name(each): each for each in RunState if each.final}


@dataclass(frozen=True)
class RecordedEnd:
    """The end of a run in the status of its TrainingRun, which outlives the learner."""

    state: RunState
    environment_steps: int
    mean_return: float | None


def is_training_run(cluster: Cluster, workloads: Sequence[Object]) -> bool:
    """Whether a TrainingRun owns the workloads of the cluster's run; without workloads, whether it exists."""
    if workloads or not cluster.run:
        owners = [owner for each in workloads for owner in items(each["metadata"], "ownerReferences")]
        return any(owner.get("kind") == TRAINING_RUN[1] for owner in owners)
    return cluster.has_kind(*TRAINING_RUN) and cluster.get(*TRAINING_RUN, cluster.run) is not None


def recorded_end(cluster: Cluster) -> RecordedEnd | None:
    """The end of the TrainingRun of the cluster's run; None while it runs. Raises ActorQError if the run cannot end."""
    where = f"TrainingRun {cluster.run} in namespace {cluster.namespace}"
    found = cluster.get(*TRAINING_RUN, cluster.run)
    if found is None:
        raise ActorQError(f"{where} is gone: it was deleted before its end was seen")
    status = part(found, "status")
    if any((each.get("type"), each.get("status")) == ("Failed", "True") for each in items(status, "conditions")):
        doing = "has failed" if "finishedAt" in status else "cannot begin"
        raise ActorQError(f"{where} {doing}: {status.get('reason')}")
    state = _ENDS.get(str(status.get("state")))
    return state and RecordedEnd(state, int(status.get("environmentSteps") or 0), status.get("return"))
