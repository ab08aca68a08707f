"""What a quantizer and a relay tell Prometheus, read when it is asked for, on the event loop."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Metric

from actorq.domain.policy import PolicyDescriptor
from actorq.telemetry.metrics import counter, gauge, histogram, labelled_counter, labelled_gauge
from quantizer_service.serving.quantizer import Quantizer
from quantizer_service.serving.relay import Relay


def quantizer_metrics(quantizer: Quantizer) -> Iterator[Metric]:
    """The families of one quantizer."""
    counts = quantizer.counts

    def of_newest(name: str, text: str, value: Callable[[PolicyDescriptor], float | None]) -> Metric:
        values = {scheme: value(descriptor) for scheme, descriptor in quantizer.policies.descriptors.items()}
        return _gauge(f"quantizer_{name}", f"{text}, of the newest policy.", values)

    yield _counter("quantizer_policies", "Policies emitted as checkpoints came.", counts.policies)
    yield _counter(
        "quantizer_gate_refusals",
        "Rungs of the ladder that the fidelity gate did not let through, as checkpoints came.",
        counts.refusals,
    )
    yield histogram(
        "actorq_quantizer_emit_seconds",
        "From the last byte of a checkpoint to policies that are served.",
        counts.seconds,
    )
    yield gauge(
        "actorq_quantizer_work_age_seconds",
        "For how long the work has run that runs now; 0 when there is none.",
        quantizer.worker.busy_s,
    )
    yield counter(
        "actorq_quantizer_work_cancelled",
        "Work that was ended because it took longer than quantizer.work_limit_s.",
        quantizer.worker.cancelled,
    )
    yield _gauge(
        "quantizer_subscribers", "Streams of policies that are open.", quantizer.policies.subscribers_by_scheme
    )
    yield of_newest("policy_version", "Version", lambda policy: policy.version)
    yield of_newest("policy_bytes", "Size of the model", lambda policy: policy.size_bytes)
    yield of_newest("parameters_bytes", "Size of its FP32 parameters", lambda policy: policy.fp32_size_bytes)
    yield of_newest("float_layers", "Layers in float", lambda policy: len(policy.fidelity.float_layers))
    yield of_newest(
        "argmax_agreement_ratio",
        "Share of calibration observations with the same best action as FP32",
        lambda policy: policy.fidelity.argmax_agreement,
    )
    yield of_newest(
        "relative_mean_error_ratio",
        "Mean action error relative to the action range",
        lambda policy: policy.fidelity.relative_mean_error,
    )
    yield of_newest(
        "relative_max_error_ratio",
        "Largest action error relative to the action range",
        lambda policy: policy.fidelity.relative_max_error,
    )


def relay_metrics(relay: Relay) -> Iterator[Metric]:
    """The families of one relay."""
    versions = {scheme: descriptor.version for scheme, descriptor in relay.policies.descriptors.items()}
    yield _gauge("relay_subscribers", "Streams of policies that are open.", relay.policies.subscribers_by_scheme)
    yield _gauge(
        "relay_upstream_connected",
        "1 while the stream from the upstream is open, 0 while it is tried again; of the schemes that are watched.",
        relay.connected,
    )
    yield _counter("relay_policies", "Policies handed on.", relay.relayed)
    yield _counter("relay_refused", "Policies of the upstream that were refused.", relay.refused)
    yield _gauge("relay_policy_version", "Version of the newest policy.", versions)
    yield _gauge(
        "relay_lag_seconds",
        "From the learner's snapshot to the newest policy being here, by both clocks.",
        relay.lag_seconds,
    )


def _gauge(name: str, text: str, values: Mapping[str, float | None]) -> Metric:
    by_scheme: dict[tuple[str, ...], float | None] = {(scheme,): value for scheme, value in values.items()}
    return labelled_gauge(f"actorq_{name}", text, ("scheme",), by_scheme)


def _counter(name: str, text: str, values: Mapping[str, float]) -> Metric:
    return labelled_counter(f"actorq_{name}", text, ("scheme",), {(scheme,): count for scheme, count in values.items()})
