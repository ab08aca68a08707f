"""Atomic checkpoints of the learner: safetensors and JSON in a folder that appears whole or not at all."""

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from actorq.errors import InvalidInputError, UserError
from actorq.statefiles.files import sync_folder
from learner_service.training.checkpoint_files import CheckpointFiles

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LearnerState:
    """The content of a checkpoint: the algorithm's tensors, and all other state as JSON values."""

    updates: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


@dataclass(frozen=True)
class CheckpointScan:
    """The newest whole checkpoint of a folder, None without one, and the newer damaged checkpoints with their faults.

    They include checkpoints that were renamed to NAME.damaged, because a killed learner may not have replaced them yet.
    """

    state: LearnerState | None = None
    damaged: Mapping[Path, str] = field(default_factory=dict)

    @property
    def updates(self) -> int:
        """Updates of the whole checkpoint; -1 without one."""
        return -1 if self.state is None else self.state.updates

    def set_damaged_aside(self) -> None:
        """Rename to NAME.damaged, or to NAME.damaged-2 and so on if that name is taken."""
        for folder in self.damaged:
            aside, number = folder.with_suffix(".damaged"), 1
            while aside.exists():
                aside = folder.with_suffix(f".damaged-{(number := number + 1)}")
            if not folder.suffix:
                folder.rename(aside)


@dataclass(frozen=True)
class Checkpoints:
    """The newest `keep` checkpoints of a run. new_networks: the run may continue without any if none is whole."""

    directory: Path
    keep: int
    new_networks: bool = False

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for leftover in self.directory.glob("*.partial"):
            shutil.rmtree(leftover)

    def save(self, state: LearnerState) -> Path:
        """Write and fsync a checkpoint, then remove those beyond `keep`. If it raises OSError, nothing has changed."""
        final = self.directory / f"{state.updates:012d}"
        partial = final.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            CheckpointFiles(state.updates, safetensors.torch.save(state.tensors), state.values).write(partial)
            replaced = final.with_suffix(".replaced")
            if final.exists():
                # The same number of updates, as in a paused run: keep the old checkpoint until the new one is in place.
                final.replace(replaced)
            partial.replace(final)
            sync_folder(self.directory)
            shutil.rmtree(replaced, ignore_errors=True)
            folders = (path for path in self.directory.iterdir() if path.name.isdigit())
            for old in sorted(folders, reverse=True)[self.keep :]:
                if old != final:
                    # Renamed first, because a partly removed checkpoint would look like a damaged one.
                    shutil.rmtree(old.rename(old.with_suffix(".partial")))
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return final

    def load_newest(self, scan: CheckpointScan | None = None) -> LearnerState | None:
        """The newest whole checkpoint; None when there is none. Renames newer, damaged ones to NAME.damaged.

        scan: result of an earlier scan, so that the files are not read again.
        Raises UserError, and changes nothing, when checkpoints exist but none is whole, when one cannot be read, or
        when another version of ActorQ wrote it.
        """
        scan = scan or find_newest(self.directory)
        damaged = {folder: reason for folder, reason in scan.damaged.items() if not folder.suffix}
        if damaged and scan.state is None and not self.new_networks:
            newest, reason = next(iter(damaged.items()))
            raise UserError(
                f"checkpoints: none of {len(damaged)} is whole ({newest.name}: {reason}); restore one from a backup, "
                "or give --checkpoint.new-networks to continue with new networks and the stored replay"
            )
        for folder, reason in damaged.items():
            _log.error("checkpoint %s is damaged, trying the previous one: %s", folder, reason)
        # A damaged checkpoint must not count as one of the newest `keep`.
        scan.set_damaged_aside()
        if damaged and scan.state is None:
            _log.error("no checkpoint is whole: training starts with new networks and the stored replay")
        return scan.state


def find_newest(directory: Path) -> CheckpointScan:
    """Read the checkpoints in a folder, from the newest to the first whole one.

    Raises UnreadableError when a checkpoint cannot be read, because it may be the newest whole one. Raises UserError
    when another version of ActorQ wrote the whole one.
    """
    for replaced in directory.glob("*.replaced"):
        # A kill has interrupted the replacement, unless the new checkpoint is in place.
        if (final := replaced.with_suffix("")).exists():
            shutil.rmtree(replaced)
        else:
            replaced.replace(final)
    folders = [path for path in directory.glob("[0-9]*") if path.stem.isdigit() and path.suffix in ("", ".damaged")]
    damaged: dict[Path, str] = {}
    for folder in sorted(folders, key=lambda path: (path.stem, not path.suffix), reverse=True):
        try:
            if not folder.suffix:
                files = CheckpointFiles.read(folder)
                state = LearnerState(files.updates, safetensors.torch.load(files.tensors), files.values)
                return CheckpointScan(state, damaged)
            damaged[folder] = "it was set aside"
        except InvalidInputError as error:
            damaged[folder] = str(error)
    return CheckpointScan(None, damaged)
