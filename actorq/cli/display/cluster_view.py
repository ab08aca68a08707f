"""The output of `actorq cluster status`: each pod, and the status of the run."""

from collections.abc import Sequence
from dataclasses import dataclass

from actorq.cli.display import numbers
from actorq.cli.display.display import status_line
from actorq.cluster.diagnosis import PodView
from actorq.domain.status import ActorStatus, RunStatus

_HEADER = ("POD", "ROLE", "PHASE", "POLICY", "STALENESS", "STEPS/S", "RESTARTS")


@dataclass(frozen=True)
class PodRow:
    """A pod with the learner's report about it; None for unknown values.

    staleness: number of versions between the acting policy and the newest published one.
    """

    pod: PodView
    version: int | None = None
    staleness: int | None = None
    steps_per_s: float | None = None


def rows(pods: Sequence[PodView], status: RunStatus | None) -> list[PodRow]:
    """A row for each pod. `status` is None if the learner cannot be asked."""
    if status is None:
        return [PodRow(pod) for pod in pods]
    actors = {actor.name: actor for actor in status.actors}
    return [_row(pod, status, actors.get(pod.name)) for pod in pods]


def table(pods: Sequence[PodRow]) -> str:
    """The pods in columns, never cut, so that names can be copied."""
    cells = [_HEADER, *map(_cells, pods)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADER))]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def summary(status: RunStatus) -> str:
    """The run in one line, with its target return."""
    target = "" if status.target_return is None else f"  target {status.target_return:,.1f}"
    return status_line(status) + target


def _cells(row: PodRow) -> tuple[str, ...]:
    pod = row.pod
    return (
        pod.name,
        pod.role,
        pod.phase if pod.ready or pod.phase != "Running" else "Running, not ready",
        "-" if row.version is None else f"v{row.version}",
        numbers.optional(row.staleness, 0),
        numbers.optional(row.steps_per_s, 0),
        str(pod.restarts),
    )


def _row(pod: PodView, status: RunStatus, actor: ActorStatus | None) -> PodRow:
    if pod.role == "learner":
        return PodRow(pod, status.policy_version or None)
    if pod.role == "quantizer" and status.emitted is not None:
        return PodRow(pod, status.emitted.version)
    report = actor.report if actor and actor.connected else None
    if report is None or report.policy_version == 0:
        return PodRow(pod)
    behind = max(0, status.policy_version - report.policy_version)
    return PodRow(pod, report.policy_version, behind, report.steps_per_second if pod.role == "actor" else None)
