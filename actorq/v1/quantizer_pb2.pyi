import datetime

from actorq.v1 import access_pb2 as _access_pb2
from actorq.v1 import policy_pb2 as _policy_pb2
from actorq.v1 import process_pb2 as _process_pb2
from actorq.v1 import tensor_pb2 as _tensor_pb2
from actorq.v1 import trajectory_pb2 as _trajectory_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PublishCheckpointsRequest(_message.Message):
    __slots__ = ("open", "graph", "checkpoint", "part", "evaluation")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    open: PublishOpen
    graph: GraphHeader
    checkpoint: CheckpointHeader
    part: _tensor_pb2.BlobPart
    evaluation: _trajectory_pb2.Evaluation
    def __init__(self, open: _Optional[_Union[PublishOpen, _Mapping]] = ..., graph: _Optional[_Union[GraphHeader, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointHeader, _Mapping]] = ..., part: _Optional[_Union[_tensor_pb2.BlobPart, _Mapping]] = ..., evaluation: _Optional[_Union[_trajectory_pb2.Evaluation, _Mapping]] = ...) -> None: ...

class PublishOpen(_message.Message):
    __slots__ = ("run_id", "scheme", "epoch", "lineage", "contract")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    scheme: str
    epoch: int
    lineage: _containers.RepeatedScalarFieldContainer[int]
    contract: int
    def __init__(self, run_id: _Optional[str] = ..., scheme: _Optional[str] = ..., epoch: _Optional[int] = ..., lineage: _Optional[_Iterable[int]] = ..., contract: _Optional[int] = ...) -> None: ...

