"""Checkpoints and graphs that a quantizer refuses, each with the status and a pattern in its details."""

import hashlib
import struct
from collections.abc import Callable

import grpc
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from actorq.domain.limits import MAX_BLOB_BYTES
from actorq.domain.policy import PolicyGraph
from actorq.domain.signature import METADATA
from actorq.transport.payload.blobs import split_blob
from actorq.v1 import quantizer_pb2, tensor_pb2
from quantizer_service.store.policy_files import encode_tensors
from tests.builders.graphs import graph_of
from tests.quantizer_service.hostile_graphs import REFUSED
from tests.quantizer_service.policy_graphs import OBSERVATION_SIZE, Tensors, mlp, policy_graph
from tests.quantizer_service.policy_runs import checkpoint, random_parameters
from tests.quantizer_service.quantizer_server import SOURCE, Publisher

GIGABYTE = 10**9
INVALID, CONFLICT = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
PARAMETERS = random_parameters(SOURCE, 2)
Send = Callable[[Publisher], None]


def refusal(publisher: Publisher, send: Send) -> tuple[grpc.StatusCode, str]:
    """Status and details with which a publisher's stream ends after these messages."""
    send(publisher)
    with pytest.raises(grpc.RpcError) as caught:
        publisher.answer()
    return caught.value.code(), caught.value.details()


# Checkpoints.


def parameters(**changes: np.ndarray | None) -> Send:
    """A checkpoint with some parameters replaced, and those that are None left out."""
    changed = {**PARAMETERS, **{name.replace("__", "."): array for name, array in changes.items()}}
    kept: Tensors = {name: array for name, array in changed.items() if array is not None}
    return lambda publisher: publisher.send_checkpoint(checkpoint(SOURCE, 2, parameters=kept))


def calibration(**batches: np.ndarray) -> Send:
    return lambda publisher: publisher.send_checkpoint(checkpoint(SOURCE, 2, calibration=batches))


def with_value(value: float) -> np.ndarray:
    array = PARAMETERS["layers.1.weight"].copy()
    array[3, 5] = value
    return array


def header(publisher: Publisher, version: int = 2) -> None:
    announced = quantizer_pb2.CheckpointHeader(version=version, graph_digest=SOURCE.digest)
    announced.snapshot_at.FromSeconds(1)
    publisher.send(checkpoint=announced)


def claim(publisher: Publisher, size_bytes: int, version: int = 2) -> None:
    """A blob's header that claims so many bytes."""
    part = tensor_pb2.BlobHeader(version=version, size_bytes=size_bytes, sha256=bytes(32))
    publisher.send(part=tensor_pb2.BlobPart(header=part))


def blob(data: bytes, sha256: bytes | None = None, dropped: int = 0) -> Send:
    """A checkpoint of these bytes, with another digest, or without its last parts."""

    def send(publisher: Publisher) -> None:
        header(publisher)
        parts = list(split_blob(data, 2, chunk_bytes=1024))
        if sha256 is not None:
            parts[0].header.sha256 = sha256
        for part in parts[: len(parts) - dropped]:
            publisher.send(part=part)

    return send


def truncated(publisher: Publisher) -> None:
    blob(encode_tensors(checkpoint(SOURCE, 2)), dropped=1)(publisher)
    publisher.end()


def truncated_before_its_parts(publisher: Publisher) -> None:
    header(publisher)
    publisher.end()


def huge_checkpoint(publisher: Publisher) -> None:
    header(publisher)
    claim(publisher, GIGABYTE)


def huge_graph(publisher: Publisher) -> None:
    publisher.send(graph=quantizer_pb2.GraphHeader(digest=bytes(32)))
    claim(publisher, GIGABYTE, version=0)


def safetensors(shape: list[int], size_bytes: int) -> bytes:
    """A file whose header claims a tensor of that shape and size; what follows has 16 bytes."""
    text = f'{{"layers.0.weight":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{size_bytes}]}}}}'.encode()
    return struct.pack("<Q", len(text)) + text + bytes(16)


ENCODED = encode_tensors(checkpoint(SOURCE, 2))
OVERFLOWING = {name: np.full_like(array, 1e30) for name, array in PARAMETERS.items()}


