import datetime

from actorq.v1 import access_pb2 as _access_pb2
from actorq.v1 import policy_pb2 as _policy_pb2
from actorq.v1 import process_pb2 as _process_pb2
from actorq.v1 import trajectory_pb2 as _trajectory_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ActorRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTOR_ROLE_UNSPECIFIED: _ClassVar[ActorRole]
    ACTOR_ROLE_ACTOR: _ClassVar[ActorRole]
    ACTOR_ROLE_EVALUATOR: _ClassVar[ActorRole]

class Directive(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIRECTIVE_UNSPECIFIED: _ClassVar[Directive]
    DIRECTIVE_STOP: _ClassVar[Directive]
    DIRECTIVE_EVALUATE: _ClassVar[Directive]

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNSPECIFIED: _ClassVar[RunState]
    RUN_STATE_WAITING_FOR_ACTORS: _ClassVar[RunState]
    RUN_STATE_COLLECTING: _ClassVar[RunState]
    RUN_STATE_TRAINING: _ClassVar[RunState]
    RUN_STATE_PAUSED: _ClassVar[RunState]
    RUN_STATE_STOPPING: _ClassVar[RunState]
    RUN_STATE_SOLVED: _ClassVar[RunState]
    RUN_STATE_BUDGET_ENDED: _ClassVar[RunState]
    RUN_STATE_STOPPED: _ClassVar[RunState]
    RUN_STATE_INTERRUPTED: _ClassVar[RunState]
ACTOR_ROLE_UNSPECIFIED: ActorRole
ACTOR_ROLE_ACTOR: ActorRole
ACTOR_ROLE_EVALUATOR: ActorRole
DIRECTIVE_UNSPECIFIED: Directive
DIRECTIVE_STOP: Directive
DIRECTIVE_EVALUATE: Directive
RUN_STATE_UNSPECIFIED: RunState
RUN_STATE_WAITING_FOR_ACTORS: RunState
RUN_STATE_COLLECTING: RunState
RUN_STATE_TRAINING: RunState
RUN_STATE_PAUSED: RunState
RUN_STATE_STOPPING: RunState
RUN_STATE_SOLVED: RunState
RUN_STATE_BUDGET_ENDED: RunState
RUN_STATE_STOPPED: RunState
RUN_STATE_INTERRUPTED: RunState

class JoinRequest(_message.Message):
    __slots__ = ("actor_name", "incarnation", "role", "software_version", "nonce", "epoch", "newest_version", "contract")
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    actor_name: str
    incarnation: int
    role: ActorRole
    software_version: str
    nonce: int
    epoch: int
    newest_version: int
    contract: int
    def __init__(self, actor_name: _Optional[str] = ..., incarnation: _Optional[int] = ..., role: _Optional[_Union[ActorRole, str]] = ..., software_version: _Optional[str] = ..., nonce: _Optional[int] = ..., epoch: _Optional[int] = ..., newest_version: _Optional[int] = ..., contract: _Optional[int] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("run", "actor_index", "exploration", "resume_after_sequence", "seed", "incarnation", "epoch", "contract")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ACTOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    EXPLORATION_FIELD_NUMBER: _ClassVar[int]
    RESUME_AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    run: RunSpec
    actor_index: int
    exploration: Exploration
    resume_after_sequence: int
    seed: int
    incarnation: int
    epoch: int
    contract: int
    def __init__(self, run: _Optional[_Union[RunSpec, _Mapping]] = ..., actor_index: _Optional[int] = ..., exploration: _Optional[_Union[Exploration, _Mapping]] = ..., resume_after_sequence: _Optional[int] = ..., seed: _Optional[int] = ..., incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., contract: _Optional[int] = ...) -> None: ...

class Exploration(_message.Message):
    __slots__ = ("epsilons", "noise", "random_steps", "sampling", "correlation")
    EPSILONS_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    RANDOM_STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_FIELD_NUMBER: _ClassVar[int]
    epsilons: _containers.RepeatedScalarFieldContainer[float]
    noise: _containers.RepeatedScalarFieldContainer[float]
    random_steps: int
    sampling: str
    correlation: float
    def __init__(self, epsilons: _Optional[_Iterable[float]] = ..., noise: _Optional[_Iterable[float]] = ..., random_steps: _Optional[int] = ..., sampling: _Optional[str] = ..., correlation: _Optional[float] = ...) -> None: ...

class RunSpec(_message.Message):
    __slots__ = ("run_id", "environment_id", "environments_per_actor", "segment_length", "max_segment_bytes", "queue_segments", "scheme", "evaluation_episodes", "evaluation_period_updates", "report_period", "max_steps_per_policy", "evaluation_share", "target_return", "environment_arguments", "evaluation_sampling", "policy_patience", "columns", "target_success")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_PER_ACTOR_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_EPISODES_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_PERIOD_UPDATES_FIELD_NUMBER: _ClassVar[int]
    REPORT_PERIOD_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_PER_POLICY_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_SHARE_FIELD_NUMBER: _ClassVar[int]
    TARGET_RETURN_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    POLICY_PATIENCE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    TARGET_SUCCESS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    environment_id: str
    environments_per_actor: int
    segment_length: int
    max_segment_bytes: int
    queue_segments: int
    scheme: str
    evaluation_episodes: int
    evaluation_period_updates: int
    report_period: _duration_pb2.Duration
    max_steps_per_policy: int
    evaluation_share: float
    target_return: float
    environment_arguments: str
    evaluation_sampling: str
    policy_patience: _duration_pb2.Duration
    columns: _containers.RepeatedScalarFieldContainer[str]
    target_success: float
    def __init__(self, run_id: _Optional[str] = ..., environment_id: _Optional[str] = ..., environments_per_actor: _Optional[int] = ..., segment_length: _Optional[int] = ..., max_segment_bytes: _Optional[int] = ..., queue_segments: _Optional[int] = ..., scheme: _Optional[str] = ..., evaluation_episodes: _Optional[int] = ..., evaluation_period_updates: _Optional[int] = ..., report_period: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_steps_per_policy: _Optional[int] = ..., evaluation_share: _Optional[float] = ..., target_return: _Optional[float] = ..., environment_arguments: _Optional[str] = ..., evaluation_sampling: _Optional[str] = ..., policy_patience: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., columns: _Optional[_Iterable[str]] = ..., target_success: _Optional[float] = ...) -> None: ...

class StreamTrajectoriesRequest(_message.Message):
    __slots__ = ("open", "segment", "evaluation", "report", "sent_sequence")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    SENT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    open: StreamOpen
    segment: _trajectory_pb2.Segment
    evaluation: _trajectory_pb2.Evaluation
    report: ActorReport
    sent_sequence: int
    def __init__(self, open: _Optional[_Union[StreamOpen, _Mapping]] = ..., segment: _Optional[_Union[_trajectory_pb2.Segment, _Mapping]] = ..., evaluation: _Optional[_Union[_trajectory_pb2.Evaluation, _Mapping]] = ..., report: _Optional[_Union[ActorReport, _Mapping]] = ..., sent_sequence: _Optional[int] = ...) -> None: ...

class StreamOpen(_message.Message):
    __slots__ = ("actor_name", "incarnation", "environment", "lost_through_sequence")
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    LOST_THROUGH_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    actor_name: str
    incarnation: int
    environment: _trajectory_pb2.EnvironmentSpec
    lost_through_sequence: int
    def __init__(self, actor_name: _Optional[str] = ..., incarnation: _Optional[int] = ..., environment: _Optional[_Union[_trajectory_pb2.EnvironmentSpec, _Mapping]] = ..., lost_through_sequence: _Optional[int] = ...) -> None: ...

class ActorReport(_message.Message):
    __slots__ = ("policy_version", "scheme", "environment_steps", "steps_per_second", "queued_segments", "activation_seconds", "process", "waited_seconds", "avoided_scheme", "scheme_error", "served_version")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_STEPS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    QUEUED_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    WAITED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    AVOIDED_SCHEME_FIELD_NUMBER: _ClassVar[int]
    SCHEME_ERROR_FIELD_NUMBER: _ClassVar[int]
    SERVED_VERSION_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    scheme: str
    environment_steps: int
    steps_per_second: float
    queued_segments: int
    activation_seconds: _containers.RepeatedScalarFieldContainer[float]
    process: _process_pb2.ProcessStats
    waited_seconds: float
    avoided_scheme: str
    scheme_error: float
    served_version: int
    def __init__(self, policy_version: _Optional[int] = ..., scheme: _Optional[str] = ..., environment_steps: _Optional[int] = ..., steps_per_second: _Optional[float] = ..., queued_segments: _Optional[int] = ..., activation_seconds: _Optional[_Iterable[float]] = ..., process: _Optional[_Union[_process_pb2.ProcessStats, _Mapping]] = ..., waited_seconds: _Optional[float] = ..., avoided_scheme: _Optional[str] = ..., scheme_error: _Optional[float] = ..., served_version: _Optional[int] = ...) -> None: ...

class StreamTrajectoriesResponse(_message.Message):
    __slots__ = ("acknowledged_sequence", "credit_through_sequence", "directive", "evaluate_version", "durable_sequence", "max_steps_per_policy")
    ACKNOWLEDGED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_THROUGH_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DIRECTIVE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DURABLE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_PER_POLICY_FIELD_NUMBER: _ClassVar[int]
    acknowledged_sequence: int
    credit_through_sequence: int
    directive: Directive
    evaluate_version: int
    durable_sequence: int
    max_steps_per_policy: int
    def __init__(self, acknowledged_sequence: _Optional[int] = ..., credit_through_sequence: _Optional[int] = ..., directive: _Optional[_Union[Directive, str]] = ..., evaluate_version: _Optional[int] = ..., durable_sequence: _Optional[int] = ..., max_steps_per_policy: _Optional[int] = ...) -> None: ...

class RunStatus(_message.Message):
    __slots__ = ("run_id", "state", "environment_id", "algorithm", "elapsed_s", "environment_steps", "environment_steps_per_s", "updates", "updates_per_s", "samples_per_insert", "episodes", "training_return", "evaluation", "target_return", "max_environment_steps", "policy_version", "staleness", "emitted", "quantizer_connected", "actors", "energy", "starved_s", "loss", "activation_s", "quantization_aware_since", "replay_bytes", "batch_bytes", "multi_step_since", "dynamic_capacity", "storage", "problem", "refused_environments", "flagged_evaluation", "precision", "rollout_queue", "exported_policy", "outdated", "publishing_problem", "figures", "target_success", "processes", "agent_returns", "groups")
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class AgentReturnsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_STEPS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    UPDATES_PER_S_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_INSERT_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    TRAINING_RETURN_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    TARGET_RETURN_FIELD_NUMBER: _ClassVar[int]
    MAX_ENVIRONMENT_STEPS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    QUANTIZER_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    ENERGY_FIELD_NUMBER: _ClassVar[int]
    STARVED_S_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_S_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_AWARE_SINCE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_BYTES_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    MULTI_STEP_SINCE_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REFUSED_ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    FLAGGED_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_QUEUE_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_POLICY_FIELD_NUMBER: _ClassVar[int]
    OUTDATED_FIELD_NUMBER: _ClassVar[int]
    PUBLISHING_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    TARGET_SUCCESS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    AGENT_RETURNS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    state: RunState
    environment_id: str
    algorithm: str
    elapsed_s: float
    environment_steps: int
    environment_steps_per_s: float
    updates: int
    updates_per_s: float
    samples_per_insert: float
    episodes: int
    training_return: float
    evaluation: _trajectory_pb2.Evaluation
    target_return: float
    max_environment_steps: int
    policy_version: int
    staleness: Staleness
    emitted: _policy_pb2.PolicyDescriptor
    quantizer_connected: bool
    actors: _containers.RepeatedCompositeFieldContainer[ActorStatus]
    energy: Energy
    starved_s: float
    loss: float
    activation_s: float
    quantization_aware_since: int
    replay_bytes: int
    batch_bytes: int
    multi_step_since: int
    dynamic_capacity: DynamicCapacity
    storage: ReplayStorage
    problem: str
    refused_environments: int
    flagged_evaluation: str
    precision: str
    rollout_queue: RolloutQueue
    exported_policy: str
    outdated: str
    publishing_problem: str
    figures: _containers.ScalarMap[str, float]
    target_success: float
    processes: _containers.RepeatedCompositeFieldContainer[_process_pb2.ProcessStats]
    agent_returns: _containers.ScalarMap[str, float]
    groups: _containers.RepeatedCompositeFieldContainer[_trajectory_pb2.AgentGroup]
    def __init__(self, run_id: _Optional[str] = ..., state: _Optional[_Union[RunState, str]] = ..., environment_id: _Optional[str] = ..., algorithm: _Optional[str] = ..., elapsed_s: _Optional[float] = ..., environment_steps: _Optional[int] = ..., environment_steps_per_s: _Optional[float] = ..., updates: _Optional[int] = ..., updates_per_s: _Optional[float] = ..., samples_per_insert: _Optional[float] = ..., episodes: _Optional[int] = ..., training_return: _Optional[float] = ..., evaluation: _Optional[_Union[_trajectory_pb2.Evaluation, _Mapping]] = ..., target_return: _Optional[float] = ..., max_environment_steps: _Optional[int] = ..., policy_version: _Optional[int] = ..., staleness: _Optional[_Union[Staleness, _Mapping]] = ..., emitted: _Optional[_Union[_policy_pb2.PolicyDescriptor, _Mapping]] = ..., quantizer_connected: _Optional[bool] = ..., actors: _Optional[_Iterable[_Union[ActorStatus, _Mapping]]] = ..., energy: _Optional[_Union[Energy, _Mapping]] = ..., starved_s: _Optional[float] = ..., loss: _Optional[float] = ..., activation_s: _Optional[float] = ..., quantization_aware_since: _Optional[int] = ..., replay_bytes: _Optional[int] = ..., batch_bytes: _Optional[int] = ..., multi_step_since: _Optional[int] = ..., dynamic_capacity: _Optional[_Union[DynamicCapacity, _Mapping]] = ..., storage: _Optional[_Union[ReplayStorage, _Mapping]] = ..., problem: _Optional[str] = ..., refused_environments: _Optional[int] = ..., flagged_evaluation: _Optional[str] = ..., precision: _Optional[str] = ..., rollout_queue: _Optional[_Union[RolloutQueue, _Mapping]] = ..., exported_policy: _Optional[str] = ..., outdated: _Optional[str] = ..., publishing_problem: _Optional[str] = ..., figures: _Optional[_Mapping[str, float]] = ..., target_success: _Optional[float] = ..., processes: _Optional[_Iterable[_Union[_process_pb2.ProcessStats, _Mapping]]] = ..., agent_returns: _Optional[_Mapping[str, float]] = ..., groups: _Optional[_Iterable[_Union[_trajectory_pb2.AgentGroup, _Mapping]]] = ...) -> None: ...

class RolloutQueue(_message.Message):
    __slots__ = ("waiting_transitions", "dropped_transitions", "mismatch", "divergence", "policy_lag")
    WAITING_TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    MISMATCH_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    POLICY_LAG_FIELD_NUMBER: _ClassVar[int]
    waiting_transitions: int
    dropped_transitions: int
    mismatch: float
    divergence: float
    policy_lag: float
    def __init__(self, waiting_transitions: _Optional[int] = ..., dropped_transitions: _Optional[int] = ..., mismatch: _Optional[float] = ..., divergence: _Optional[float] = ..., policy_lag: _Optional[float] = ...) -> None: ...

class ReplayStorage(_message.Message):
    __slots__ = ("disk_free_bytes", "disk_low", "damaged_segments", "dropped_segments", "lost_segments", "unflushed_transitions")
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_LOW_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    LOST_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    UNFLUSHED_TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    disk_free_bytes: int
    disk_low: bool
    damaged_segments: int
    dropped_segments: int
    lost_segments: int
    unflushed_transitions: int
    def __init__(self, disk_free_bytes: _Optional[int] = ..., disk_low: _Optional[bool] = ..., damaged_segments: _Optional[int] = ..., dropped_segments: _Optional[int] = ..., lost_segments: _Optional[int] = ..., unflushed_transitions: _Optional[int] = ...) -> None: ...

class DynamicCapacity(_message.Message):
    __slots__ = ("transitions", "distance", "drops", "dropped_transitions")
    TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    DROPS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    transitions: int
    distance: float
    drops: int
    dropped_transitions: int
    def __init__(self, transitions: _Optional[int] = ..., distance: _Optional[float] = ..., drops: _Optional[int] = ..., dropped_transitions: _Optional[int] = ...) -> None: ...

class Staleness(_message.Message):
    __slots__ = ("p50", "p99")
    P50_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    p50: float
    p99: float
    def __init__(self, p50: _Optional[float] = ..., p99: _Optional[float] = ...) -> None: ...

class ActorStatus(_message.Message):
    __slots__ = ("actor_name", "role", "actor_index", "connected", "report")
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    actor_name: str
    role: ActorRole
    actor_index: int
    connected: bool
    report: ActorReport
    def __init__(self, actor_name: _Optional[str] = ..., role: _Optional[_Union[ActorRole, str]] = ..., actor_index: _Optional[int] = ..., connected: _Optional[bool] = ..., report: _Optional[_Union[ActorReport, _Mapping]] = ...) -> None: ...

class Energy(_message.Message):
    __slots__ = ("kwh", "co2_kg", "method", "kwh_per_service")
    class KwhPerServiceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KWH_FIELD_NUMBER: _ClassVar[int]
    CO2_KG_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    KWH_PER_SERVICE_FIELD_NUMBER: _ClassVar[int]
    kwh: float
    co2_kg: float
    method: str
    kwh_per_service: _containers.ScalarMap[str, float]
    def __init__(self, kwh: _Optional[float] = ..., co2_kg: _Optional[float] = ..., method: _Optional[str] = ..., kwh_per_service: _Optional[_Mapping[str, float]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: RunStatus
    def __init__(self, status: _Optional[_Union[RunStatus, _Mapping]] = ...) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ("period",)
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    period: _duration_pb2.Duration
    def __init__(self, period: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: RunStatus
    def __init__(self, status: _Optional[_Union[RunStatus, _Mapping]] = ...) -> None: ...

class PauseTrainingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseTrainingResponse(_message.Message):
    __slots__ = ("updates",)
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    updates: int
    def __init__(self, updates: _Optional[int] = ...) -> None: ...

class ResumeTrainingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeTrainingResponse(_message.Message):
    __slots__ = ("updates",)
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    updates: int
    def __init__(self, updates: _Optional[int] = ...) -> None: ...

class SaveCheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveCheckpointResponse(_message.Message):
    __slots__ = ("path", "updates")
    PATH_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    path: str
    updates: int
    def __init__(self, path: _Optional[str] = ..., updates: _Optional[int] = ...) -> None: ...

class StopRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopRunResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: RunState
    def __init__(self, state: _Optional[_Union[RunState, str]] = ...) -> None: ...

class ResetEnvironmentRequest(_message.Message):
    __slots__ = ("discard",)
    DISCARD_FIELD_NUMBER: _ClassVar[int]
    discard: bool
    def __init__(self, discard: _Optional[bool] = ...) -> None: ...

class ResetEnvironmentResponse(_message.Message):
    __slots__ = ("set_aside", "environment")
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    set_aside: str
    environment: _trajectory_pb2.EnvironmentSpec
    def __init__(self, set_aside: _Optional[str] = ..., environment: _Optional[_Union[_trajectory_pb2.EnvironmentSpec, _Mapping]] = ...) -> None: ...

class ReportEnergyRequest(_message.Message):
    __slots__ = ("energy", "processes")
    ENERGY_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    energy: _process_pb2.NodeEnergy
    processes: _containers.RepeatedCompositeFieldContainer[_process_pb2.ProcessStats]
    def __init__(self, energy: _Optional[_Union[_process_pb2.NodeEnergy, _Mapping]] = ..., processes: _Optional[_Iterable[_Union[_process_pb2.ProcessStats, _Mapping]]] = ...) -> None: ...

class ReportEnergyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
