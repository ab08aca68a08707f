"""Atomic checkpoints of the learner: safetensors and JSON in a folder that appears whole or not at all."""

import hashlib
import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from actorq.errors import UserError
from actorq.files import replace_file, sync_folder

_FORMAT = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LearnerState:
    """What a checkpoint holds: the algorithm's tensors, and everything else as plain JSON values."""

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
        """Write and fsync a checkpoint, then remove the oldest beyond `keep`; returns its folder."""
        final = self._directory / f"{state.updates:012d}"
        partial = final.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        tensors = safetensors.torch.save(state.tensors)
        header = {"format": _FORMAT, "updates": state.updates, "sha256": hashlib.sha256(tensors).hexdigest()}
        replace_file(partial / "tensors.safetensors", tensors, sync=True)
        replace_file(partial / "state.json", json.dumps({**header, "values": state.values}), sync=True)
        replaced = final.with_suffix(".replaced")
        if final.exists():
            # The same number of updates again, as when training is paused: set aside until the new one is there.
            final.replace(replaced)
        partial.replace(final)
        sync_folder(self._directory)
        shutil.rmtree(replaced, ignore_errors=True)
        for old in self._folders()[self._keep :]:
            shutil.rmtree(old)
        return final

    def load_newest(self) -> LearnerState | None:
        """The newest whole checkpoint, None when there is none; raises UserError when all are damaged."""
        folders = self._folders()
        for number, folder in enumerate(folders):
            try:
                state = _load(folder)
            except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
                _log.error("checkpoint %s is damaged, trying the one before: %s", folder, error)
                continue
            for damaged in folders[:number]:
                # Not to be counted among the newest, which are kept.
                shutil.rmtree(aside := damaged.with_suffix(".damaged"), ignore_errors=True)
                damaged.replace(aside)
            return state
        if folders:
            raise UserError(
                f"all {len(folders)} checkpoints in {self._directory} are damaged; start a new run in another "
                "--run-directory"
            )
        return None

    def _folders(self) -> list[Path]:
        return sorted((path for path in self._directory.iterdir() if path.name.isdigit()), reverse=True)


def _load(folder: Path) -> LearnerState:
    header = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    tensors = (folder / "tensors.safetensors").read_bytes()
    digest = hashlib.sha256(tensors).hexdigest()
    if header["format"] != _FORMAT:
        raise ValueError(f"expected format {_FORMAT}, got {header['format']}")
    if digest != header["sha256"]:
        raise ValueError(f"expected sha256 {header['sha256']}, got {digest}")
    return LearnerState(header["updates"], safetensors.torch.load(tensors), header["values"])


def _restore(replaced: Path) -> None:
    """The process was killed while a checkpoint took the place of this one: put it back unless the new one is there."""
    final = replaced.with_suffix("")
    if final.exists():
        shutil.rmtree(replaced)
    else:
        replaced.replace(final)
