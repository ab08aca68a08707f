"""Checks which Secrets the pods of a run may read: only Secrets that their owner has labeled for runs."""

from actorq.errors import UnavailableError, UserError
from actorq_apps.cluster.connection import Cluster, UnreachableError
from actorq_apps.cluster.diagnosis import Fault
from actorq_apps.cluster.objects import Object, part
from actorq_apps.operator.differences import refusal
from actorq_apps.operator.resource.training_run import DEFAULT_SECRET, SECRET_LABEL, TrainingRun


def check(cluster: Cluster, run: TrainingRun) -> tuple[Object | None, Fault | None]:
    """The labels of the Secret for the run's checkpoints (None without one), and why the run may not read its Secrets.

    Raises UnavailableError when the cluster does not answer.
    """
    name = run.spec.checkpoint.secret
    try:
        labels = _labels(cluster, name) if run.spec.has_object_storage else None
        fault = None
        # Without a Secret of the default name, the learner uses its service account.
        if run.spec.has_object_storage and (labels is not None or name != DEFAULT_SECRET):
            fault = _fault(run, name, labels, "spec.checkpoint.secret")
        for other in run.spec.secrets:
            fault = fault or _fault(run, other, _labels(cluster, other), "a pod's env")
    except UnreachableError as error:
        # This error is not a fault of the specification.
        raise UnavailableError(str(error)) from error
    except UserError as error:
        return None, refusal(error)
    return labels, fault


def _labels(cluster: Cluster, name: str) -> Object | None:
    secret = cluster.get("v1", "Secret", name)
    return None if secret is None else part(secret, "metadata", "labels")


def _fault(run: TrainingRun, name: str, labels: Object | None, where: str) -> Fault | None:
    """Why a run may not read a Secret. where: the field that names the Secret."""
    if labels is None:
        return Fault(f"Secret {name}", f"of {where} is missing: make it, with its label", reason="NoSecret")
    if labels.get(SECRET_LABEL) == "true":
        return None
    command = f"kubectl label -n {run.namespace} secret {name} {SECRET_LABEL}=true"
    return Fault(f"Secret {name}", f"is not labeled for runs: its owner allows it with `{command}`", reason="NoSecret")