CHECKPOINTS: dict[str, tuple[Send, grpc.StatusCode, str]] = {
    "a missing tensor": (parameters(layers__1__bias=None), INVALID, r"missing \['layers\.1\.bias'\]"),
    "a misnamed tensor": (
        parameters(layers__1__bias=None, layers__1__Bias=PARAMETERS["layers.1.bias"]),
        INVALID,
        r"missing \['layers\.1\.bias'\], unexpected \['layers\.1\.Bias'\]",
    ),
    "a wrong shape": (
        parameters(layers__1__weight=PARAMETERS["layers.1.weight"][:, :15].copy()),
        INVALID,
        r"'layers\.1\.weight': .*\[16, 16\], .*\[16, 15\]",
    ),
    "a scalar instead of a vector": (
        parameters(layers__1__bias=np.zeros((), np.float32)), INVALID, r"'layers\.1\.bias': .*\[16\], .*\[\]",
    ),
    "a wrong dtype": (
        parameters(layers__1__weight=PARAMETERS["layers.1.weight"].astype(np.float64)), INVALID,
        r"'layers\.1\.weight': .*float64",
    ),
    "NaN": (parameters(layers__1__weight=with_value(np.nan)), INVALID, "1 NaN .*256"),
    "Inf": (parameters(layers__1__weight=with_value(np.inf)), INVALID, "1 NaN .*256"),
    "minus Inf": (parameters(layers__1__weight=with_value(-np.inf)), INVALID, "1 NaN .*256.*diverged"),
    "finite weights with infinite outputs": (
        lambda p: p.send_checkpoint(checkpoint(SOURCE, 2, parameters=OVERFLOWING)), INVALID, "finite outputs",
    ),
    "no observations": (calibration(observation=np.zeros((0, 5), np.float32)), INVALID, r"rows, .*\[0\]"),
    "observations of another size": (
        calibration(observation=np.zeros((4, 6), np.float32)), INVALID, r"calibration 'observation': .*\[4, 6\]",
    ),
    "misnamed observations": (
        calibration(state=np.zeros((4, 5), np.float32)), INVALID, r"missing \['observation'\], unexpected \['state'\]",
    ),
    "NaN observations": (
        calibration(observation=np.full((4, 5), np.nan, np.float32)), INVALID, "'observation': .*finite",
    ),
    "the newest version again": (
        lambda p: p.send_checkpoint(checkpoint(SOURCE, 1)), CONFLICT, "version above 1, .*1",
    ),
    "version 2^64 - 1": (lambda p: header(p, 2**64 - 1), INVALID, f"version: .*{2**62 - 1}, .*{2**64 - 1}"),
    "version 2^63": (lambda p: header(p, 2**63), INVALID, f"version: .*{2**62 - 1}, .*{2**63}"),
    "a version far above the newest": (
        lambda p: p.send_checkpoint(checkpoint(SOURCE, 2**40, snapshot_at=1.0, learner_step=1)), INVALID,
        f"version .*{2**32 + 1}",
    ),
    "a truncated stream": (truncated, INVALID, "checkpoint 2, .*end of the stream"),
    "a stream that ends after a header": (
        truncated_before_its_parts, INVALID, "checkpoint 2, .*end of the stream",
    ),
    "a truncated file": (blob(ENCODED[:-100]), INVALID, "checkpoint 2: .*safetensors"),
    "a wrong digest": (
        blob(ENCODED, sha256=bytes(32)), INVALID,
        f"{bytes(32).hex()}, .*{hashlib.sha256(ENCODED).hexdigest()}",
    ),
    "1 GB claimed by the blob's header": (
        huge_checkpoint, EXHAUSTED, f"{MAX_BLOB_BYTES} bytes, .*{GIGABYTE}",
    ),
    "1 GB claimed by the tensors' header": (
        blob(safetensors([250_000_000], GIGABYTE)), INVALID, "checkpoint 2: .*safetensors",
    ),
    "1 GB claimed by a tensor's shape": (
        blob(safetensors([250_000_000], 16)), INVALID, "checkpoint 2: .*safetensors",
    ),
    "a header of 1 GB claimed by the file": (
        blob(struct.pack("<Q", GIGABYTE) + bytes(64)), INVALID, "checkpoint 2: .*safetensors",
    ),
}  # fmt: skip


# Graphs.


def graph(source: PolicyGraph) -> Send:
    return lambda publisher: publisher.send_graph(source)


def edited(change: Callable[[onnx.ModelProto], None], source: PolicyGraph = SOURCE) -> Send:
    model = onnx.ModelProto.FromString(source.model)
    change(model)
    return graph(PolicyGraph(model.SerializeToString(), source.signature))


def operator(op_type: str, domain: str = "") -> Send:
    """A graph whose one node is of that type."""
    nodes = [helper.make_node(op_type, ["observation", "weight"], ["q_values"], domain=domain)]
    source = policy_graph(nodes, {"weight": [OBSERVATION_SIZE, 3]})

    def import_domain(model: onnx.ModelProto) -> None:
        if domain:
            model.opset_import.append(helper.make_opsetid(domain, 1))

    return edited(import_domain, source)


def rename_input(model: onnx.ModelProto) -> None:
    model.graph.input[3].name = "layers.1.kernel"