class GraphHeader(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    def __init__(self, digest: _Optional[bytes] = ...) -> None: ...

class CheckpointHeader(_message.Message):
    __slots__ = ("version", "learner_step", "graph_digest", "snapshot_at")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEARNER_STEP_FIELD_NUMBER: _ClassVar[int]
    GRAPH_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_AT_FIELD_NUMBER: _ClassVar[int]
    version: int
    learner_step: int
    graph_digest: bytes
    snapshot_at: _timestamp_pb2.Timestamp
    def __init__(self, version: _Optional[int] = ..., learner_step: _Optional[int] = ..., graph_digest: _Optional[bytes] = ..., snapshot_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class PublishCheckpointsResponse(_message.Message):
    __slots__ = ("ready", "receipt")
    READY_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    ready: PublishReady
    receipt: Receipt
    def __init__(self, ready: _Optional[_Union[PublishReady, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class PublishReady(_message.Message):
    __slots__ = ("newest_version", "graph_digests", "encodings", "contract")
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    GRAPH_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    newest_version: int
    graph_digests: _containers.RepeatedScalarFieldContainer[bytes]
    encodings: _containers.RepeatedScalarFieldContainer[_tensor_pb2.BlobEncoding]
    contract: int
    def __init__(self, newest_version: _Optional[int] = ..., graph_digests: _Optional[_Iterable[bytes]] = ..., encodings: _Optional[_Iterable[_Union[_tensor_pb2.BlobEncoding, str]]] = ..., contract: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("version", "policies", "emit_seconds", "watchers", "process")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    EMIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WATCHERS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    version: int
    policies: _containers.RepeatedCompositeFieldContainer[_policy_pb2.PolicyDescriptor]
    emit_seconds: float
    watchers: int
    process: _process_pb2.ProcessStats
    def __init__(self, version: _Optional[int] = ..., policies: _Optional[_Iterable[_Union[_policy_pb2.PolicyDescriptor, _Mapping]]] = ..., emit_seconds: _Optional[float] = ..., watchers: _Optional[int] = ..., process: _Optional[_Union[_process_pb2.ProcessStats, _Mapping]] = ...) -> None: ...

class WatchPoliciesRequest(_message.Message):
    __slots__ = ("scheme", "after_version", "encodings", "weight_encoding", "contract")
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    AFTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_ENCODING_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    scheme: str
    after_version: int
    encodings: _containers.RepeatedScalarFieldContainer[_tensor_pb2.BlobEncoding]
    weight_encoding: _policy_pb2.WeightEncoding
    contract: int
    def __init__(self, scheme: _Optional[str] = ..., after_version: _Optional[int] = ..., encodings: _Optional[_Iterable[_Union[_tensor_pb2.BlobEncoding, str]]] = ..., weight_encoding: _Optional[_Union[_policy_pb2.WeightEncoding, str]] = ..., contract: _Optional[int] = ...) -> None: ...

class WatchPoliciesResponse(_message.Message):
    __slots__ = ("policy", "part")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    policy: _policy_pb2.PolicyDescriptor
    part: _tensor_pb2.BlobPart
    def __init__(self, policy: _Optional[_Union[_policy_pb2.PolicyDescriptor, _Mapping]] = ..., part: _Optional[_Union[_tensor_pb2.BlobPart, _Mapping]] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ("version", "scheme", "encodings", "weight_encoding")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_ENCODING_FIELD_NUMBER: _ClassVar[int]
    version: int
    scheme: str
    encodings: _containers.RepeatedScalarFieldContainer[_tensor_pb2.BlobEncoding]
    weight_encoding: _policy_pb2.WeightEncoding
    def __init__(self, version: _Optional[int] = ..., scheme: _Optional[str] = ..., encodings: _Optional[_Iterable[_Union[_tensor_pb2.BlobEncoding, str]]] = ..., weight_encoding: _Optional[_Union[_policy_pb2.WeightEncoding, str]] = ...) -> None: ...

class GetPolicyResponse(_message.Message):
    __slots__ = ("policy", "part")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    policy: _policy_pb2.PolicyDescriptor
    part: _tensor_pb2.BlobPart
    def __init__(self, policy: _Optional[_Union[_policy_pb2.PolicyDescriptor, _Mapping]] = ..., part: _Optional[_Union[_tensor_pb2.BlobPart, _Mapping]] = ...) -> None: ...

class ListPoliciesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class RetainedPolicy(_message.Message):
    __slots__ = ("version", "learner_step", "schemes", "mean_return", "variants")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEARNER_STEP_FIELD_NUMBER: _ClassVar[int]
    SCHEMES_FIELD_NUMBER: _ClassVar[int]
    MEAN_RETURN_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    learner_step: int
    schemes: _containers.RepeatedScalarFieldContainer[str]
    mean_return: float
    variants: _containers.RepeatedCompositeFieldContainer[_policy_pb2.PolicyVariant]
    def __init__(self, version: _Optional[int] = ..., learner_step: _Optional[int] = ..., schemes: _Optional[_Iterable[str]] = ..., mean_return: _Optional[float] = ..., variants: _Optional[_Iterable[_Union[_policy_pb2.PolicyVariant, _Mapping]]] = ...) -> None: ...

class ListPoliciesResponse(_message.Message):
    __slots__ = ("policies", "next_page_token")
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[RetainedPolicy]
    next_page_token: str
    def __init__(self, policies: _Optional[_Iterable[_Union[RetainedPolicy, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetFidelityReportRequest(_message.Message):
    __slots__ = ("version", "scheme")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    version: int
    scheme: str
    def __init__(self, version: _Optional[int] = ..., scheme: _Optional[str] = ...) -> None: ...

class GetFidelityReportResponse(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: _policy_pb2.PolicyDescriptor
    def __init__(self, policy: _Optional[_Union[_policy_pb2.PolicyDescriptor, _Mapping]] = ...) -> None: ...

class HoldPolicyRequest(_message.Message):
    __slots__ = ("version", "duration")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    version: int
    duration: _duration_pb2.Duration
    def __init__(self, version: _Optional[int] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class HoldPolicyResponse(_message.Message):
    __slots__ = ("granted",)
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    granted: _duration_pb2.Duration
    def __init__(self, granted: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
