"""The output of `actorq cluster status`: each pod, and the status of the run."""

from collections.abc import Sequence

from actorq.domain.status import RunStatus
from actorq.text import return_text
from actorq_apps.cli.display import numbers
from actorq_apps.cli.display.display import status_line
from actorq_apps.cluster.diagnosis import PodView
from actorq_apps.cluster.training_runs import RecordedEnd

_HEADER = ("POD", "ROLE", "PHASE", "POLICY", "STALENESS", "STEPS/S", "RESTARTS")


def table(pods: Sequence[PodView], status: RunStatus | None) -> str:
    """The pods in columns, never cut, so that names can be copied. `status` is None if the learner does not answer."""
    cells = [_HEADER, *(_cells(pod, status) for pod in pods)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADER))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def summary(status: RunStatus | RecordedEnd) -> str:
    """The run in one line, with its target if the learner has reported it."""
    if isinstance(status, RecordedEnd):
        mean_return = return_text(status.mean_return)
        return f"{status.state.value}  steps {status.environment_steps:,}  return(eval) {mean_return}"
    target = numbers.target(status)
    return status_line(status) + (f"  target {target}" if target else "")


def _cells(pod: PodView, status: RunStatus | None) -> tuple[str, ...]:
    """The pod with the learner's report about it. Staleness: versions between the actor's and the newest policy."""
    version, staleness, steps_per_s = 0, None, None
    reports = {actor.name: actor.report for actor in status.actors if actor.connected} if status else {}
    if status and pod.role == "learner":
        version = status.policy_version
    elif status and status.emitted and pod.role == "quantizer":
        version = status.emitted.version
    elif status and (report := reports.get(pod.name)) and report.policy_version:
        version, staleness = report.policy_version, max(0, status.policy_version - report.policy_version)
        steps_per_s = report.steps_per_second if pod.role == "actor" else None
    return (
        pod.name,
        pod.role,
        pod.phase if pod.ready or pod.phase != "Running" else "Running, not ready",
        f"v{version}" if version else "-",
        numbers.optional(staleness, 0),
        numbers.optional(steps_per_s, 0),
        str(pod.restarts),
    )
