"""Atomic checkpoints of the learner: safetensors and JSON in a folder that appears whole or not at all."""

import hashlib
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from actorq.errors import InvalidInputError, UserError
from actorq.statefiles.documents import read_document, write_document
from actorq.statefiles.files import replace_file, sync_folder

# Format 2: state.json has a digest.
_FORMAT = 2
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LearnerState:
    """The content of a checkpoint: the algorithm's tensors, and all other state as JSON values."""

    updates: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, the newest `keep` of them on disk."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory = directory
        self._keep = keep
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.glob("*.partial"):
            shutil.rmtree(leftover)
        for replaced in directory.glob("*.replaced"):
            _restore(replaced)

    def save(self, state: LearnerState) -> Path:
        """Write and fsync a checkpoint, then remove the oldest ones beyond `keep`. Returns its folder.

        Raises OSError, and changes nothing, when the disk is full.
        """
        final = self._directory / f"{state.updates:012d}"
        partial = final.with_suffix(".partial")
        try:
            return self._save(state, final, partial)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def _save(self, state: LearnerState, final: Path, partial: Path) -> Path:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        tensors = safetensors.torch.save(state.tensors)
        header = {"format": _FORMAT, "updates": state.updates, "sha256": hashlib.sha256(tensors).hexdigest()}
        replace_file(partial / "tensors.safetensors", tensors, sync=True)
        write_document(partial / "state.json", {**header, "values": state.values})
        replaced = final.with_suffix(".replaced")
        if final.exists():
            # The same number of updates, as in a paused run: keep the old checkpoint until the new one is in place.
            final.replace(replaced)
        partial.replace(final)
        sync_folder(self._directory)
        shutil.rmtree(replaced, ignore_errors=True)
        for old in self._folders()[self._keep :]:
            shutil.rmtree(old)
        return final

    def load_newest(self) -> LearnerState | None:
        """The newest whole checkpoint; None when there is none. Renames newer, damaged ones to NAME.damaged.

        Raises UserError when another version of ActorQ wrote it.
        """
        damaged = []
        state = None
        for folder in self._folders():
            try:
                state = read_checkpoint(folder)
                break
            except InvalidInputError as error:
                _log.error("checkpoint %s is damaged, trying the previous one: %s", folder, error)
                damaged.append(folder)
        for folder in damaged:
            # A damaged checkpoint must not count among the newest `keep`.
            set_damaged_aside(folder)
        if damaged and state is None:
            _log.error("no checkpoint is whole: training starts with new networks and the stored replay")
        return state

    def _folders(self) -> list[Path]:
        return sorted((path for path in self._directory.iterdir() if path.name.isdigit()), reverse=True)


def read_checkpoint(folder: Path) -> LearnerState:
    """Read a checkpoint.

    Raises InvalidInputError when it is damaged, UserError when another version of ActorQ wrote it.
    """
    try:
        header = read_document(folder / "state.json")
        tensors = (folder / "tensors.safetensors").read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{error.filename}: {error.strerror}") from None
    if header["format"] != _FORMAT:
        raise UserError(
            f"{folder}: expected a checkpoint of format {_FORMAT}, got {header['format']}; resume with the version of "
            "ActorQ that wrote it"
        )
    digest = hashlib.sha256(tensors).hexdigest()
    if digest != header["sha256"]:
        raise InvalidInputError(f"tensors.safetensors: expected sha256 {header['sha256']}, got {digest}")
    return LearnerState(header["updates"], safetensors.torch.load(tensors), header["values"])


def set_damaged_aside(folder: Path) -> None:
    """Rename a damaged checkpoint to NAME.damaged, or to NAME.damaged-2 and so on if that name is taken."""
    aside = first = folder.with_suffix(".damaged")
    number = 1
    while aside.exists():
        aside = first.with_name(f"{first.name}-{(number := number + 1)}")
    folder.rename(aside)


def _restore(replaced: Path) -> None:
    """Put back a checkpoint whose replacement was interrupted by a kill, unless the new one is in place."""
    final = replaced.with_suffix("")
    if final.exists():
        shutil.rmtree(replaced)
    else:
        replaced.replace(final)
