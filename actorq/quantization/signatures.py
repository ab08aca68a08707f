"""Signatures in the metadata of ONNX models."""

import onnx

from actorq.domain.policy import PolicyGraph
from actorq.domain.signature import METADATA, Signature
from actorq.errors import InvalidInputError

# Long enough for the spans of an output with the maximum number of components.
_MOST_CHARACTERS = 2 * 1024**2


def signed_graph(model: onnx.ModelProto, signature: Signature) -> PolicyGraph:
    """The graph of a model. Writes the signature into the model's metadata."""
    others = [entry for entry in model.metadata_props if entry.key != METADATA]
    del model.metadata_props[:]
    model.metadata_props.extend([*others, onnx.StringStringEntryProto(key=METADATA, value=signature.to_text())])
    return PolicyGraph(model.SerializeToString(deterministic=True), signature)


def parsed_model(model: bytes) -> onnx.ModelProto:
    """The parsed model. Raises InvalidInputError if the bytes are not a model."""
    try:
        return onnx.ModelProto.FromString(model)
    except Exception:  # Damaged bytes raise more than DecodeError.
        raise InvalidInputError(
            f"graph: expected an ONNX model, got {len(model)} bytes that do not parse; export it with torch.onnx.export"
        ) from None


def read_graph(model: bytes) -> PolicyGraph:
    """The graph of a model that `signed_graph` wrote. Raises InvalidInputError for any other model."""
    found = next((entry.value for entry in parsed_model(model).metadata_props if entry.key == METADATA), None)
    if found is None or not isinstance(found, str) or len(found) > _MOST_CHARACTERS:
        raise InvalidInputError(
            f"graph: expected the roles of its inputs and outputs in the metadata {METADATA!r}, got "
            f"{'none' if found is None else f'{len(found)} characters'}"
        )
    return PolicyGraph(model, Signature.from_text(found))
