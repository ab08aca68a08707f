"""The reference of RPCs: services and messages with their comments, from the .proto files."""

import tempfile
from functools import cache
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_tools import protoc

from actorq.externalscaler import externalscaler_pb2
from actorq.transport.security.roles import allowed_roles
from actorq.v1 import access_pb2, actor_pb2, external_pb2, learner_pb2, quantizer_pb2
from sitegen.markdown import names, table

_ROOT = Path(__file__).parents[1] / "protos"
_PACKAGE = "actorq.v1"
# Field numbers of descriptor.proto. The path of a comment consists of them.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
# Fields of a message, values of an enum, methods of a service.
_MEMBERS = 2
_SERVERS = (
    *(learner_pb2, quantizer_pb2, actor_pb2, external_pb2),
    *(externalscaler_pb2, health_pb2, reflection_pb2),
)


def services() -> str:
    """A section for each service, with its RPCs."""
    return "\n\n".join(
        _service(file, index, service) for file in _files() for index, service in enumerate(file.service)
    )


def messages() -> str:
    """A section for each message and enum, in the order of their names."""
    sections: dict[str, str] = {}
    for file in _files():
        sections |= {found.name: _message(file, index, found) for index, found in enumerate(file.message_type)}
        sections |= {found.name: _enum(file, index, found) for index, found in enumerate(file.enum_type)}
    return "\n\n".join(sections[name] for name in sorted(sections))


def rights(role: str) -> str:
    """The RPCs of each service that a role may call, and those that are refused."""
    rows = []
    for file in _SERVERS:
        for service in file.DESCRIPTOR.services_by_name.values():
            methods = [method.name for method in service.methods]
            may = [name for name in methods if role in allowed_roles(f"/{service.full_name}/{name}")]
            rows.append((f"`{service.name}`", names(may), names(name for name in methods if name not in may)))
    return table(("service", "allowed", "refused with PERMISSION_DENIED"), rows)


@cache
def _files() -> list[FileDescriptorProto]:
    """The project's files, with comments."""
    files = sorted(str(path.relative_to(_ROOT)) for path in (_ROOT / "actorq" / "v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set.pb"
        includes = [f"--proto_path={_ROOT}", f"--proto_path={Path(protoc.__file__).parent / '_proto'}"]
        code = protoc.main(["protoc", *includes, "--include_source_info", f"--descriptor_set_out={out}", *files])
        if code != 0:
            raise RuntimeError(f"protoc ended with {code}")
        return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def _comment(file: FileDescriptorProto, *path: int) -> str:
    found = (each for each in file.source_code_info.location if list(each.path) == list(path))
    return " ".join(next(found).leading_comments.split())


def _service(file: FileDescriptorProto, index: int, service: ServiceDescriptorProto) -> str:
    parts = [f"## {service.name}", _comment(file, _SERVICES, index)]
    for number, method in enumerate(service.method):
        request, answer = (
            f"{'stream of ' * streams}{_type_link(name)}"
            for streams, name in (
                (method.client_streaming, method.input_type),
                (method.server_streaming, method.output_type),
            )
        )
        callers: str = method.options.Extensions[access_pb2.callers]  # type: ignore[index]
        parts += [f"### {method.name}", f"{request} → {answer}", _comment(file, _SERVICES, index, _MEMBERS, number)]
        parts.append(f"With mutual TLS these roles may call it: {names(callers.split())}.")
    return "\n\n".join(parts)


def _message(file: FileDescriptorProto, index: int, message: DescriptorProto) -> str:
    rows = [
        (
            f"`{field.name}`",
            field.number,
            _field_type(message, field),
            _comment(file, _MESSAGES, index, _MEMBERS, number),
        )
        for number, field in enumerate(message.field)
    ]
    fields = table(("field", "number", "type", "meaning"), rows) if rows else "No fields."
    return f"### {message.name}\n\n{_comment(file, _MESSAGES, index)}\n\n{fields}"


def _enum(file: FileDescriptorProto, index: int, enum: EnumDescriptorProto) -> str:
    rows = [
        (f"`{value.name}`", value.number, _comment(file, _ENUMS, index, _MEMBERS, number))
        for number, value in enumerate(enum.value)
    ]
    return f"### {enum.name}\n\n{_comment(file, _ENUMS, index)}\n\n{table(('value', 'number', 'meaning'), rows)}"


def _field_type(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    entry = next(
        (each for each in message.nested_type if field.type_name.endswith(f".{message.name}.{each.name}")), None
    )
    if entry is not None and entry.options.map_entry:
        return f"map of {' to '.join(_field_type(entry, each) for each in entry.field)}"
    if field.type_name:
        kind = _type_link(field.type_name)
    else:
        kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"list of {kind}"
    if field.proto3_optional:
        return f"{kind}, optional"
    in_oneof = field.HasField("oneof_index")
    return f"{kind}, one of `{message.oneof_decl[field.oneof_index].name}`" if in_oneof else kind


def _type_link(name: str) -> str:
    """A link to the section of a type of the project; the name of any other type as code."""
    package, _, short = name.removeprefix(".").rpartition(".")
    return f"[{short}](#{short.lower()})" if package == _PACKAGE else f"`{name.removeprefix('.')}`"
