"""Policies: their descriptions, receipts and what a store retains."""

from actorq.policy import (
    FidelityReport,
    LayerReport,
    OutputError,
    PolicyDescriptor,
    RefusedRung,
    RetainedPolicy,
)
from actorq.status import Receipt
from actorq.v1 import policy_pb2, quantizer_pb2
from actorq.wire.processes import process_from_proto, process_to_proto
from actorq.wire.tensors import timestamp_from_proto, timestamp_to_proto


def descriptor_to_proto(descriptor: PolicyDescriptor) -> policy_pb2.PolicyDescriptor:
    """Encode a policy's description."""
    return policy_pb2.PolicyDescriptor(
        run_id=descriptor.run_id,
        version=descriptor.version,
        learner_step=descriptor.learner_step,
        scheme=descriptor.scheme,
        sha256=descriptor.sha256,
        size_bytes=descriptor.size_bytes,
        fp32_size_bytes=descriptor.fp32_size_bytes,
        snapshot_at=timestamp_to_proto(descriptor.snapshot_at),
        fidelity=_fidelity_to_proto(descriptor.fidelity),
        topology=descriptor.topology,
    )


def descriptor_from_proto(message: policy_pb2.PolicyDescriptor) -> PolicyDescriptor:
    """Decode a policy's description."""
    return PolicyDescriptor(
        run_id=message.run_id,
        version=message.version,
        learner_step=message.learner_step,
        scheme=message.scheme,
        sha256=message.sha256,
        size_bytes=message.size_bytes,
        fp32_size_bytes=message.fp32_size_bytes,
        snapshot_at=timestamp_from_proto(message.snapshot_at),
        fidelity=_fidelity_from_proto(message.fidelity),
        topology=message.topology,
    )


def _fidelity_to_proto(report: FidelityReport) -> policy_pb2.FidelityReport:
    return policy_pb2.FidelityReport(
        observations=report.observations,
        mean_error=report.mean_error,
        max_error=report.max_error,
        relative_mean_error=report.relative_mean_error,
        relative_max_error=report.relative_max_error,
        argmax_agreement=report.argmax_agreement,
        layers=[
            policy_pb2.LayerReport(
                name=layer.name,
                weights=layer.weights,
                reason=layer.reason,
                published_units=layer.published_units,
                units=layer.units,
            )
            for layer in report.layers
        ],
        outputs=[
            policy_pb2.OutputError(name=output.name, mean_errors=output.mean_errors, max_errors=output.max_errors)
            for output in report.outputs
        ],
        passed=report.passed,
        refused=[
            policy_pb2.RefusedRung(
                float_layers=rung.float_layers,
                relative_mean_error=rung.relative_mean_error,
                relative_max_error=rung.relative_max_error,
                argmax_agreement=rung.argmax_agreement,
            )
            for rung in report.refused
        ],
    )


def _fidelity_from_proto(message: policy_pb2.FidelityReport) -> FidelityReport:
    return FidelityReport(
        observations=message.observations,
        mean_error=message.mean_error,
        max_error=message.max_error,
        relative_mean_error=message.relative_mean_error,
        relative_max_error=message.relative_max_error,
        argmax_agreement=message.argmax_agreement if message.HasField("argmax_agreement") else None,
        layers=tuple(
            LayerReport(layer.name, layer.weights, layer.reason, layer.published_units, layer.units)
            for layer in message.layers
        ),
        outputs=tuple(
            OutputError(output.name, tuple(output.mean_errors), tuple(output.max_errors)) for output in message.outputs
        ),
        passed=message.passed,
        refused=tuple(
            RefusedRung(
                tuple(rung.float_layers),
                rung.relative_mean_error,
                rung.relative_max_error,
                rung.argmax_agreement if rung.HasField("argmax_agreement") else None,
            )
            for rung in message.refused
        ),
    )


def retained_to_proto(policy: RetainedPolicy) -> quantizer_pb2.RetainedPolicy:
    """Encode a retained version."""
    return quantizer_pb2.RetainedPolicy(
        version=policy.version,
        learner_step=policy.learner_step,
        schemes=policy.schemes,
        mean_return=policy.mean_return,
    )


def retained_from_proto(message: quantizer_pb2.RetainedPolicy) -> RetainedPolicy:
    """Decode a retained version."""
    return RetainedPolicy(
        version=message.version,
        learner_step=message.learner_step,
        schemes=tuple(message.schemes),
        mean_return=message.mean_return if message.HasField("mean_return") else None,
    )


def receipt_to_proto(receipt: Receipt) -> quantizer_pb2.Receipt:
    """Encode a receipt."""
    return quantizer_pb2.Receipt(
        version=receipt.version,
        policies=[descriptor_to_proto(descriptor) for descriptor in receipt.policies],
        emit_seconds=receipt.emit_seconds,
        subscribers=receipt.subscribers,
        process=process_to_proto(receipt.process),
    )


def receipt_from_proto(message: quantizer_pb2.Receipt) -> Receipt:
    """Decode a receipt."""
    return Receipt(
        version=message.version,
        policies=tuple(descriptor_from_proto(descriptor) for descriptor in message.policies),
        emit_seconds=message.emit_seconds,
        subscribers=message.subscribers,
        process=process_from_proto(message.process),
    )
