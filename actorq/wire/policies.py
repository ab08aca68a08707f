"""Messages about policies: descriptors, receipts, contents of a store."""

import math
from typing import Any

from actorq.domain import limits
from actorq.domain.limits import MAX_BLOB_BYTES, MAX_MESSAGE_BYTES
from actorq.domain.policy import (
    SIGNED,
    UNSIGNED,
    WEIGHT_ENCODINGS,
    FidelityReport,
    LayerReport,
    OutputError,
    Policy,
    PolicyDescriptor,
    RefusedRung,
    RetainedPolicy,
    Variant,
)
from actorq.domain.status import Receipt
from actorq.errors import ExhaustedError, InvalidInputError
from actorq.transport.payload.blobs import BlobAssembler
from actorq.v1 import policy_pb2, quantizer_pb2, tensor_pb2
from actorq.wire import bounds
from actorq.wire.fields import Fields, each
from actorq.wire.processes import process_from_proto, process_to_proto
from actorq.wire.tensors import timestamp_to_proto

MAX_POLICY_MESSAGES = 8 * 1024
"""Senders use chunks of 512 KiB. Many tiny chunks are refused, because each message needs extra memory."""


_WEIGHT_ENCODINGS = {
    SIGNED: policy_pb2.WEIGHT_ENCODING_SIGNED,
    UNSIGNED: policy_pb2.WEIGHT_ENCODING_UNSIGNED,
}


def _error(what: str, value: float) -> float:
    # The fidelity gate has refused a policy with an infinite error.
    return value if value == math.inf else bounds.amount(what, value)


def descriptor_to_proto(descriptor: PolicyDescriptor) -> policy_pb2.PolicyDescriptor:
    """Encode a policy's descriptor."""
    encoded = {
        "snapshot_at": timestamp_to_proto(descriptor.snapshot_at),
        "fidelity": _fidelity_to_proto(descriptor.fidelity),
        **variant_to_proto(descriptor.variant),
    }
    return policy_pb2.PolicyDescriptor(**vars(descriptor) | encoded)


def variant_to_proto(variant: Variant) -> dict[str, Any]:
    """The fields `scheme` and `weight_encoding` of a message. Signed weights are the default, as for older peers."""
    number = 0 if variant.weight_encoding == SIGNED else _WEIGHT_ENCODINGS[variant.weight_encoding]
    return {"scheme": variant.scheme, "weight_encoding": number}


def weight_encoding(what: str, number: int) -> str:
    """Decode an encoding of int8 weights."""
    if not number:
        return SIGNED
    for name, known in _WEIGHT_ENCODINGS.items():
        if known == number:
            return name
    raise InvalidInputError(f"{what}: expected {' or '.join(WEIGHT_ENCODINGS)}, got the unknown encoding {number}")


