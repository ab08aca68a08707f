"""Policies: their descriptions, receipts and what a store retains."""

from actorq.policy import FidelityReport, PolicyDescriptor, RetainedPolicy
from actorq.status import Receipt
from actorq.v1 import policy_pb2, quantizer_pb2
from actorq.wire.processes import process_from_proto, process_to_proto
from actorq.wire.tensors import timestamp_from_proto, timestamp_to_proto


def descriptor_to_proto(descriptor: PolicyDescriptor) -> policy_pb2.PolicyDescriptor:
    """Encode a policy's description."""
    report = descriptor.fidelity
    return policy_pb2.PolicyDescriptor(
        run_id=descriptor.run_id,
        version=descriptor.version,
        learner_step=descriptor.learner_step,
        scheme=descriptor.scheme,
        sha256=descriptor.sha256,
        size_bytes=descriptor.size_bytes,
        fp32_size_bytes=descriptor.fp32_size_bytes,
        snapshot_at=timestamp_to_proto(descriptor.snapshot_at),
        fidelity=policy_pb2.FidelityReport(
            observations=report.observations,
            mean_error=report.mean_error,
            max_error=report.max_error,
            relative_mean_error=report.relative_mean_error,
            relative_max_error=report.relative_max_error,
            argmax_agreement=report.argmax_agreement,
            float_layers=report.float_layers,
        ),
    )


def descriptor_from_proto(message: policy_pb2.PolicyDescriptor) -> PolicyDescriptor:
    """Decode a policy's description."""
    report = message.fidelity
    return PolicyDescriptor(
        run_id=message.run_id,
        version=message.version,
        learner_step=message.learner_step,
        scheme=message.scheme,
        sha256=message.sha256,
        size_bytes=message.size_bytes,
        fp32_size_bytes=message.fp32_size_bytes,
        snapshot_at=timestamp_from_proto(message.snapshot_at),
        fidelity=FidelityReport(
            observations=report.observations,
            mean_error=report.mean_error,
            max_error=report.max_error,
            relative_mean_error=report.relative_mean_error,
            relative_max_error=report.relative_max_error,
            argmax_agreement=report.argmax_agreement if report.HasField("argmax_agreement") else None,
            float_layers=tuple(report.float_layers),
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
