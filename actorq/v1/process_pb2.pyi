import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProcessStats(_message.Message):
    __slots__ = ("name", "role", "node", "pid", "started_at", "cpu_seconds", "resident_bytes", "peak_resident_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    node: str
    pid: int
    started_at: _timestamp_pb2.Timestamp
    cpu_seconds: float
    resident_bytes: int
    peak_resident_bytes: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., node: _Optional[str] = ..., pid: _Optional[int] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cpu_seconds: _Optional[float] = ..., resident_bytes: _Optional[int] = ..., peak_resident_bytes: _Optional[int] = ...) -> None: ...

class NodeEnergy(_message.Message):
    __slots__ = ("node", "cpu_kwh", "ram_kwh", "gpu_kwh", "co2_kg", "busy_cpu_seconds", "method")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CPU_KWH_FIELD_NUMBER: _ClassVar[int]
    RAM_KWH_FIELD_NUMBER: _ClassVar[int]
    GPU_KWH_FIELD_NUMBER: _ClassVar[int]
    CO2_KG_FIELD_NUMBER: _ClassVar[int]
    BUSY_CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    node: str
    cpu_kwh: float
    ram_kwh: float
    gpu_kwh: float
    co2_kg: float
    busy_cpu_seconds: float
    method: str
    def __init__(self, node: _Optional[str] = ..., cpu_kwh: _Optional[float] = ..., ram_kwh: _Optional[float] = ..., gpu_kwh: _Optional[float] = ..., co2_kg: _Optional[float] = ..., busy_cpu_seconds: _Optional[float] = ..., method: _Optional[str] = ...) -> None: ...
