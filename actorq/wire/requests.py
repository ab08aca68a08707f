"""Requests of unary calls: policies, pages, holds, greedy episodes, statuses."""

from dataclasses import dataclass

from actorq.domain import limits
from actorq.domain.policy import SIGNED, Variant, variant_of
from actorq.v1 import actor_pb2, learner_pb2, quantizer_pb2, tensor_pb2
from actorq.wire import bounds
from actorq.wire.fields import Fields
from actorq.wire.policies import weight_encoding
from actorq.wire.publications import encodings_from_proto

# Environments take seeds up to this value. An actor adds the number of the environment to it.
_MAX_SEED = 2**31 - 1
_MAX_PAGE_SIZE = 1000
# From a nanosecond to longer than any service's grant.
_HOLD_S = (1e-9, 366 * 86_400.0)
_WATCH_PERIOD_S = (0.05, 3600.0)
_CHECKS = {bounds.optional_name: "scheme", bounds.version: "version"}
_POLICY = Fields(quantizer_pb2.GetPolicyRequest, "", {**_CHECKS, weight_encoding: "weight_encoding"})
_FIDELITY_REPORT = Fields(quantizer_pb2.GetFidelityReportRequest, "", _CHECKS)


@dataclass(frozen=True)
class PolicyRequest:
    """A request for a policy of a scheme. Version 0 is the newest; a watcher gets versions above `version`.

    encodings: encodings of blobs that the caller takes.
    weight_encoding: encoding of int8 weights that its processor computes exactly.
    """

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
    """A page of at most `size` retained versions (0 for the default), after the page that gave `token`."""

    size: int
    token: str


@dataclass(frozen=True)
class HoldRequest:
    """A request to keep a version retained for `seconds`."""

    version: int
    seconds: float


@dataclass(frozen=True)
class EvaluateRequest:
    """A request for greedy episodes of a policy. An empty scheme is the run's scheme, version 0 the newest."""

    episodes: int
    scheme: str
    version: int
    seed: int


def watch_request_from_proto(message: quantizer_pb2.WatchPoliciesRequest) -> PolicyRequest:
    """Decode a request to watch policies."""
    return PolicyRequest(
        scheme=bounds.optional_name("scheme", message.scheme),
        version=bounds.version("after_version", message.after_version),
        encodings=encodings_from_proto(message.encodings),
        weight_encoding=weight_encoding("weight_encoding", message.weight_encoding),
    )


def policy_request_from_proto(message: quantizer_pb2.GetPolicyRequest) -> PolicyRequest:
    """Decode a request for a policy."""
    return PolicyRequest(**_POLICY.of(message), encodings=encodings_from_proto(message.encodings))


def fidelity_request_from_proto(message: quantizer_pb2.GetFidelityReportRequest) -> PolicyRequest:
    """Decode a request for a fidelity report."""
    return PolicyRequest(**_FIDELITY_REPORT.of(message))


def page_request_from_proto(message: quantizer_pb2.ListPoliciesRequest) -> PageRequest:
    """Decode a request for a page of retained versions."""
    return PageRequest(
        size=bounds.count("page_size", message.page_size, _MAX_PAGE_SIZE), token=bounds.page_token(message.page_token)
    )


def hold_request_from_proto(message: quantizer_pb2.HoldPolicyRequest) -> HoldRequest:
    """Decode a request to hold a version."""
    return HoldRequest(
        version=bounds.version("version", message.version),
        seconds=bounds.duration_s("duration", message.duration, *_HOLD_S),
    )


def evaluate_request_from_proto(message: actor_pb2.EvaluateRequest) -> EvaluateRequest:
    """Decode a request for greedy episodes."""
    return EvaluateRequest(
        episodes=bounds.within("episodes", message.episodes, 1, limits.MAX_EVALUATION_EPISODES),
        scheme=bounds.optional_name("scheme", message.scheme),
        version=bounds.version("policy_version", message.policy_version),
        seed=bounds.count("seed", message.seed, _MAX_SEED),
    )


def watch_period_from_proto(message: learner_pb2.WatchStatusRequest) -> float:
    """Decode the period of a status stream in seconds; 1 by default."""
    least, most = _WATCH_PERIOD_S
    return bounds.duration_s("period", message.period, least, most) if message.HasField("period") else 1.0
