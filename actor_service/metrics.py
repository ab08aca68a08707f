"""An actor's Prometheus metrics, computed for each scrape and independent of the acting loop."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client import Metric

from actor_service.counts import ActorCounts
from actor_service.roles.actor_role import ActorRole
from actorq.domain.status import ActorReport
from actorq.telemetry.histogram import Histogram
from actorq.telemetry.metrics import counter, gauge, histogram, labelled_counter, labelled_gauge


class Simulators(Protocol):
    """The streams of simulators.

    refused: number of refused simulators. actions: number of actions sent. answer_seconds: times from step to answer.
    """

    refused: int
    actions: int
    answer_seconds: Histogram

    @property
    def streams(self) -> int:
        """Number of open streams."""
        ...

    @property
    def environments(self) -> int:
        """Number of environments of all open streams."""
        ...


def actor_metrics(role: ActorRole, door: Simulators | None = None) -> Iterator[Metric]:
    """The metric families of one actor or evaluator. door: of an actor for simulators."""
    report = role.status().report
    yield labelled_gauge(
        "actorq_actor_info",
        "Always 1; the labels are the name in the run and the role.",
        ("name", "role"),
        {(role.name, role.role): 1},
    )
    yield counter(
        "actorq_actor_environment_steps", "Transitions that this process has explored.", report.environment_steps
    )
    yield _policy_version(report.policy_version)
    yield gauge(
        "actorq_actor_served_policy_version",
        "Newest policy version that the quantizer, or its relay, has sent here; 0 before the first.",
        report.served_version,
    )
    yield gauge("actorq_actor_queued_segments", "Segments that the learner has not stored yet.", report.queued_segments)
    yield counter(
        "actorq_actor_acknowledged_segments",
        "Segments that the learner has stored; for an evaluator, evaluations.",
        role.acknowledged,
    )
    yield counter(
        "actorq_actor_waited_seconds",
        "Time that the environments waited because the upload queue was full, for credit or the network.",
        report.waited_seconds,
    )
    yield from _policies(report, role.counts)
    yield from _faults(role.counts)
    yield from _simulators(role.counts, door)


def server_metrics(counts: ActorCounts, door: Simulators, policy_version: int) -> Iterator[Metric]:
    """The metric families of a policy server."""
    yield _policy_version(policy_version)
    yield from _simulators(counts, door)


def _policy_version(version: int) -> Metric:
    return gauge("actorq_actor_policy_version", "Version of the acting policy; 0 before the first.", version)


def _policies(report: ActorReport, counts: ActorCounts) -> Iterator[Metric]:
    # Activations are read before loads, so that they never exceed loads: a policy counts as loaded before it acts.
    yield histogram(
        "actorq_actor_activation_seconds",
        "Time from the learner's snapshot of a policy to its first action here, by the clocks of both machines.",
        counts.activation_seconds,
    )
    yield histogram(
        "actorq_actor_load_seconds", "Time from a received policy to a loaded session.", counts.load_seconds
    )
    yield histogram(
        "actorq_actor_policy_wait_seconds",
        "Time that the environments waited for a newer policy because of actor.max_steps_per_policy.",
        counts.policy_wait_seconds,
    )
    yield labelled_gauge(
        "actorq_actor_avoided_scheme",
        "Always 1; the label is the scheme that this actor avoids because its processor computes it wrongly.",
        ("scheme",),
        {(report.avoided_scheme,): 1} if report.avoided_scheme else {},
    )
    yield gauge(
        "actorq_actor_scheme_error_ratio",
        "Mean error of the quantized policy on this processor, relative to its output range; 0 when unknown.",
        report.scheme_error,
    )


def _faults(counts: ActorCounts) -> Iterator[Metric]:
    yield labelled_counter(
        "actorq_actor_reconnects",
        "Retries after a stream broke or failed to open.",
        ("peer",),
        {("learner",): counts.learner_retries.value, ("quantizer",): counts.quantizer_retries.value},
    )
    yield counter(
        "actorq_actor_dropped_segments",
        "Segments dropped because all their steps were lost to failures of environments.",
        counts.dropped_segments.value,
    )
    yield labelled_counter(
        "actorq_actor_environment_faults",
        "Environments recreated after an error, or reset after a number out of range.",
        ("reason",),
        {("error",): counts.environment_restarts.value, ("out of range",): counts.environment_resets.value},
    )


def _simulators(counts: ActorCounts, door: Simulators | None) -> Iterator[Metric]:
    """The metric families of streams of simulators. door: None without streams."""
    yield gauge("actorq_actor_simulators", "Open streams of simulators.", door.streams if door else 0)
    yield gauge(
        "actorq_actor_simulator_environments",
        "Environments of all open streams of simulators.",
        door.environments if door else 0,
    )
    yield counter(
        "actorq_actor_refused_simulators",
        "Simulators refused because of their protocol, their spaces or a limit.",
        door.refused if door else 0,
    )
    yield counter(
        "actorq_actor_simulator_actions",
        "Actions sent to simulators: one for each environment of each answered step.",
        door.actions if door else 0,
    )
    yield histogram(
        "actorq_actor_simulator_answer_seconds",
        "Time from a simulator's step to its answer, with the waits for other streams and for the learner.",
        door.answer_seconds if door else None,
    )
    yield counter(
        "actorq_actor_cut_episodes",
        "Episodes that count as truncated because their simulator was too slow or went away.",
        counts.cut_episodes.value,
    )
