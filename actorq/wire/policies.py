"""Messages about policies: descriptors, receipts, contents of a store."""

import math

from actorq.domain.policy import FidelityReport, LayerReport, OutputError, PolicyDescriptor, RefusedRung, RetainedPolicy
from actorq.domain.status import Receipt
from actorq.v1 import policy_pb2, quantizer_pb2
from actorq.wire import bounds
from actorq.wire.fields import Fields, each
from actorq.wire.processes import process_from_proto, process_to_proto
from actorq.wire.tensors import timestamp_to_proto


def _error(what: str, value: float) -> float:
    # The fidelity gate has refused a policy with an infinite error.
    return value if value == math.inf else bounds.amount(what, value)


def descriptor_to_proto(descriptor: PolicyDescriptor) -> policy_pb2.PolicyDescriptor:
    """Encode a policy's descriptor."""
    snapshot_at, fidelity = timestamp_to_proto(descriptor.snapshot_at), _fidelity_to_proto(descriptor.fidelity)
    return policy_pb2.PolicyDescriptor(**vars(descriptor) | {"snapshot_at": snapshot_at, "fidelity": fidelity})


_DESCRIPTOR = Fields(
    policy_pb2.PolicyDescriptor,
    "policy.",
    {
        bounds.name: "run_id scheme",
        bounds.version: "version",
        bounds.count: "learner_step size_bytes fp32_size_bytes",
        bounds.digest: "sha256",
    },
)


def descriptor_from_proto(message: policy_pb2.PolicyDescriptor) -> PolicyDescriptor:
    """Decode a policy's descriptor."""
    return PolicyDescriptor(
        **_DESCRIPTOR.of(message),
        snapshot_at=bounds.unix_seconds("policy.snapshot_at", message.snapshot_at),
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


_FIDELITY = Fields(
    policy_pb2.FidelityReport,
    "fidelity.",
    {
        _error: "mean_error max_error relative_mean_error relative_max_error mean_kl max_kl",
        bounds.share: "argmax_agreement value_loss",
    },
)


def _fidelity_from_proto(message: policy_pb2.FidelityReport) -> FidelityReport:
    return FidelityReport(
        **_FIDELITY.of(message),
        observations=message.observations,
        layers=tuple(map(_layer_from_proto, bounds.items("fidelity.layers", message.layers, bounds.MAX_LAYERS))),
        outputs=tuple(map(_output_from_proto, bounds.items("fidelity.outputs", message.outputs, bounds.MAX_OUTPUTS))),
        passed=message.passed,
        refused=tuple(map(_rung_from_proto, bounds.items("fidelity.refused", message.refused, bounds.MAX_RUNGS))),
    )


_LAYER = Fields(policy_pb2.LayerReport, "layer.", {bounds.text: "name reason", bounds.name: "weights"})


def _layer_from_proto(message: policy_pb2.LayerReport) -> LayerReport:
    texts = _LAYER.of(message)
    return LayerReport(**texts, published_units=message.published_units, units=message.units)


def _output_from_proto(message: policy_pb2.OutputError) -> OutputError:
    bounds.items("output.mean_errors", message.mean_errors, bounds.MAX_OUTPUT_COMPONENTS)
    bounds.items("output.max_errors", message.max_errors, bounds.MAX_OUTPUT_COMPONENTS)
    return OutputError(
        name=bounds.text("output.name", message.name),
        mean_errors=tuple(_error("fidelity.mean_errors", error) for error in message.mean_errors),
        max_errors=tuple(_error("fidelity.max_errors", error) for error in message.max_errors),
    )


_RUNG = Fields(
    policy_pb2.RefusedRung,
    "fidelity.",
    {_error: "relative_mean_error relative_max_error mean_kl max_kl", bounds.share: "argmax_agreement"},
)


def _rung_from_proto(message: policy_pb2.RefusedRung) -> RefusedRung:
    layers = each(bounds.text, "refused.float_layers", message.float_layers, bounds.MAX_LAYERS)
    return RefusedRung(float_layers=layers, **_RUNG.of(message))


def retained_to_proto(policy: RetainedPolicy) -> quantizer_pb2.RetainedPolicy:
    """Encode a retained version."""
    return quantizer_pb2.RetainedPolicy(**vars(policy))


_RETAINED = Fields(
    quantizer_pb2.RetainedPolicy,
    "retained.",
    {bounds.version: "version", bounds.count: "learner_step", bounds.figure: "mean_return"},
)


def retained_from_proto(message: quantizer_pb2.RetainedPolicy) -> RetainedPolicy:
    """Decode a retained version."""
    schemes = each(bounds.name, "retained.schemes", message.schemes, bounds.MAX_SCHEMES)
    return RetainedPolicy(schemes=schemes, **_RETAINED.of(message))


def receipt_to_proto(receipt: Receipt) -> quantizer_pb2.Receipt:
    """Encode a receipt."""
    policies = [descriptor_to_proto(descriptor) for descriptor in receipt.policies]
    return quantizer_pb2.Receipt(**vars(receipt) | {"policies": policies, "process": process_to_proto(receipt.process)})


_RECEIPT = Fields(quantizer_pb2.Receipt, "receipt.", {bounds.version: "version", bounds.seconds: "emit_seconds"})


def receipt_from_proto(message: quantizer_pb2.Receipt) -> Receipt:
    """Decode a receipt."""
    return Receipt(
        **_RECEIPT.of(message),
        policies=tuple(
            map(descriptor_from_proto, bounds.items("receipt.policies", message.policies, bounds.MAX_SCHEMES))
        ),
        subscribers=message.subscribers,
        process=process_from_proto(message.process),
    )
