"""The files of a checkpoint, read and checked without PyTorch."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actorq.domain.contract import CONTRACT, check_written
from actorq.errors import InvalidInputError, UserError
from actorq.statefiles.documents import read_document, write_document
from actorq.statefiles.files import read_file, replace_file

# Format 2: state.json has a digest.
_FORMAT = 2
_STATE, _TENSORS = "state.json", "tensors.safetensors"


@dataclass(frozen=True)
class CheckpointFiles:
    """The content of both files. tensors: of safetensors. values: all other state, as JSON values."""

    updates: int
    tensors: bytes
    values: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Write and fsync both files. Raises OSError."""
        digest = hashlib.sha256(self.tensors).hexdigest()
        replace_file(folder / _TENSORS, self.tensors, sync=True)
        header = {"format": _FORMAT, "contract": CONTRACT, "updates": self.updates, "sha256": digest}
        write_document(folder / _STATE, {**header, "values": self.values})

    @classmethod
    def read(cls, folder: Path) -> "CheckpointFiles":
        """Read and check both files.

        Raises InvalidInputError when one is damaged or missing, UserError when another version of ActorQ wrote them,
        UnreadableError when they cannot be read.
        """
        try:
            header = read_document(folder / _STATE)
            tensors = read_file(folder / _TENSORS)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise InvalidInputError(f"{error.filename}: {error.strerror}") from None
        if header["format"] != _FORMAT:
            raise UserError(
                f"{folder}: expected a checkpoint of format {_FORMAT}, got {header['format']}; use the version of "
                "ActorQ that wrote it"
            )
        check_written(str(folder), header.get("contract", 1))
        digest = hashlib.sha256(tensors).hexdigest()
        if digest != header["sha256"]:
            raise InvalidInputError(f"{_TENSORS}: expected sha256 {header['sha256']}, got {digest}")
        return cls(header["updates"], tensors, header["values"])
