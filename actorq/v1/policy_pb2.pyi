import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WeightEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEIGHT_ENCODING_UNSPECIFIED: _ClassVar[WeightEncoding]
    WEIGHT_ENCODING_SIGNED: _ClassVar[WeightEncoding]
    WEIGHT_ENCODING_UNSIGNED: _ClassVar[WeightEncoding]
WEIGHT_ENCODING_UNSPECIFIED: WeightEncoding
WEIGHT_ENCODING_SIGNED: WeightEncoding
WEIGHT_ENCODING_UNSIGNED: WeightEncoding

class FidelityReport(_message.Message):
    __slots__ = ("observations", "mean_error", "max_error", "relative_mean_error", "relative_max_error", "argmax_agreement", "layers", "outputs", "passed", "refused", "mean_kl", "max_kl", "value_loss", "sequences", "groups")
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    MEAN_ERROR_FIELD_NUMBER: _ClassVar[int]
    MAX_ERROR_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_MEAN_ERROR_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_MAX_ERROR_FIELD_NUMBER: _ClassVar[int]
    ARGMAX_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    MEAN_KL_FIELD_NUMBER: _ClassVar[int]
    MAX_KL_FIELD_NUMBER: _ClassVar[int]
    VALUE_LOSS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    observations: int
    mean_error: float
    max_error: float
    relative_mean_error: float
    relative_max_error: float
    argmax_agreement: float
    layers: _containers.RepeatedCompositeFieldContainer[LayerReport]
    outputs: _containers.RepeatedCompositeFieldContainer[OutputError]
    passed: bool
    refused: _containers.RepeatedCompositeFieldContainer[RefusedRung]
    mean_kl: float
    max_kl: float
    value_loss: float
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceError]
    groups: _containers.RepeatedCompositeFieldContainer[GroupError]
    def __init__(self, observations: _Optional[int] = ..., mean_error: _Optional[float] = ..., max_error: _Optional[float] = ..., relative_mean_error: _Optional[float] = ..., relative_max_error: _Optional[float] = ..., argmax_agreement: _Optional[float] = ..., layers: _Optional[_Iterable[_Union[LayerReport, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[OutputError, _Mapping]]] = ..., passed: _Optional[bool] = ..., refused: _Optional[_Iterable[_Union[RefusedRung, _Mapping]]] = ..., mean_kl: _Optional[float] = ..., max_kl: _Optional[float] = ..., value_loss: _Optional[float] = ..., sequences: _Optional[_Iterable[_Union[SequenceError, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[GroupError, _Mapping]]] = ...) -> None: ...

class GroupError(_message.Message):
    __slots__ = ("name", "observations", "mean_error", "max_error", "relative_mean_error", "relative_max_error", "argmax_agreement", "mean_kl", "max_kl", "value_loss")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    MEAN_ERROR_FIELD_NUMBER: _ClassVar[int]
    MAX_ERROR_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_MEAN_ERROR_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_MAX_ERROR_FIELD_NUMBER: _ClassVar[int]
    ARGMAX_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    MEAN_KL_FIELD_NUMBER: _ClassVar[int]
    MAX_KL_FIELD_NUMBER: _ClassVar[int]
    VALUE_LOSS_FIELD_NUMBER: _ClassVar[int]
    name: str
    observations: int
    mean_error: float
    max_error: float
    relative_mean_error: float
    relative_max_error: float
    argmax_agreement: float
    mean_kl: float
    max_kl: float
    value_loss: float
    def __init__(self, name: _Optional[str] = ..., observations: _Optional[int] = ..., mean_error: _Optional[float] = ..., max_error: _Optional[float] = ..., relative_mean_error: _Optional[float] = ..., relative_max_error: _Optional[float] = ..., argmax_agreement: _Optional[float] = ..., mean_kl: _Optional[float] = ..., max_kl: _Optional[float] = ..., value_loss: _Optional[float] = ...) -> None: ...

class SequenceError(_message.Message):
    __slots__ = ("steps", "sequences", "mean_state_error", "max_state_error", "state_drift", "mean_output_error", "max_output_error")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MEAN_STATE_ERROR_FIELD_NUMBER: _ClassVar[int]
    MAX_STATE_ERROR_FIELD_NUMBER: _ClassVar[int]
    STATE_DRIFT_FIELD_NUMBER: _ClassVar[int]
    MEAN_OUTPUT_ERROR_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_ERROR_FIELD_NUMBER: _ClassVar[int]
    steps: int
    sequences: int
    mean_state_error: float
    max_state_error: float
    state_drift: float
    mean_output_error: float
    max_output_error: float
    def __init__(self, steps: _Optional[int] = ..., sequences: _Optional[int] = ..., mean_state_error: _Optional[float] = ..., max_state_error: _Optional[float] = ..., state_drift: _Optional[float] = ..., mean_output_error: _Optional[float] = ..., max_output_error: _Optional[float] = ...) -> None: ...

class LayerReport(_message.Message):
    __slots__ = ("name", "weights", "reason", "published_units", "units")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_UNITS_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    weights: str
    reason: str
    published_units: int
    units: int
    def __init__(self, name: _Optional[str] = ..., weights: _Optional[str] = ..., reason: _Optional[str] = ..., published_units: _Optional[int] = ..., units: _Optional[int] = ...) -> None: ...

class OutputError(_message.Message):
    __slots__ = ("name", "mean_errors", "max_errors")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEAN_ERRORS_FIELD_NUMBER: _ClassVar[int]
    MAX_ERRORS_FIELD_NUMBER: _ClassVar[int]
    name: str
    mean_errors: _containers.RepeatedScalarFieldContainer[float]
    max_errors: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., mean_errors: _Optional[_Iterable[float]] = ..., max_errors: _Optional[_Iterable[float]] = ...) -> None: ...

class RefusedRung(_message.Message):
    __slots__ = ("float_layers", "relative_mean_error", "relative_max_error", "argmax_agreement", "mean_kl", "max_kl", "state_drift")
    FLOAT_LAYERS_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_MEAN_ERROR_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_MAX_ERROR_FIELD_NUMBER: _ClassVar[int]
    ARGMAX_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    MEAN_KL_FIELD_NUMBER: _ClassVar[int]
    MAX_KL_FIELD_NUMBER: _ClassVar[int]
    STATE_DRIFT_FIELD_NUMBER: _ClassVar[int]
    float_layers: _containers.RepeatedScalarFieldContainer[str]
    relative_mean_error: float
    relative_max_error: float
    argmax_agreement: float
    mean_kl: float
    max_kl: float
    state_drift: float
    def __init__(self, float_layers: _Optional[_Iterable[str]] = ..., relative_mean_error: _Optional[float] = ..., relative_max_error: _Optional[float] = ..., argmax_agreement: _Optional[float] = ..., mean_kl: _Optional[float] = ..., max_kl: _Optional[float] = ..., state_drift: _Optional[float] = ...) -> None: ...

class PolicyVariant(_message.Message):
    __slots__ = ("scheme", "weight_encoding")
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_ENCODING_FIELD_NUMBER: _ClassVar[int]
    scheme: str
    weight_encoding: WeightEncoding
    def __init__(self, scheme: _Optional[str] = ..., weight_encoding: _Optional[_Union[WeightEncoding, str]] = ...) -> None: ...

class PolicyDescriptor(_message.Message):
    __slots__ = ("run_id", "version", "learner_step", "scheme", "sha256", "size_bytes", "snapshot_at", "fidelity", "fp32_size_bytes", "graph_digest", "weight_encoding")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEARNER_STEP_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_AT_FIELD_NUMBER: _ClassVar[int]
    FIDELITY_FIELD_NUMBER: _ClassVar[int]
    FP32_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRAPH_DIGEST_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_ENCODING_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    version: int
    learner_step: int
    scheme: str
    sha256: bytes
    size_bytes: int
    snapshot_at: _timestamp_pb2.Timestamp
    fidelity: FidelityReport
    fp32_size_bytes: int
    graph_digest: bytes
    weight_encoding: WeightEncoding
    def __init__(self, run_id: _Optional[str] = ..., version: _Optional[int] = ..., learner_step: _Optional[int] = ..., scheme: _Optional[str] = ..., sha256: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., snapshot_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., fidelity: _Optional[_Union[FidelityReport, _Mapping]] = ..., fp32_size_bytes: _Optional[int] = ..., graph_digest: _Optional[bytes] = ..., weight_encoding: _Optional[_Union[WeightEncoding, str]] = ...) -> None: ...
