"""Prometheus metrics of a quantizer and of a relay, computed on the event loop for each scrape."""

from collections.abc import Callable, Iterator

from prometheus_client import Metric

from actorq.domain.policy import PolicyDescriptor
from actorq.telemetry.metrics import counter, gauge, histogram, scheme_counter, variant_counter, variant_gauge
from quantizer_service.serving.quantizer import Quantizer
from quantizer_service.serving.relay import Relay

# Gauges of the newest policy of each variant: name, description, and value (None if it has none).
_NEWEST: tuple[tuple[str, str, Callable[[PolicyDescriptor], float | None]], ...] = (
    ("actorq_quantizer_policy_version", "Version of the newest policy.", lambda policy: policy.version),
    ("actorq_quantizer_policy_bytes", "Size of the newest policy's model.", lambda policy: policy.size_bytes),
    (
        "actorq_quantizer_parameters_bytes",
        "Size of the newest policy's FP32 parameters.",
        lambda policy: policy.fp32_size_bytes,
    ),
    (
        "actorq_quantizer_float_layers",
        "Layers of the newest policy with weights in float.",
        lambda policy: len(policy.fidelity.float_layers),
    ),
    (
        "actorq_quantizer_argmax_agreement_ratio",
        "Share of calibration observations with the same best action in the newest policy and in FP32.",
        lambda policy: policy.fidelity.argmax_agreement,
    ),
    (
        "actorq_quantizer_relative_mean_error_ratio",
        "Mean action error of the newest policy, relative to the action range.",
        lambda policy: policy.fidelity.relative_mean_error,
    ),
    (
        "actorq_quantizer_relative_max_error_ratio",
        "Largest action error of the newest policy, relative to the action range.",
        lambda policy: policy.fidelity.relative_max_error,
    ),
    (
        "actorq_quantizer_mean_kl_nats",
        "Mean KL divergence of the newest policy from FP32; only for policies that output a distribution.",
        lambda policy: policy.fidelity.mean_kl,
    ),
    (
        "actorq_quantizer_max_kl_nats",
        "Largest KL divergence of the newest policy from FP32; only for policies that output a distribution.",
        lambda policy: policy.fidelity.max_kl,
    ),
)


def quantizer_metrics(quantizer: Quantizer) -> Iterator[Metric]:
    """The metric families of one quantizer."""
    worker, policies = quantizer.worker, quantizer.policies
    yield variant_counter("actorq_quantizer_policies", "Policies emitted for checkpoints.", quantizer.emitted)
    text = "Rungs of the ladder that the fidelity gate refused, for checkpoints."
    yield scheme_counter("actorq_quantizer_gate_refusals", text, quantizer.refusals)
    text = "Time from the last byte of a checkpoint to served policies."
    yield histogram("actorq_quantizer_emit_seconds", text, quantizer.emit_seconds)
    text = "Time since the running work began; 0 when no work runs."
    yield gauge("actorq_quantizer_work_age_seconds", text, worker.busy_s)
    text = "Jobs ended because they took longer than quantizer.work_limit_s."
    yield counter("actorq_quantizer_work_cancelled", text, worker.cancelled)
    text = "Learners refused for good: of another run, or with an outdated copy of the run's folder."
    yield counter("actorq_quantizer_publishers_refused", text, quantizer.publishers.refused)
    text = "Open streams of policies; relays count like actors."
    yield variant_gauge("actorq_quantizer_watchers", text, policies.watchers_by_variant)
    for name, text, value in _NEWEST:
        yield variant_gauge(name, text, {variant: value(each) for variant, each in policies.descriptors.items()})


def relay_metrics(relay: Relay) -> Iterator[Metric]:
    """The metric families of one relay."""
    policies = relay.policies
    # Policies that nobody watches are kept for an upstream that goes away. They get no newer versions.
    watched = policies.variants
    versions = {variant: policies.version(variant) for variant in watched if policies.version(variant)}
    lags = {variant: lag for variant, lag in relay.lag_seconds.items() if variant in watched}
    text = "Open streams of policies at this relay."
    yield variant_gauge("actorq_relay_watchers", text, policies.watchers_by_variant)
    text = "1 while the watched variant's stream from the upstream is open, 0 while it reconnects."
    yield variant_gauge("actorq_relay_upstream_connected", text, relay.connected)
    yield variant_counter("actorq_relay_policies", "Policies that the relay has passed on.", relay.relayed)
    yield variant_counter("actorq_relay_refused", "Policies of the upstream that the relay has refused.", relay.refused)
    yield variant_gauge("actorq_relay_policy_version", "Version of the newest policy.", versions)
    text = "Time from the learner's snapshot to the newest policy's arrival here, by the clocks of both machines."
    yield variant_gauge("actorq_relay_lag_seconds", text, lags)
