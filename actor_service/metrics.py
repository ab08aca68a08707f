"""What an actor tells Prometheus, read when it is asked for: the loop that acts knows nothing of it."""

from collections.abc import Iterator

from prometheus_client import Metric

from actor_service.roles.actor import Actor
from actorq.telemetry.metrics import counter, gauge, histogram, labelled_counter, labelled_gauge


def actor_metrics(actor: Actor) -> Iterator[Metric]:
    """The families of one actor or evaluator."""
    report, counts = actor.status().report, actor.counts
    yield labelled_gauge(
        "actorq_actor_info",
        "Always 1; tells the name in the run and the role.",
        ("name", "role"),
        {(actor.name, actor.role): 1},
    )
    yield counter(
        "actorq_actor_environment_steps", "Transitions of this process's exploration.", report.environment_steps
    )
    yield gauge("actorq_actor_policy_version", "Version that acts; 0 before the first.", report.policy_version)
    yield gauge("actorq_actor_queued_segments", "Segments that the learner has not stored yet.", report.queued_segments)
    yield counter(
        "actorq_actor_acknowledged_segments",
        "Segments, of an evaluator evaluations, that the learner has stored.",
        actor.acknowledged,
    )
    yield counter(
        "actorq_actor_waited_seconds",
        "Time in which the environments waited because the queue was full: for credit or the network.",
        report.waited_seconds,
    )
    # Before the loads, which come first there: what was read as active has been read as loaded.
    yield histogram(
        "actorq_actor_activation_seconds",
        "From the learner's snapshot of a policy to its first action here, by both clocks.",
        counts.activation_seconds,
    )
    yield histogram(
        "actorq_actor_load_seconds", "From a received policy to a session that is ready to act.", counts.load_seconds
    )
    yield histogram(
        "actorq_actor_policy_wait_seconds",
        "Time in which the environments waited for a newer policy, because of actor.max_steps_per_policy.",
        counts.policy_wait_seconds,
    )
    yield labelled_gauge(
        "actorq_actor_avoided_scheme",
        "Always 1; the scheme that this actor avoids because its processor computes it wrongly.",
        ("scheme",),
        {(report.avoided_scheme,): 1} if report.avoided_scheme else {},
    )
    yield gauge(
        "actorq_actor_scheme_error_ratio",
        "Mean error of the quantized policy on this processor relative to the range of its outputs; 0 when not known.",
        report.scheme_error,
    )
    yield labelled_counter(
        "actorq_actor_reconnects",
        "Streams that broke or could not be opened, and were tried again.",
        ("peer",),
        {("learner",): counts.learner_retries.value, ("quantizer",): counts.quantizer_retries.value},
    )
    yield counter(
        "actorq_actor_dropped_segments",
        "Segments that were dropped because an environment failed in them.",
        counts.dropped_segments.value,
    )
    yield labelled_counter(
        "actorq_actor_environment_faults",
        "Environments that were made anew after an error, or reset after NaN or infinity.",
        ("reason",),
        {("error",): counts.environment_restarts.value, ("not finite",): counts.environment_resets.value},
    )
