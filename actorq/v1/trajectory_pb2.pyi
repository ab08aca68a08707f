from actorq.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LeafKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEAF_KIND_UNSPECIFIED: _ClassVar[LeafKind]
    LEAF_KIND_NUMBERS: _ClassVar[LeafKind]
    LEAF_KIND_IMAGE: _ClassVar[LeafKind]
    LEAF_KIND_CATEGORY: _ClassVar[LeafKind]
    LEAF_KIND_MASK: _ClassVar[LeafKind]
LEAF_KIND_UNSPECIFIED: LeafKind
LEAF_KIND_NUMBERS: LeafKind
LEAF_KIND_IMAGE: LeafKind
LEAF_KIND_CATEGORY: LeafKind
LEAF_KIND_MASK: LeafKind

class EnvironmentSpec(_message.Message):
    __slots__ = ("environment_id", "observations", "actions", "max_episode_steps", "reward_threshold", "frame_stack", "environment_arguments", "leaves", "sizes", "indicators", "goal", "agents", "groups")
    ENVIRONMENT_ID_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_EPISODE_STEPS_FIELD_NUMBER: _ClassVar[int]
    REWARD_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    FRAME_STACK_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    INDICATORS_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    environment_id: str
    observations: _tensor_pb2.TensorSpec
    actions: _tensor_pb2.TensorSpec
    max_episode_steps: int
    reward_threshold: float
    frame_stack: int
    environment_arguments: str
    leaves: _containers.RepeatedCompositeFieldContainer[Leaf]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    indicators: _containers.RepeatedScalarFieldContainer[int]
    goal: Goal
    agents: _containers.RepeatedScalarFieldContainer[str]
    groups: _containers.RepeatedCompositeFieldContainer[AgentGroup]
    def __init__(self, environment_id: _Optional[str] = ..., observations: _Optional[_Union[_tensor_pb2.TensorSpec, _Mapping]] = ..., actions: _Optional[_Union[_tensor_pb2.TensorSpec, _Mapping]] = ..., max_episode_steps: _Optional[int] = ..., reward_threshold: _Optional[float] = ..., frame_stack: _Optional[int] = ..., environment_arguments: _Optional[str] = ..., leaves: _Optional[_Iterable[_Union[Leaf, _Mapping]]] = ..., sizes: _Optional[_Iterable[int]] = ..., indicators: _Optional[_Iterable[int]] = ..., goal: _Optional[_Union[Goal, _Mapping]] = ..., agents: _Optional[_Iterable[str]] = ..., groups: _Optional[_Iterable[_Union[AgentGroup, _Mapping]]] = ...) -> None: ...

class AgentGroup(_message.Message):
    __slots__ = ("name", "agents", "bit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    BIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    agents: _containers.RepeatedScalarFieldContainer[str]
    bit: int
    def __init__(self, name: _Optional[str] = ..., agents: _Optional[_Iterable[str]] = ..., bit: _Optional[int] = ...) -> None: ...

class Leaf(_message.Message):
    __slots__ = ("name", "kind", "spec", "categories", "critic")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    CRITIC_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: LeafKind
    spec: _tensor_pb2.TensorSpec
    categories: int
    critic: bool
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[LeafKind, str]] = ..., spec: _Optional[_Union[_tensor_pb2.TensorSpec, _Mapping]] = ..., categories: _Optional[int] = ..., critic: _Optional[bool] = ...) -> None: ...

class Goal(_message.Message):
    __slots__ = ("achieved", "desired", "size")
    ACHIEVED_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    achieved: int
    desired: int
    size: int
    def __init__(self, achieved: _Optional[int] = ..., desired: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class PolicySpan(_message.Message):
    __slots__ = ("first_step", "version", "scheme")
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    first_step: int
    version: int
    scheme: str
    def __init__(self, first_step: _Optional[int] = ..., version: _Optional[int] = ..., scheme: _Optional[str] = ...) -> None: ...

class Episode(_message.Message):
    __slots__ = ("episode_return", "length", "environment", "success", "agent_returns")
    EPISODE_RETURN_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    AGENT_RETURNS_FIELD_NUMBER: _ClassVar[int]
    episode_return: float
    length: int
    environment: int
    success: bool
    agent_returns: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, episode_return: _Optional[float] = ..., length: _Optional[int] = ..., environment: _Optional[int] = ..., success: _Optional[bool] = ..., agent_returns: _Optional[_Iterable[float]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: _tensor_pb2.Tensor
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("sequence", "columns", "spans", "episodes", "follows")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    spans: _containers.RepeatedCompositeFieldContainer[PolicySpan]
    episodes: _containers.RepeatedCompositeFieldContainer[Episode]
    follows: bool
    def __init__(self, sequence: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., spans: _Optional[_Iterable[_Union[PolicySpan, _Mapping]]] = ..., episodes: _Optional[_Iterable[_Union[Episode, _Mapping]]] = ..., follows: _Optional[bool] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("sequence", "policy_version", "learner_step", "scheme", "returns", "lengths", "duration_s", "successes", "agents", "agent_returns")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEARNER_STEP_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    SUCCESSES_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    AGENT_RETURNS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    policy_version: int
    learner_step: int
    scheme: str
    returns: _containers.RepeatedScalarFieldContainer[float]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    duration_s: float
    successes: _containers.RepeatedScalarFieldContainer[bool]
    agents: _containers.RepeatedScalarFieldContainer[str]
    agent_returns: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, sequence: _Optional[int] = ..., policy_version: _Optional[int] = ..., learner_step: _Optional[int] = ..., scheme: _Optional[str] = ..., returns: _Optional[_Iterable[float]] = ..., lengths: _Optional[_Iterable[int]] = ..., duration_s: _Optional[float] = ..., successes: _Optional[_Iterable[bool]] = ..., agents: _Optional[_Iterable[str]] = ..., agent_returns: _Optional[_Iterable[float]] = ...) -> None: ...
