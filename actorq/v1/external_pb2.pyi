import datetime

from actorq.v1 import access_pb2 as _access_pb2
from actorq.v1 import tensor_pb2 as _tensor_pb2
from actorq.v1 import trajectory_pb2 as _trajectory_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PlayRequest(_message.Message):
    __slots__ = ("open", "step")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    open: PlayOpen
    step: PlayStep
    def __init__(self, open: _Optional[_Union[PlayOpen, _Mapping]] = ..., step: _Optional[_Union[PlayStep, _Mapping]] = ...) -> None: ...

class PlayOpen(_message.Message):
    __slots__ = ("protocol", "environments", "observations", "actions", "sizes", "max_episode_steps", "reward_threshold", "frame_stack", "explore")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    MAX_EPISODE_STEPS_FIELD_NUMBER: _ClassVar[int]
    REWARD_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    FRAME_STACK_FIELD_NUMBER: _ClassVar[int]
    EXPLORE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    environments: int
    observations: _containers.RepeatedCompositeFieldContainer[_trajectory_pb2.Leaf]
    actions: _tensor_pb2.TensorSpec
    sizes: _containers.RepeatedScalarFieldContainer[int]
    max_episode_steps: int
    reward_threshold: float
    frame_stack: int
    explore: bool
    def __init__(self, protocol: _Optional[int] = ..., environments: _Optional[int] = ..., observations: _Optional[_Iterable[_Union[_trajectory_pb2.Leaf, _Mapping]]] = ..., actions: _Optional[_Union[_tensor_pb2.TensorSpec, _Mapping]] = ..., sizes: _Optional[_Iterable[int]] = ..., max_episode_steps: _Optional[int] = ..., reward_threshold: _Optional[float] = ..., frame_stack: _Optional[int] = ..., explore: _Optional[bool] = ...) -> None: ...

class PlayStep(_message.Message):
    __slots__ = ("observations", "rewards", "terminated", "truncated", "successes")
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    SUCCESSES_FIELD_NUMBER: _ClassVar[int]
    observations: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    rewards: _containers.RepeatedScalarFieldContainer[float]
    terminated: _containers.RepeatedScalarFieldContainer[bool]
    truncated: _containers.RepeatedScalarFieldContainer[bool]
    successes: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, observations: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., rewards: _Optional[_Iterable[float]] = ..., terminated: _Optional[_Iterable[bool]] = ..., truncated: _Optional[_Iterable[bool]] = ..., successes: _Optional[_Iterable[bool]] = ...) -> None: ...

class PlayResponse(_message.Message):
    __slots__ = ("ready", "action")
    READY_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    ready: PlayReady
    action: PlayAction
    def __init__(self, ready: _Optional[_Union[PlayReady, _Mapping]] = ..., action: _Optional[_Union[PlayAction, _Mapping]] = ...) -> None: ...

class PlayReady(_message.Message):
    __slots__ = ("protocol", "run_id", "environment_id", "timeout")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    run_id: str
    environment_id: str
    timeout: _duration_pb2.Duration
    def __init__(self, protocol: _Optional[int] = ..., run_id: _Optional[str] = ..., environment_id: _Optional[str] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PlayAction(_message.Message):
    __slots__ = ("actions", "policy_versions", "scheme", "evaluating")
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    EVALUATING_FIELD_NUMBER: _ClassVar[int]
    actions: _tensor_pb2.Tensor
    policy_versions: _containers.RepeatedScalarFieldContainer[int]
    scheme: str
    evaluating: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, actions: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., policy_versions: _Optional[_Iterable[int]] = ..., scheme: _Optional[str] = ..., evaluating: _Optional[_Iterable[bool]] = ...) -> None: ...
