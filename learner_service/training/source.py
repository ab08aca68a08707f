"""Finds and reads the checkpoint of another run from which a run begins. Does not change the other run's files."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch

from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import InvalidInputError, UserError
from actorq.statefiles.documents import read_either
from learner_service.training.checkpoint import LearnerState
from learner_service.training.checkpoint_files import CheckpointFiles

_log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
_FILES = ("state.json", "tensors.safetensors")
# A run has these files before its first checkpoint.
_OF_RUN = ("run.json", "config.yaml")
# A checkpoint, or a checkpoint that a learner replaces at this moment.
_NAME = re.compile(r"\d+(\.replaced)?")
# Attempts to read a checkpoint of a run in progress, which may replace or remove it meanwhile.
_TRIES = 5


@dataclass(frozen=True)
class Source:
    """A checkpoint of another run.

    checkpoint: its folder. spec: the environment's spec; None for an earlier version's checkpoint folder outside of its
        run.
    replay: folder of the run's replay, which may not exist; None when the checkpoint is in no run.
    """

    checkpoint: Path
    state: LearnerState
    spec: EnvironmentSpec | None
    replay: Path | None


def read_source(path: Path) -> Source:
    """The checkpoint that `init_from` names: the newest whole checkpoint of a run, or exactly the named one.

    path: a folder or file within a run.
    Raises UserError when there is no whole checkpoint, or when a later version of ActorQ wrote it.
    """
    try:
        return _found(path)
    except OSError as error:
        raise UserError(f"init_from: {path} cannot be read: {error.strerror or error}") from None


def _found(path: Path) -> Source:
    if not path.exists():
        raise UserError(f"init_from: expected the folder of a run or of a checkpoint, got {path}, which does not exist")
    if path.is_file():
        if path.name not in _FILES:
            raise UserError(
                f"init_from: expected {' or '.join(_FILES)} of a checkpoint, got {path}; give the run's folder"
            )
        path = path.parent
    if any((path / name).exists() for name in _FILES):
        return _of_checkpoint(path)
    folder = path if path.name == CHECKPOINTS else path / CHECKPOINTS
    if folder.is_dir():
        return _newest(folder)
    if any((path / name).exists() for name in _OF_RUN):
        raise UserError(_without_checkpoint(path))
    raise UserError(
        f"init_from: expected the folder of a run or of a checkpoint, got {path}, which has no {CHECKPOINTS}; give "
        "the --run-directory of the other run"
    )


def _of_checkpoint(folder: Path) -> Source:
    try:
        return _source(folder, folder.parent.parent if folder.parent.name == CHECKPOINTS else None)
    except InvalidInputError as error:
        raise UserError(f"init_from: checkpoint {folder} is damaged ({error}); give another one of its run") from None


def _newest(checkpoints: Path) -> Source:
    """The newest whole checkpoint of a run. Logs the damaged checkpoints."""
    damaged: dict[Path, str] = {}
    for _ in range(_TRIES):
        damaged.clear()
        found = [folder for folder in checkpoints.iterdir() if _NAME.fullmatch(folder.name)]
        for folder in sorted(found, key=lambda folder: (folder.stem, not folder.suffix), reverse=True):
            try:
                source = _source(folder, checkpoints.parent)
            except InvalidInputError as error:
                if not folder.exists():
                    # The learner of that run has written a newer checkpoint meanwhile.
                    break
                damaged[folder] = str(error)
                continue
            for path, reason in damaged.items():
                _log.error("init_from: checkpoint %s is damaged, trying the previous one: %s", path, reason)
            return source
        else:
            break
    if damaged:
        newest, reason = next(iter(damaged.items()))
        raise UserError(
            f"init_from: none of the {len(damaged)} checkpoints in {checkpoints} is whole ({newest.name}: {reason}); "
            "give another run"
        )
    raise UserError(_without_checkpoint(checkpoints.parent))


def _source(folder: Path, run: Path | None) -> Source:
    """Raises InvalidInputError for a damaged checkpoint, and UserError for a checkpoint of another version."""
    try:
        files = CheckpointFiles.read(folder)
    except UserError as error:
        raise UserError(f"init_from: {error}") from None
    state = LearnerState(files.updates, safetensors.torch.load(files.tensors), files.values)
    # Older checkpoints lack it.
    values = files.values.get("spec") or (run and read_either(run / "environment.json"))
    spec = EnvironmentSpec.from_json(values) if values else None
    return Source(folder, state, spec, run and run / "replay")


def _without_checkpoint(run: Path) -> str:
    return (
        f"init_from: expected a run with a checkpoint, got {run}, which has none yet; wait until its learner has "
        "trained for checkpoint.period_s seconds, or give another run"
    )