def free_observation_size(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "size"


def free_parameter_size(model: onnx.ModelProto) -> None:
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "units"


def huge_constant_shape(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(TensorProto(name="huge", data_type=TensorProto.FLOAT, dims=[250_000_000]))


def file_of_this_machine(model: onnx.ModelProto) -> None:
    tensor = TensorProto(name="outside", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    model.graph.initializer.append(tensor)


def fits_no_shape(model: onnx.ModelProto) -> None:
    model.graph.input[3].type.tensor_type.shape.dim[1].dim_value = 17


def renamed(publisher: Publisher) -> None:
    publisher.send(graph=quantizer_pb2.GraphHeader(digest=bytes(32)))
    for part in split_blob(mlp(4).model):
        publisher.send(part=part)


def truncated_graph(publisher: Publisher) -> None:
    source = mlp(4)
    publisher.send(graph=quantizer_pb2.GraphHeader(digest=source.digest))
    for part in list(split_blob(source.model, chunk_bytes=100))[:-1]:
        publisher.send(part=part)
    publisher.end()


def with_signature(text: str | None) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        del model.metadata_props[:]
        if text is not None:
            model.metadata_props.add(key=METADATA, value=text)

    return change


def port(name: str, role: str, sizes: str = "", spans: str = "") -> str:
    return f'["{name}","{role}",[{sizes}],[{spans}]]'


def signature_text(inputs: str, outputs: str) -> str:
    return f'{{"inputs":[{inputs}],"outputs":[{outputs}]}}'


GIVEN, ACTING = port("observation", "observation"), port("q_values", "q_values")


GRAPHS: dict[str, tuple[Send, grpc.StatusCode, str]] = {
    "no ONNX": (graph(graph_of(b"\x01" * 500)), INVALID, "that do not parse"),
    "nothing": (graph(graph_of(b"")), INVALID, "graph: "),
    "a parameter that no input has": (edited(rename_input), INVALID, "graph: .*valid ONNX"),
    "an unknown operator": (operator("NoSuchOperator"), INVALID, "NoSuchOperator"),
    "an operator of an unknown domain": (operator("NoSuchOperator", "com.example"), INVALID, "NoSuchOperator"),
    "an observation of a free size": (edited(free_observation_size), INVALID, "'observation' .*size"),
    "a parameter of a free size": (edited(free_parameter_size), INVALID, r"'layers\.0\.weight' .*fixed shape"),
    "a constant whose bytes are not there": (edited(huge_constant_shape), INVALID, "graph: "),
    "a constant in a file": (edited(file_of_this_machine), INVALID, "another file"),
    "layers that do not fit each other": (edited(fits_no_shape), INVALID, "graph: "),
    **{what: (graph(source), INVALID, fact) for what, (source, fact) in REFUSED.items()},
    "a wrong digest": (renamed, INVALID, "SHA-256"),
    "a truncated stream": (truncated_graph, INVALID, "the graph, .*end of the stream"),
    "1 GB claimed": (huge_graph, EXHAUSTED, f"bytes, .*{GIGABYTE}"),
    "no roles": (edited(with_signature(None)), INVALID, "'signature'.*none"),
    **{
        f"a signature with {what}": (edited(with_signature(text)), INVALID, fault)
        for what, (text, fault) in {
            "no JSON": ("[", "signature: "),
            "depth": ("[" * 100_000, "signature: "),
            "no outputs": (signature_text(GIVEN, ""), "outputs, .*0"),
            "many inputs": (signature_text(",".join([GIVEN] * 65), ACTING), "inputs, .*65"),
            "many outputs": (signature_text(GIVEN, ",".join([ACTING] * 65)), "outputs, .*65"),
            "a span of 0": (signature_text(GIVEN, port("q_values", "actions", spans="1,0")), r"\[1\.0, 0\.0\]"),
            "a span beyond floats": (
                signature_text(GIVEN, port("q_values", "actions", spans=f"1{'0' * 400}")),
                "Overflow",
            ),
            "sizes below 0": (signature_text(GIVEN, port("q_values", "q_values", sizes="-5,10")), r"\[-5, 10\]"),
            "a size of 0": (signature_text(GIVEN, port("q_values", "q_values", sizes="3,0")), r"\[3, 0\]"),
            "an unknown role": (signature_text(GIVEN, port("q_values", "reward")), "reward"),
            "an input that acts": (signature_text(port("observation", "logits"), ACTING), "logits"),
            "a role twice": (signature_text(GIVEN, f"{ACTING},{ACTING}"), "role once"),
            "an unknown input": (signature_text(port("pixels", "observation"), ACTING), r"\['pixels'\]"),
            "an unknown output": (signature_text(GIVEN, port("values", "q_values")), r"without \['values'\]"),
        }.items()
    },
}


def blob_in_large_parts(publisher: Publisher, data: bytes) -> None:
    """A whole blob with a wrong digest."""
    header(publisher)
    for number, part in enumerate(split_blob(data, 2)):
        if number == 0:
            part.header.sha256 = bytes(32)
        publisher.send(part=part)
