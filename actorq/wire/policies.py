"""Messages about policies: descriptors, receipts, contents of a store."""

import math

from actorq.domain.policy import (
    FidelityReport,
    LayerReport,
    OutputError,
    PolicyDescriptor,
    RefusedRung,
    RetainedPolicy,
)
from actorq.domain.status import Receipt
from actorq.v1 import policy_pb2, quantizer_pb2
from actorq.wire import bounds
from actorq.wire.processes import process_from_proto, process_to_proto
from actorq.wire.tensors import timestamp_from_proto, timestamp_to_proto


def descriptor_to_proto(descriptor: PolicyDescriptor) -> policy_pb2.PolicyDescriptor:
    """Encode a policy's descriptor."""
    snapshot_at, fidelity = timestamp_to_proto(descriptor.snapshot_at), _fidelity_to_proto(descriptor.fidelity)
    return policy_pb2.PolicyDescriptor(**vars(descriptor) | {"snapshot_at": snapshot_at, "fidelity": fidelity})


def descriptor_from_proto(message: policy_pb2.PolicyDescriptor) -> PolicyDescriptor:
    """Decode a policy's descriptor."""
    return PolicyDescriptor(
        run_id=bounds.name("policy.run_id", message.run_id),
        version=bounds.version("policy.version", message.version),
        learner_step=bounds.count("policy.learner_step", message.learner_step),
        scheme=bounds.name("policy.scheme", message.scheme),
        sha256=bounds.digest("policy.sha256", message.sha256),
        size_bytes=bounds.count("policy.size_bytes", message.size_bytes),
        fp32_size_bytes=bounds.count("policy.fp32_size_bytes", message.fp32_size_bytes),
        snapshot_at=timestamp_from_proto(message.snapshot_at, "policy.snapshot_at"),
        fidelity=_fidelity_from_proto(message.fidelity),
        topology=bounds.digest("policy.topology", message.topology) if message.topology else b"",
    )


def _fidelity_to_proto(report: FidelityReport) -> policy_pb2.FidelityReport:
    lists = {
        "layers": [policy_pb2.LayerReport(**vars(layer)) for layer in report.layers],
        "outputs": [policy_pb2.OutputError(**vars(output)) for output in report.outputs],
        "refused": [policy_pb2.RefusedRung(**vars(rung)) for rung in report.refused],
    }
    return policy_pb2.FidelityReport(**vars(report) | lists)


def _fidelity_from_proto(message: policy_pb2.FidelityReport) -> FidelityReport:
    agreement = message.argmax_agreement if message.HasField("argmax_agreement") else None
    return FidelityReport(
        observations=message.observations,
        mean_error=_error("mean_error", message.mean_error),
        max_error=_error("max_error", message.max_error),
        relative_mean_error=_error("relative_mean_error", message.relative_mean_error),
        relative_max_error=_error("relative_max_error", message.relative_max_error),
        argmax_agreement=_agreement(agreement),
        layers=tuple(map(_layer_from_proto, bounds.items("fidelity.layers", message.layers, bounds.MAX_LAYERS))),
        outputs=tuple(map(_output_from_proto, bounds.items("fidelity.outputs", message.outputs, bounds.MAX_OUTPUTS))),
        passed=message.passed,
        refused=tuple(map(_rung_from_proto, bounds.items("fidelity.refused", message.refused, bounds.MAX_RUNGS))),
        mean_kl=_error("mean_kl", message.mean_kl) if message.HasField("mean_kl") else None,
        max_kl=_error("max_kl", message.max_kl) if message.HasField("max_kl") else None,
        value_loss=bounds.within("fidelity.value_loss", message.value_loss, 0.0, 1.0)
        if message.HasField("value_loss")
        else None,
    )


def _layer_from_proto(message: policy_pb2.LayerReport) -> LayerReport:
    return LayerReport(
        name=bounds.text("layer.name", message.name),
        weights=bounds.name("layer.weights", message.weights),
        reason=bounds.text("layer.reason", message.reason),
        published_units=message.published_units,
        units=message.units,
    )


def _output_from_proto(message: policy_pb2.OutputError) -> OutputError:
    bounds.items("output.mean_errors", message.mean_errors, bounds.MAX_OUTPUT_COMPONENTS)
    bounds.items("output.max_errors", message.max_errors, bounds.MAX_OUTPUT_COMPONENTS)
    return OutputError(
        name=bounds.text("output.name", message.name),
        mean_errors=tuple(_error("mean_errors", error) for error in message.mean_errors),
        max_errors=tuple(_error("max_errors", error) for error in message.max_errors),
    )


def _rung_from_proto(message: policy_pb2.RefusedRung) -> RefusedRung:
    layers = bounds.items("refused.float_layers", message.float_layers, bounds.MAX_LAYERS)
    return RefusedRung(
        float_layers=tuple(bounds.text("refused.float_layers", layer) for layer in layers),
        relative_mean_error=_error("relative_mean_error", message.relative_mean_error),
        relative_max_error=_error("relative_max_error", message.relative_max_error),
        argmax_agreement=_agreement(message.argmax_agreement if message.HasField("argmax_agreement") else None),
        mean_kl=_error("mean_kl", message.mean_kl) if message.HasField("mean_kl") else None,
        max_kl=_error("max_kl", message.max_kl) if message.HasField("max_kl") else None,
    )


def _error(what: str, value: float) -> float:
    # The fidelity gate has refused a policy with an infinite error.
    return value if value == math.inf else bounds.amount(f"fidelity.{what}", value, bounds.MAX_MAGNITUDE)


def _agreement(value: float | None) -> float | None:
    return None if value is None else bounds.within("fidelity.argmax_agreement", value, 0.0, 1.0)


def retained_to_proto(policy: RetainedPolicy) -> quantizer_pb2.RetainedPolicy:
    """Encode a retained version."""
    return quantizer_pb2.RetainedPolicy(**vars(policy))


def retained_from_proto(message: quantizer_pb2.RetainedPolicy) -> RetainedPolicy:
    """Decode a retained version."""
    schemes = bounds.items("retained.schemes", message.schemes, bounds.MAX_SCHEMES)
    return RetainedPolicy(
        version=bounds.version("retained.version", message.version),
        learner_step=bounds.count("retained.learner_step", message.learner_step),
        schemes=tuple(bounds.name("retained.schemes", scheme) for scheme in schemes),
        mean_return=(
            bounds.figure("retained.mean_return", message.mean_return) if message.HasField("mean_return") else None
        ),
    )


def receipt_to_proto(receipt: Receipt) -> quantizer_pb2.Receipt:
    """Encode a receipt."""
    policies = [descriptor_to_proto(descriptor) for descriptor in receipt.policies]
    return quantizer_pb2.Receipt(**vars(receipt) | {"policies": policies, "process": process_to_proto(receipt.process)})


def receipt_from_proto(message: quantizer_pb2.Receipt) -> Receipt:
    """Decode a receipt."""
    policies = bounds.items("receipt.policies", message.policies, bounds.MAX_SCHEMES)
    return Receipt(
        version=bounds.version("receipt.version", message.version),
        policies=tuple(map(descriptor_from_proto, policies)),
        emit_seconds=bounds.seconds("receipt.emit_seconds", message.emit_seconds),
        subscribers=message.subscribers,
        process=process_from_proto(message.process),
    )
