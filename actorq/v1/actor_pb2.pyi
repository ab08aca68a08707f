from actorq.v1 import access_pb2 as _access_pb2
from actorq.v1 import learner_pb2 as _learner_pb2
from actorq.v1 import trajectory_pb2 as _trajectory_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetActorStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetActorStatusResponse(_message.Message):
    __slots__ = ("actor_name", "activity", "report", "environment")
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    actor_name: str
    activity: str
    report: _learner_pb2.ActorReport
    environment: _trajectory_pb2.EnvironmentSpec
    def __init__(self, actor_name: _Optional[str] = ..., activity: _Optional[str] = ..., report: _Optional[_Union[_learner_pb2.ActorReport, _Mapping]] = ..., environment: _Optional[_Union[_trajectory_pb2.EnvironmentSpec, _Mapping]] = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ("episodes", "scheme", "policy_version", "seed")
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    episodes: int
    scheme: str
    policy_version: int
    seed: int
    def __init__(self, episodes: _Optional[int] = ..., scheme: _Optional[str] = ..., policy_version: _Optional[int] = ..., seed: _Optional[int] = ...) -> None: ...

class EvaluateResponse(_message.Message):
    __slots__ = ("episode", "evaluation")
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    episode: _trajectory_pb2.Episode
    evaluation: _trajectory_pb2.Evaluation
    def __init__(self, episode: _Optional[_Union[_trajectory_pb2.Episode, _Mapping]] = ..., evaluation: _Optional[_Union[_trajectory_pb2.Evaluation, _Mapping]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("sent_segments", "unsent_segments")
    SENT_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    UNSENT_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    sent_segments: int
    unsent_segments: int
    def __init__(self, sent_segments: _Optional[int] = ..., unsent_segments: _Optional[int] = ...) -> None: ...
