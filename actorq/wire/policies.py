"""Messages about policies: descriptors, receipts, contents of a store, requests."""

import math
from dataclasses import dataclass
from typing import Any

from actorq.domain import limits
from actorq.domain.contract import check_contract
from actorq.domain.limits import MAX_BLOB_BYTES, MAX_MESSAGE_BYTES
from actorq.domain.policy import (
    SIGNED,
    UNSIGNED,
    FidelityReport,
    GroupError,
    LayerReport,
    OutputError,
    Policy,
    PolicyDescriptor,
    RefusedRung,
    RetainedPolicy,
    SequenceError,
    Variant,
    variant_of,
)
from actorq.domain.status import Receipt
from actorq.errors import ExhaustedError, InvalidInputError
from actorq.transport.payload.blobs import BlobAssembler
from actorq.v1 import policy_pb2, quantizer_pb2, tensor_pb2
from actorq.wire import bounds
from actorq.wire.fields import Pair, enumeration, many
from actorq.wire.processes import PROCESS
from actorq.wire.tensors import TIME, duration

MAX_POLICY_MESSAGES = 8 * 1024
"""Senders use chunks of 512 KiB. A blob with many tiny chunks is refused, because each message needs extra memory."""

_MAX_PAGE_SIZE = 1000
# The range of holds, from a nanosecond to more than any service grants.
_HOLD_S = (1e-9, 366 * 86_400.0)

# Unknown encodings are kept.
ENCODINGS = many(bounds.anything, limits.MAX_ENCODINGS)
# Signed weights are the default, as in older peers.
WEIGHT_ENCODING = enumeration(
    policy_pb2.WeightEncoding,
    {SIGNED: policy_pb2.WEIGHT_ENCODING_UNSPECIFIED, UNSIGNED: policy_pb2.WEIGHT_ENCODING_UNSIGNED},
    {policy_pb2.WEIGHT_ENCODING_SIGNED: SIGNED},
)


def _error(what: str, value: float) -> float:
    # The fidelity gate refuses a policy with an infinite error.
    return value if value == math.inf else bounds.amount(what, value)


_LAYER = Pair(
    policy_pb2.LayerReport,
    LayerReport,
    {bounds.text: "name reason", bounds.name: "weights", bounds.anything: "published_units units"},
    prefix="layer.",
)
_OUTPUT = Pair(
    policy_pb2.OutputError,
    OutputError,
    {bounds.text: "name", many(_error, limits.MAX_OUTPUT_COMPONENTS): "mean_errors max_errors"},
    prefix="output.",
)
_RUNG = Pair(
    policy_pb2.RefusedRung,
    RefusedRung,
    {
        many(bounds.text, limits.MAX_LAYERS): "float_layers",
        _error: "relative_mean_error relative_max_error mean_kl max_kl state_drift",
        bounds.share: "argmax_agreement",
    },
    prefix="fidelity.",
)
_SEQUENCE = Pair(
    policy_pb2.SequenceError,
    SequenceError,
    {
        bounds.anything: "steps sequences",
        _error: "mean_state_error max_state_error state_drift mean_output_error max_output_error",
    },
    prefix="sequences.",
)
_GROUP = Pair(
    policy_pb2.GroupError,
    GroupError,
    {
        bounds.name: "name",
        bounds.anything: "observations",
        _error: "mean_error max_error relative_mean_error relative_max_error mean_kl max_kl",
        bounds.share: "argmax_agreement value_loss",
    },
    prefix="groups.",
)
_FIDELITY = Pair(
    policy_pb2.FidelityReport,
    FidelityReport,
    {
        bounds.anything: "observations passed",
        _error: "mean_error max_error relative_mean_error relative_max_error mean_kl max_kl",
        bounds.share: "argmax_agreement value_loss",
        many(_LAYER, limits.MAX_LAYERS): "layers",
        many(_OUTPUT, limits.MAX_OUTPUTS): "outputs",
        many(_RUNG, limits.MAX_RUNGS): "refused",
        many(_SEQUENCE, limits.MAX_HORIZONS): "sequences",
        many(_GROUP, limits.MAX_AGENTS): "groups",
    },
    prefix="fidelity.",
)
DESCRIPTOR = Pair(
    policy_pb2.PolicyDescriptor,
    PolicyDescriptor,
    {
        bounds.name: "run_id scheme",
        bounds.version: "version",
        bounds.count: "learner_step size_bytes fp32_size_bytes",
        bounds.digest: "sha256",
        bounds.optional_digest: "graph_digest",
        TIME: "snapshot_at",
        WEIGHT_ENCODING: "weight_encoding",
        _FIDELITY: "fidelity",
    },
    prefix="policy.",
)
descriptor_to_proto, descriptor_from_proto = DESCRIPTOR.both


