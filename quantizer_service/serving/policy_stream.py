"""A policy as streams carry it: encoded once, down to the bytes of the messages, and put together and checked again.

WatchPolicies and GetPolicy send the same messages under two names, so that bytes made for one serve the other.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from actorq import wire
from actorq.domain.policy import Policy, PolicyDescriptor
from actorq.errors import ExhaustedError, InvalidInputError
from actorq.transport.payload.blobs import ENCODINGS, BlobAssembler, split_blob
from actorq.v1 import quantizer_pb2, tensor_pb2

# What a relay takes of its upstream at most: four times the FP32 weights of a 4096 x 3 policy.
MAX_POLICY_BYTES = 512 * 1024**2
# Senders cut at 512 KiB; what comes in crumbs is refused, as each of them takes memory of its own.
MAX_MESSAGES = 8 * 1024

# Encoded WatchPoliciesResponses: a descriptor, the header of the blob, its chunks.
Messages = tuple[bytes, ...]


def policy_messages(policy: Policy) -> Messages:
    """The messages that carry a policy, ready to be sent to any number of watchers; packed where it is sparse."""
    descriptor = quantizer_pb2.WatchPoliciesResponse(policy=wire.descriptor_to_proto(policy.descriptor))
    return (descriptor.SerializeToString(), *_part_messages(policy.model, policy.descriptor.version, ENCODINGS))


def plain_messages(messages: Messages) -> Messages:
    """The same policy for a watcher that takes no encoding; also of a relay, whose messages were checked."""
    parts = [quantizer_pb2.WatchPoliciesResponse.FromString(message).part for message in messages[1:]]
    if not parts or parts[0].header.encoding == tensor_pb2.BLOB_ENCODING_UNSPECIFIED:
        return messages
    version = parts[0].header.version
    assembler = BlobAssembler(version)
    model = [assembler.add(part) for part in parts][-1]
    assert model is not None
    return (messages[0], *_part_messages(model, version))


def _part_messages(model: bytes, version: int, encodings: Iterable[tensor_pb2.BlobEncoding] = ()) -> Iterator[bytes]:
    for part in split_blob(model, version, encodings=encodings):
        yield quantizer_pb2.WatchPoliciesResponse(part=part).SerializeToString()


@dataclass(frozen=True)
class EncodedPolicy:
    """A policy as the messages that carry it."""

    descriptor: PolicyDescriptor
    messages: Messages

    @classmethod
    def of(cls, policy: Policy) -> "EncodedPolicy":
        """Encode a policy for any number of watchers."""
        return cls(policy.descriptor, policy_messages(policy))


class PolicyAssembler:
    """Puts the messages of one stream together and checks what they carry; keeps them as they came.

    scheme: the one that was asked for.
    limit_bytes: of a model; bounds what the sender can make the receiver hold.
    """

    def __init__(self, scheme: str, limit_bytes: int = MAX_POLICY_BYTES) -> None:
        self._scheme = scheme
        self._limit = limit_bytes
        self._descriptor: PolicyDescriptor | None = None
        self._blob: BlobAssembler | None = None
        self._messages: list[bytes] = []

    def add(self, message: bytes) -> EncodedPolicy | None:
        """Take the next message; return the policy that it completes, if any.

        Raises InvalidInputError for messages out of order, a truncated or oversized blob, or a size, digest, version
        or scheme that is not the announced one; ExhaustedError for more than the limits; nothing can follow then.
        """
        try:
            response = quantizer_pb2.WatchPoliciesResponse.FromString(message)
        except DecodeError as error:
            raise InvalidInputError(f"policy: expected a WatchPoliciesResponse, got other bytes ({error})") from None
        if len(self._messages) >= MAX_MESSAGES:
            raise ExhaustedError(f"policy: at most {MAX_MESSAGES} messages of one are taken; send larger chunks")
        kind = response.WhichOneof("payload")
        if kind == "policy":
            self._open(wire.descriptor_from_proto(response.policy))
        elif kind != "part" or self._blob is None:
            raise InvalidInputError(f"policy: expected a descriptor first, got {kind or 'an empty message'}")
        self._messages.append(message)
        return self._finish(response) if kind == "part" else None

    def _open(self, descriptor: PolicyDescriptor) -> None:
        if self._descriptor is not None:
            raise InvalidInputError(
                f"policy: version {self._descriptor.version} was truncated, version {descriptor.version} follows it"
            )
        if descriptor.scheme != self._scheme:
            raise InvalidInputError(f"policy: expected scheme {self._scheme!r}, got {descriptor.scheme!r}")
        if not (descriptor.run_id and descriptor.version):
            raise InvalidInputError("policy: expected a run id and a version from 1 in its descriptor, got none")
        if descriptor.size_bytes > self._limit:
            raise ExhaustedError(f"policy: at most {self._limit} bytes are taken, got {descriptor.size_bytes}")
        self._descriptor = descriptor
        self._blob = BlobAssembler(descriptor.version, descriptor.size_bytes)

    def _finish(self, response: quantizer_pb2.WatchPoliciesResponse) -> EncodedPolicy | None:
        assert self._descriptor is not None
        assert self._blob is not None
        descriptor, header = self._descriptor, response.part.header
        if response.part.WhichOneof("part") == "header" and header.sha256 != descriptor.sha256:
            raise InvalidInputError(
                f"policy: expected a blob of sha256 {descriptor.sha256.hex()}, as its descriptor says, got one of "
                f"{header.sha256.hex()}"
            )
        model = self._blob.add(response.part)
        if model is None:
            return None
        if len(model) != descriptor.size_bytes:
            raise InvalidInputError(f"policy: expected {descriptor.size_bytes} bytes, got {len(model)}")
        policy = EncodedPolicy(descriptor, tuple(self._messages))
        self._descriptor, self._blob, self._messages = None, None, []
        return policy