_DESCRIPTOR = Fields(
    policy_pb2.PolicyDescriptor,
    "policy.",
    {
        bounds.name: "run_id scheme",
        bounds.version: "version",
        bounds.count: "learner_step size_bytes fp32_size_bytes",
        bounds.digest: "sha256",
        weight_encoding: "weight_encoding",
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
        layers=tuple(map(_layer_from_proto, bounds.items("fidelity.layers", message.layers, limits.MAX_LAYERS))),
        outputs=tuple(map(_output_from_proto, bounds.items("fidelity.outputs", message.outputs, limits.MAX_OUTPUTS))),
        passed=message.passed,
        refused=tuple(map(_rung_from_proto, bounds.items("fidelity.refused", message.refused, limits.MAX_RUNGS))),
    )


_LAYER = Fields(policy_pb2.LayerReport, "layer.", {bounds.text: "name reason", bounds.name: "weights"})


def _layer_from_proto(message: policy_pb2.LayerReport) -> LayerReport:
    texts = _LAYER.of(message)
    return LayerReport(**texts, published_units=message.published_units, units=message.units)


def _output_from_proto(message: policy_pb2.OutputError) -> OutputError:
    bounds.items("output.mean_errors", message.mean_errors, limits.MAX_OUTPUT_COMPONENTS)
    bounds.items("output.max_errors", message.max_errors, limits.MAX_OUTPUT_COMPONENTS)
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
    layers = each(bounds.text, "refused.float_layers", message.float_layers, limits.MAX_LAYERS)
    return RefusedRung(float_layers=layers, **_RUNG.of(message))


def retained_to_proto(policy: RetainedPolicy) -> quantizer_pb2.RetainedPolicy:
    """Encode a retained version."""
    variants = [policy_pb2.PolicyVariant(**variant_to_proto(variant)) for variant in policy.variants]
    return quantizer_pb2.RetainedPolicy(**vars(policy) | {"schemes": policy.schemes, "variants": variants})


_VARIANT = Fields(policy_pb2.PolicyVariant, "retained.", {bounds.name: "scheme", weight_encoding: "weight_encoding"})
_RETAINED = Fields(
    quantizer_pb2.RetainedPolicy,
    "retained.",
    {bounds.version: "version", bounds.count: "learner_step", bounds.figure: "mean_return"},
)


def retained_from_proto(message: quantizer_pb2.RetainedPolicy) -> RetainedPolicy:
    """Decode a retained version."""
    schemes = each(bounds.name, "retained.schemes", message.schemes, limits.MAX_SCHEMES)
    variants = bounds.items("retained.variants", message.variants, limits.MAX_VARIANTS)
    # An older quantizer tells schemes only.
    found = tuple(Variant(**_VARIANT.of(variant)) for variant in variants) or tuple(map(Variant, schemes))
    return RetainedPolicy(variants=found, **_RETAINED.of(message))


def receipt_to_proto(receipt: Receipt) -> quantizer_pb2.Receipt:
    """Encode a receipt."""
    policies = [descriptor_to_proto(descriptor) for descriptor in receipt.policies]
    encoded = {"policies": policies, "process": process_to_proto(receipt.process)}
    message = quantizer_pb2.Receipt(**vars(receipt) | encoded)
    # Each policy with very many actions would fit a message, but not the policies in several schemes.
    if message.ByteSize() > MAX_MESSAGE_BYTES // 2:
        for policy in message.policies:
            policy.fidelity.ClearField("outputs")
    return message


_RECEIPT = Fields(quantizer_pb2.Receipt, "receipt.", {bounds.version: "version", bounds.seconds: "emit_seconds"})


def receipt_from_proto(message: quantizer_pb2.Receipt) -> Receipt:
    """Decode a receipt."""
    return Receipt(
        **_RECEIPT.of(message),
        policies=tuple(
            map(descriptor_from_proto, bounds.items("receipt.policies", message.policies, limits.MAX_VARIANTS))
        ),
        subscribers=message.subscribers,
        process=process_from_proto(message.process),
    )


class PolicyAssembler:
    """Assembles and checks the policies of one stream: for each its descriptor, then the parts of its model.

    variant: the requested variant.
    """

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._descriptor: PolicyDescriptor | None = None
        self._blob: BlobAssembler | None = None
        self._count = 0

    def add(self, response: quantizer_pb2.WatchPoliciesResponse | quantizer_pb2.GetPolicyResponse) -> Policy | None:
        """Add the next message. Returns the policy if it is complete.

        Raises InvalidInputError for messages out of order, a truncated or oversized blob, or a size, digest, version
        or scheme other than announced. Raises ExhaustedError above the limits. No message can follow an error.
        """
        self._count += 1
        if self._count > MAX_POLICY_MESSAGES:
            raise ExhaustedError(
                f"policy: expected at most {MAX_POLICY_MESSAGES} messages, got more; send larger chunks"
            )
        kind = response.WhichOneof("payload")
        if kind == "policy":
            self._open(descriptor_from_proto(response.policy))
            return None
        if kind != "part" or self._blob is None or self._descriptor is None:
            what = "a part of its model" if kind else "an empty message"
            raise InvalidInputError(f"policy: expected a descriptor first, got {what}")
        return self._add(response.part, self._blob, self._descriptor)

    def _open(self, descriptor: PolicyDescriptor) -> None:
        if self._descriptor is not None:
            raise InvalidInputError(
                f"policy: version {descriptor.version} came before version {self._descriptor.version} was complete"
            )
        if descriptor.variant != self._variant:
            raise InvalidInputError(f"policy: expected one in {self._variant}, got one in {descriptor.variant}")
        bounds.within("policy.version", descriptor.version, 1, limits.MAX_VERSION)
        if descriptor.size_bytes > MAX_BLOB_BYTES:
            raise ExhaustedError(f"policy: expected at most {MAX_BLOB_BYTES} bytes, got {descriptor.size_bytes}")
        self._descriptor = descriptor
        self._blob = BlobAssembler(descriptor.version, descriptor.size_bytes)

    def _add(self, part: tensor_pb2.BlobPart, blob: BlobAssembler, descriptor: PolicyDescriptor) -> Policy | None:
        if part.WhichOneof("part") == "header" and part.header.sha256 != descriptor.sha256:
            raise InvalidInputError(
                f"policy: expected a model with the descriptor's sha256 {descriptor.sha256.hex()}, got "
                f"{part.header.sha256[:32].hex()}"
            )
        model = blob.add(part)
        if model is None:
            return None
        if len(model) != descriptor.size_bytes:
            raise InvalidInputError(f"policy: expected {descriptor.size_bytes} bytes, got {len(model)}")
        self._descriptor, self._blob, self._count = None, None, 0
        return Policy(descriptor, model)
