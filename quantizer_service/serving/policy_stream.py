"""Encodes a policy once into serialized messages for any number of streams, and assembles and checks received ones.

WatchPolicies and GetPolicy use identical messages under two names, so that both can send the same bytes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from actorq import wire
from actorq.domain.policy import Policy, PolicyDescriptor
from actorq.errors import ExhaustedError, InvalidInputError
from actorq.transport.payload.blobs import ENCODINGS, BlobAssembler, split_blob
from actorq.v1 import quantizer_pb2, tensor_pb2

# Largest policy that a relay accepts: four times the FP32 weights of a policy with three layers of 4096 units. It
# limits the memory of the relay.
MAX_POLICY_BYTES = 512 * 1024**2
# Senders use chunks of 512 KiB. Many tiny chunks are refused, because each message needs extra memory.
MAX_MESSAGES = 8 * 1024

# Serialized WatchPoliciesResponses: the descriptor, the blob's header, its chunks.
Messages = tuple[bytes, ...]


def policy_messages(policy: Policy) -> Messages:
    """The serialized messages of a policy, for any number of watchers. Sparse policies are packed."""
    descriptor = quantizer_pb2.WatchPoliciesResponse(policy=wire.descriptor_to_proto(policy.descriptor))
    return (descriptor.SerializeToString(), *_part_messages(policy.model, policy.descriptor.version, ENCODINGS))


def plain_messages(messages: Messages) -> Messages:
    """The same policy without packing, for a watcher that accepts no encoding. The messages must be valid."""
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
    """A policy with its serialized messages."""

    descriptor: PolicyDescriptor
    messages: Messages

    @classmethod
    def of(cls, policy: Policy) -> "EncodedPolicy":
        """Encode a policy for any number of watchers."""
        return cls(policy.descriptor, policy_messages(policy))


class PolicyAssembler:
    """Assembles and checks the policies of one stream, and keeps the received messages.

    scheme: the requested scheme.
    """

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme
        self._descriptor: PolicyDescriptor | None = None
        self._blob: BlobAssembler | None = None
        self._messages: list[bytes] = []

    def add(self, message: bytes) -> EncodedPolicy | None:
        """Add the next message. Returns the policy if it is complete.

        Raises InvalidInputError for messages out of order, a truncated or oversized blob, or a size, digest, version
        or scheme other than announced. Raises ExhaustedError above the limits. No message can follow an error.
        """
        try:
            response = quantizer_pb2.WatchPoliciesResponse.FromString(message)
        except DecodeError as error:
            raise InvalidInputError(f"policy: expected a WatchPoliciesResponse, got other bytes ({error})") from None
        if len(self._messages) >= MAX_MESSAGES:
            raise ExhaustedError(f"policy: expected at most {MAX_MESSAGES} messages, got more; send larger chunks")
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
                f"policy: version {descriptor.version} came before version {self._descriptor.version} was complete"
            )
        if descriptor.scheme != self._scheme:
            raise InvalidInputError(f"policy: expected scheme {self._scheme!r}, got {descriptor.scheme!r}")
        if not (descriptor.run_id and descriptor.version):
            raise InvalidInputError("policy: expected a run id and a version of at least 1 in its descriptor, got none")
        if descriptor.size_bytes > MAX_POLICY_BYTES:
            raise ExhaustedError(f"policy: expected at most {MAX_POLICY_BYTES} bytes, got {descriptor.size_bytes}")
        self._descriptor = descriptor
        self._blob = BlobAssembler(descriptor.version, descriptor.size_bytes)

    def _finish(self, response: quantizer_pb2.WatchPoliciesResponse) -> EncodedPolicy | None:
        assert self._descriptor is not None
        assert self._blob is not None
        descriptor, header = self._descriptor, response.part.header
        if response.part.WhichOneof("part") == "header" and header.sha256 != descriptor.sha256:
            raise InvalidInputError(
                f"policy: expected a blob of the descriptor's sha256 {descriptor.sha256.hex()}, got "
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
