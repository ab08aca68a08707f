"""What the quantizer tells Prometheus, read when it is asked for."""

from collections.abc import Callable, Iterator

from prometheus_client import Metric

from actorq.domain.policy import PolicyDescriptor
from actorq.telemetry.metrics import counter, gauge, histogram, labelled_counter, labelled_gauge
from quantizer_service.serving.quantizer import Quantizer


def quantizer_metrics(quantizer: Quantizer) -> Iterator[Metric]:
    """The families of one quantizer; called on the event loop."""
    emissions = quantizer.emissions

    def of_newest(name: str, text: str, value: Callable[[PolicyDescriptor], float | None]) -> Metric:
        values: dict[tuple[str, ...], float | None] = {
            (scheme,): value(descriptor) for scheme, descriptor in emissions.newest.items()
        }
        return labelled_gauge(f"actorq_quantizer_{name}", f"{text}, of the newest policy.", ("scheme",), values)

    yield labelled_counter(
        "actorq_quantizer_policies",
        "Policies emitted as checkpoints came.",
        ("scheme",),
        {(scheme,): count for scheme, count in emissions.policies.items()},
    )
    yield labelled_counter(
        "actorq_quantizer_gate_refusals",
        "Rungs of the ladder that the fidelity gate did not let through, as checkpoints came.",
        ("scheme",),
        {(scheme,): count for scheme, count in emissions.refusals.items()},
    )
    yield histogram(
        "actorq_quantizer_emit_seconds",
        "From the last byte of a checkpoint to policies that are served.",
        emissions.seconds,
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
    yield labelled_gauge(
        "actorq_quantizer_subscribers",
        "Streams of policies that are open.",
        ("scheme",),
        {(scheme,): count for scheme, count in quantizer.subscribers_by_scheme.items()},
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
