"""Encodes a policy once into serialized messages for many streams, and assembles and checks received policies.

WatchPolicies and GetPolicy have identical messages under two names, so both can send the same bytes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from google.protobuf.message import DecodeError

from actorq import wire
from actorq.domain.policy import Policy, PolicyDescriptor, Variant
from actorq.errors import ExhaustedError, InvalidInputError
from actorq.transport.payload.blobs import ENCODINGS, BlobAssembler, split_blob
from actorq.v1 import quantizer_pb2, tensor_pb2

_MAX_EXTRA_BYTES = 1024

# Serialized WatchPoliciesResponses: the descriptor, the blob's header, its chunks.
Messages = tuple[bytes, ...]


def policy_messages(policy: Policy) -> Messages:
    """The serialized messages of a policy, for any number of watchers. Sparse policies are packed."""
    descriptor = quantizer_pb2.WatchPoliciesResponse(policy=wire.descriptor_to_proto(policy.descriptor))
    return (descriptor.SerializeToString(), *_part_messages(policy.model, policy.descriptor.version, ENCODINGS))


def _part_messages(model: bytes, version: int, encodings: Iterable[tensor_pb2.BlobEncoding] = ()) -> Iterator[bytes]:
    for part in split_blob(model, version, encodings=encodings):
        yield quantizer_pb2.WatchPoliciesResponse(part=part).SerializeToString()


@dataclass(frozen=True)
class EncodedPolicy:
    """A policy with its serialized messages, which must be valid."""

    descriptor: PolicyDescriptor
    messages: Messages

    @classmethod
    def of(cls, policy: Policy) -> "EncodedPolicy":
        """Encode a policy for any number of watchers."""
        return cls(policy.descriptor, policy_messages(policy))

    def taken(self, encodings: Iterable[int]) -> Messages:
        """The messages, or the same policy in plain messages if the caller does not accept their encoding."""
        return self.messages if set(ENCODINGS).issubset(encodings) else self._plain

    @cached_property
    def _plain(self) -> Messages:
        """The messages without packing, for a receiver that accepts no encoding."""
        parts = [quantizer_pb2.WatchPoliciesResponse.FromString(message).part for message in self.messages[1:]]
        if not parts or parts[0].header.encoding == tensor_pb2.BLOB_ENCODING_UNSPECIFIED:
            return self.messages
        version = parts[0].header.version
        assembler = BlobAssembler(version)
        model = [assembler.add(part) for part in parts][-1]
        assert model is not None
        return (self.messages[0], *_part_messages(model, version))


class StreamedPolicies:
    """The policies of one stream of this variant, each with its received messages."""

    def __init__(self, variant: Variant) -> None:
        self._assembler = wire.PolicyAssembler(variant)
        self._messages: list[bytes] = []

    def add(self, message: bytes) -> EncodedPolicy | None:
        """Add the next message. Returns the policy if it is complete. Raises as `wire.PolicyAssembler.add` does."""
        try:
            response = quantizer_pb2.WatchPoliciesResponse.FromString(message)
        except DecodeError as error:
            raise InvalidInputError(f"policy: expected a WatchPoliciesResponse, got other bytes ({error})") from None
        if response.WhichOneof("payload") == "part":
            # Fields of a newer protocol version are forwarded. The stored messages are hardly larger than the announced
            # size.
            extra = len(message) - len(response.part.chunk)
            if extra > _MAX_EXTRA_BYTES:
                raise ExhaustedError(
                    f"policy: expected at most {_MAX_EXTRA_BYTES} bytes in addition to a chunk, got {extra}"
                )
        policy = self._assembler.add(response)
        self._messages.append(message)
        if policy is None:
            return None
        messages, self._messages = tuple(self._messages), []
        return EncodedPolicy(policy.descriptor, messages)
