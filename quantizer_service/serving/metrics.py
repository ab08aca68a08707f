"""Prometheus metrics of a quantizer and of a relay, computed on the event loop for each scrape."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Metric

from actorq.domain.policy import PolicyDescriptor, Variant
from actorq.telemetry.metrics import counter, gauge, histogram, labelled_counter, variant_counter, variant_gauge
from quantizer_service.serving.quantizer import Quantizer
from quantizer_service.serving.relay import Relay


def quantizer_metrics(quantizer: Quantizer) -> Iterator[Metric]:
    """The metric families of one quantizer."""
    yield variant_counter("actorq_quantizer_policies", "Policies emitted for checkpoints.", quantizer.emitted)
    yield labelled_counter(
        "actorq_quantizer_gate_refusals",
        "Rungs of the ladder that the fidelity gate refused, for checkpoints.",
        ("scheme",),
        {(scheme,): count for scheme, count in quantizer.refusals.items()},
    )
    yield histogram(
        "actorq_quantizer_emit_seconds",
        "Time from the last byte of a checkpoint to served policies.",
        quantizer.emit_seconds,
    )
    yield gauge(
        "actorq_quantizer_work_age_seconds",
        "Time since the running work began; 0 when no work runs.",
        quantizer.worker.busy_s,
    )
    yield counter(
        "actorq_quantizer_work_cancelled",
        "Jobs ended because they took longer than quantizer.work_limit_s.",
        quantizer.worker.cancelled,
    )
    yield counter(
        "actorq_quantizer_publishers_refused",
        "Learners refused for good: of another run, or with an outdated copy of the run's folder.",
        quantizer.publishers.refused,
    )
    yield variant_gauge(
        "actorq_quantizer_watchers",
        "Open streams of policies; relays count like actors.",
        quantizer.policies.watchers_by_variant,
    )
    yield from _newest_policies(quantizer.policies.descriptors)


def _newest_policies(policies: Mapping[Variant, PolicyDescriptor]) -> Iterator[Metric]:
    def newest(value: Callable[[PolicyDescriptor], float | None]) -> dict[Variant, float | None]:
        return {variant: value(policy) for variant, policy in policies.items()}

    yield variant_gauge(
        "actorq_quantizer_policy_version", "Version of the newest policy.", newest(lambda policy: policy.version)
    )
    yield variant_gauge(
        "actorq_quantizer_policy_bytes", "Size of the newest policy's model.", newest(lambda policy: policy.size_bytes)
    )
    yield variant_gauge(
        "actorq_quantizer_parameters_bytes",
        "Size of the newest policy's FP32 parameters.",
        newest(lambda policy: policy.fp32_size_bytes),
    )
    yield variant_gauge(
        "actorq_quantizer_float_layers",
        "Layers of the newest policy with weights in float.",
        newest(lambda policy: len(policy.fidelity.float_layers)),
    )
    yield variant_gauge(
        "actorq_quantizer_argmax_agreement_ratio",
        "Share of calibration observations with the same best action in the newest policy and in FP32.",
        newest(lambda policy: policy.fidelity.argmax_agreement),
    )
    yield variant_gauge(
        "actorq_quantizer_relative_mean_error_ratio",
        "Mean action error of the newest policy, relative to the action range.",
        newest(lambda policy: policy.fidelity.relative_mean_error),
    )
    yield variant_gauge(
        "actorq_quantizer_relative_max_error_ratio",
        "Largest action error of the newest policy, relative to the action range.",
        newest(lambda policy: policy.fidelity.relative_max_error),
    )
    yield variant_gauge(
        "actorq_quantizer_mean_kl_nats",
        "Mean KL divergence of the newest policy from FP32; only for policies that output a distribution.",
        newest(lambda policy: policy.fidelity.mean_kl),
    )
    yield variant_gauge(
        "actorq_quantizer_max_kl_nats",
        "Largest KL divergence of the newest policy from FP32; only for policies that output a distribution.",
        newest(lambda policy: policy.fidelity.max_kl),
    )
    yield variant_gauge(
        "actorq_quantizer_state_drift_ratio",
        "Drift of the newest policy's state over stored sequences, relative to its range; only with memory.",
        newest(lambda policy: policy.fidelity.state_drift),
    )


def relay_metrics(relay: Relay) -> Iterator[Metric]:
    """The metric families of one relay."""
    # Unwatched policies are kept in case the upstream goes away. They get no newer versions.
    watched = relay.policies.variants
    versions = {variant: relay.policies.version(variant) for variant in watched if relay.policies.version(variant)}
    lags = {variant: lag for variant, lag in relay.lag_seconds.items() if variant in watched}
    yield variant_gauge(
        "actorq_relay_watchers", "Open streams of policies at this relay.", relay.policies.watchers_by_variant
    )
    yield variant_gauge(
        "actorq_relay_upstream_connected",
        "1 while the watched variant's stream from the upstream is open, 0 while it reconnects.",
        relay.connected,
    )
    yield variant_counter("actorq_relay_policies", "Policies that the relay has forwarded.", relay.relayed)
    yield variant_counter("actorq_relay_refused", "Policies of the upstream that the relay has refused.", relay.refused)
    yield variant_gauge("actorq_relay_policy_version", "Version of the newest policy.", versions)
    yield variant_gauge(
        "actorq_relay_lag_seconds",
        "Time from the learner's snapshot to the newest policy's arrival here, by the clocks of both machines.",
        lags,
    )
