"""Reads the input files of `actorq quantize`: a model with its weights, and observations."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError
from numpy.typing import NDArray
from onnx import TensorProto
from onnx.external_data_helper import load_external_data_for_model

from actorq.errors import UserError
from actorq.quantization.graph import Graph, tensors_of
from actorq.text import reason_of

# Far above the size of any policy. A larger file is a mistake and would fill the memory.
MAX_FILE_BYTES = 1024**3
RANDOM_ROWS = 256


def read_model(path: Path) -> bytes:
    """Read an ONNX file, with weights from files beside it. Raises UserError for a file that is no valid model."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise UserError(f"{path}: expected a policy of at most {MAX_FILE_BYTES >> 20} MiB, got {size:,} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise UserError(
            f"{path}: expected an ONNX model, got {size:,} bytes that do not parse; export it with torch.onnx.export "
            "or the exporter of your library"
        ) from None
    if not model.graph.node:
        raise UserError(f"{path}: expected an ONNX model, got {size:,} bytes without a graph")
    elsewhere = [t for t in tensors_of(model.graph) if t.data_location == TensorProto.EXTERNAL]
    if not elsewhere:
        return data
    _check_sizes(path, elsewhere)
    try:
        load_external_data_for_model(model, str(path.parent))
        return bytes(model.SerializeToString())
    except (OSError, ValueError, RuntimeError, EncodeError, onnx.checker.ValidationError) as error:
        raise UserError(f"{path}: cannot read its weights in another file: {reason_of(error)}") from None


def read_observations(path: Path, graph: Graph) -> dict[str, NDArray[Any]]:
    """Read one array per data input, by name. With a single input and a single array, the names may differ.

    Raises UserError for an invalid file. The graph itself checks shapes and dtypes later.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_FILE_BYTES:
            most = f"at most {MAX_FILE_BYTES >> 20} MiB of observations"
            raise UserError(f"{path}: expected {most}, got {size:,} bytes; a few hundred rows are enough")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UserError:
        raise
    except Exception as error:  # Damaged archives raise errors of zipfile, zlib, tokenize and numpy.
        raise UserError(f"{path}: expected an .npz file of plain arrays from numpy.savez: {reason_of(error)}") from None
    if len(graph.inputs) == len(arrays) == 1:
        return dict(zip(graph.inputs, arrays.values(), strict=True))
    return arrays


def random_observations(graph: Graph, seed: int) -> dict[str, NDArray[Any]]:
    """256 random rows per data input: standard normal floats, any uint8 values, or 0 and 1 for other integers."""
    rng = np.random.default_rng(seed)
    observations: dict[str, NDArray[Any]] = {}
    for name, spec in graph.inputs.items():
        shape = (RANDOM_ROWS, *spec.shape)
        # Other integers may be indices. 0 and 1 are nearly always valid indices.
        values = 256 if spec.dtype == np.uint8 else 2
        drawn = rng.standard_normal(shape) if spec.dtype.kind == "f" else rng.integers(0, values, shape)
        observations[name] = drawn.astype(spec.dtype)
    return observations


def _check_sizes(path: Path, tensors: list[onnx.TensorProto]) -> None:
    size = 0
    for tensor in tensors:
        length = next((entry.value for entry in tensor.external_data if entry.key == "length"), "0")
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        if length.isdecimal() and int(length):
            size += int(length)
        elif (file := path.parent / location).is_file():
            size += file.stat().st_size
    if size > MAX_FILE_BYTES:
        most = f"at most {MAX_FILE_BYTES >> 20} MiB"
        raise UserError(f"{path}: expected a policy of {most}, got weights of {size:,} bytes in other files")
