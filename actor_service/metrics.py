"""An actor's Prometheus metrics, computed for each scrape and independent of the acting loop."""

from collections.abc import Iterator

from prometheus_client import Metric

from actor_service.counts import ActorCounts
from actor_service.roles.actor_role import ActorRole
from actorq.domain.status import ActorReport
from actorq.telemetry.metrics import counter, gauge, histogram, labelled_counter, labelled_gauge


def actor_metrics(role: ActorRole) -> Iterator[Metric]:
    """The metric families of one actor or evaluator."""
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
    yield gauge(
        "actorq_actor_policy_version", "Version of the acting policy; 0 before the first.", report.policy_version
    )
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
