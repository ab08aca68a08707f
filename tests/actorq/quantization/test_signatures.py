"""A model carries its signature in its metadata."""

import onnx
import pytest

from actorq.domain.signature import METADATA, signature_of
from actorq.errors import InvalidInputError
from actorq.quantization.signatures import read_graph, signed_graph
from tests.quantizer_service.policy_graphs import GRAPHS


def _model(**metadata: str) -> onnx.ModelProto:
    model = onnx.ModelProto(ir_version=10)
    onnx.helper.set_model_props(model, metadata)
    return model


@pytest.mark.parametrize("name", GRAPHS)
def test_reads_a_signed_model_unchanged(name: str) -> None:
    assert read_graph(GRAPHS[name].model) == GRAPHS[name]


def test_a_new_signature_replaces_the_old_one_and_no_other_metadata() -> None:
    model = _model(author="somebody", **{METADATA: "an old one"})
    signature = signature_of(("x",), ("actions",), spans=(0.3, 1e20))

    graph = signed_graph(model, signature)

    assert read_graph(graph.model).signature == graph.signature == signature
    entries = [(entry.key, entry.value) for entry in onnx.ModelProto.FromString(graph.model).metadata_props]
    assert entries == [("author", "somebody"), (METADATA, signature.to_text())]


@pytest.mark.parametrize(
    ("model", "fact"),
    [
        (b"no model", "8 bytes that do not parse"),
        (_model(author="somebody").SerializeToString(), "got none"),
        (_model(**{METADATA: " " * (2 * 1024**2 + 1)}).SerializeToString(), "got 2097153 characters"),
        (_model(**{METADATA: "{}"}).SerializeToString(), "signature: expected inputs"),
    ],
)
def test_a_model_without_a_signature_is_refused(model: bytes, fact: str) -> None:
    with pytest.raises(InvalidInputError, match=fact):
        read_graph(model)