def variant_to_proto(variant: Variant) -> dict[str, Any]:
    """The fields `scheme` and `weight_encoding` of a message."""
    return {"scheme": variant.scheme, "weight_encoding": WEIGHT_ENCODING.encode(variant.weight_encoding)}


_VARIANT = Pair(
    policy_pb2.PolicyVariant, Variant, {bounds.name: "scheme", WEIGHT_ENCODING: "weight_encoding"}, prefix="retained."
)


def _retained(schemes: tuple[str, ...], variants: tuple[Variant, ...], **fields: Any) -> RetainedPolicy:
    # An older quantizer reports only schemes.
    return RetainedPolicy(variants=variants or tuple(map(Variant, schemes)), **fields)


retained_to_proto, retained_from_proto = Pair(
    quantizer_pb2.RetainedPolicy,
    _retained,
    {
        bounds.version: "version",
        bounds.count: "learner_step",
        bounds.figure: "mean_return",
        many(bounds.name, limits.MAX_SCHEMES): "schemes",
        many(_VARIANT, limits.MAX_VARIANTS): "variants",
    },
    prefix="retained.",
).both

_RECEIPT = Pair(
    quantizer_pb2.Receipt,
    Receipt,
    {
        bounds.version: "version",
        many(DESCRIPTOR, limits.MAX_VARIANTS): "policies",
        bounds.seconds: "emit_seconds",
        bounds.anything: "watchers",
        PROCESS: "process",
    },
    prefix="receipt.",
)
receipt_from_proto = _RECEIPT.from_proto


def receipt_to_proto(receipt: Receipt) -> quantizer_pb2.Receipt:
    """Encode a receipt."""
    message = _RECEIPT.to_proto(receipt)
    # One policy with very many actions would fit into a message, but policies in several schemes might not.
    if message.ByteSize() > MAX_MESSAGE_BYTES // 2:
        for policy in message.policies:
            policy.fidelity.ClearField("outputs")
    return message


@dataclass(frozen=True)
class PolicyRequest:
    """A request for a policy of a scheme. Version 0 is the newest. A watcher gets versions above `version`."""

    scheme: str
    version: int
    encodings: tuple[tensor_pb2.BlobEncoding, ...] = ()
    weight_encoding: str = SIGNED

    @property
    def variant(self) -> Variant:
        """The variant to serve."""
        return variant_of(self.scheme, self.weight_encoding)


@dataclass(frozen=True)
class PageRequest:
    """A page of at most `size` retained versions (0 for the default), after the page that returned `token`."""

    size: int
    token: str


@dataclass(frozen=True)
class HoldRequest:
    """A request to keep a version retained for `seconds`."""

    version: int
    seconds: float


_SCHEME: dict[Any, str] = {bounds.optional_name: "scheme"}
_SERVED = {**_SCHEME, ENCODINGS: "encodings", WEIGHT_ENCODING: "weight_encoding"}
_WATCH = Pair(quantizer_pb2.WatchPoliciesRequest, PolicyRequest, {**_SERVED, bounds.version: "version=after_version"})


def watch_request_from_proto(message: quantizer_pb2.WatchPoliciesRequest) -> PolicyRequest:
    """Decode a request to watch policies. Raises ConflictError for another contract, if the caller names one."""
    if message.contract:
        check_contract("the watcher", message.contract)
    return _WATCH.from_proto(message)


policy_request_from_proto = Pair(
    quantizer_pb2.GetPolicyRequest, PolicyRequest, {**_SERVED, bounds.version: "version"}
).from_proto
fidelity_request_from_proto = Pair(
    quantizer_pb2.GetFidelityReportRequest, PolicyRequest, {**_SCHEME, bounds.version: "version"}
).from_proto
page_request_from_proto = Pair(
    quantizer_pb2.ListPoliciesRequest,
    PageRequest,
    {bounds.between(0, _MAX_PAGE_SIZE): "size=page_size", bounds.page_token: "token=page_token"},
).from_proto
hold_request_from_proto = Pair(
    quantizer_pb2.HoldPolicyRequest, HoldRequest, {bounds.version: "version", duration(*_HOLD_S): "seconds=duration"}
).from_proto


class PolicyAssembler:
    """Assembles and checks the policies of one stream: each has a descriptor, then the parts of its model.

    variant: the requested variant.
    """

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._descriptor: PolicyDescriptor | None = None
        self._blob: BlobAssembler | None = None
        self._count = 0

    def add(self, response: quantizer_pb2.WatchPoliciesResponse | quantizer_pb2.GetPolicyResponse) -> Policy | None:
        """Add the next message. Returns the policy when it is complete.

        Raises InvalidInputError for messages out of order, a truncated or oversized blob, or a size, digest, version or
        scheme that differs from the header. Raises ExhaustedError above the limits. No message can follow an error.
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
