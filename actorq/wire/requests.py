"""Requests of unary calls: policies, pages, holds, greedy episodes, statuses."""

from dataclasses import dataclass
from typing import Any

from actorq.domain import limits
from actorq.domain.contract import check_contract
from actorq.domain.policy import SIGNED, Variant, variant_of
from actorq.v1 import actor_pb2, learner_pb2, quantizer_pb2, tensor_pb2
from actorq.wire import bounds
from actorq.wire.fields import Pair
from actorq.wire.policies import WEIGHT_ENCODING
from actorq.wire.streams import ENCODINGS
from actorq.wire.tensors import duration

# Environments take seeds up to this value. An actor adds the number of the environment to it.
_MAX_SEED = 2**31 - 1
_MAX_PAGE_SIZE = 1000
# From a nanosecond to longer than any service's grant.
_HOLD_S = (1e-9, 366 * 86_400.0)
_WATCH_PERIOD_S = (0.05, 3600.0)


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
evaluate_request_from_proto = Pair(
    actor_pb2.EvaluateRequest,
    EvaluateRequest,
    {
        bounds.between(1, limits.MAX_EVALUATION_EPISODES): "episodes",
        bounds.optional_name: "scheme",
        bounds.version: "version=policy_version",
        bounds.between(0, _MAX_SEED): "seed",
    },
).from_proto


def watch_period_from_proto(message: learner_pb2.WatchStatusRequest) -> float:
    """Decode the period of a status stream in seconds; 1 by default."""
    least, most = _WATCH_PERIOD_S
    return bounds.duration_s("period", message.period, least, most) if message.HasField("period") else 1.0
