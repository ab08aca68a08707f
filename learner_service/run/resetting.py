"""Sets the files of a run aside for a reset of its environment. A kill in between leaves no mixture of old and new."""

import logging
from pathlib import Path

from actorq.statefiles.documents import copy_of, read_either, remove_both, write_twice
from learner_service.run.evaluations import count_file

_log = logging.getLogger(__name__)

# What was decided, until all is moved.
_PENDING = "reset.json"
_SPEC = Path("environment.json")
_EVALUATIONS = Path("evaluations.jsonl")
# The spec comes last, so that no run without a spec finds the other files.
_NAMES = ("checkpoints", "best", "replay", copy_of(_SPEC).name, _SPEC.name)


def present(directory: Path) -> list[str]:
    """The files and folders of the environment in a run's folder."""
    return [name for name in _NAMES if (directory / name).exists()]


def begin(directory: Path) -> Path:
    """Decide on a reset, durably, and make the folder for the earlier files."""
    taken = [path.name.rpartition("-")[2] for path in directory.glob("before-reset-*")]
    number = max((int(number) for number in taken if number.isdecimal()), default=0) + 1
    folder = directory / f"before-reset-{number}"
    write_twice(directory / _PENDING, {"folder": folder.name})
    folder.mkdir()
    return folder


def finish(directory: Path) -> None:
    """Move what is not moved yet. Does nothing when no reset is under way.

    Raises InvalidInputError when the decision is damaged, and OSError.
    """
    pending = read_either(directory / _PENDING)
    if pending is None:
        return
    folder = directory / str(pending["folder"])
    folder.mkdir(exist_ok=True)
    evaluations = (_EVALUATIONS.name, count_file(_EVALUATIONS).name) if (directory / _EVALUATIONS).exists() else ()
    # Those that are there already were moved before, by a learner that has begun anew.
    for name in (*(evaluations if not (folder / _EVALUATIONS).exists() else ()), *_NAMES):
        if (directory / name).exists() and not (folder / name).exists():
            (directory / name).rename(folder / name)
    remove_both(directory / _PENDING)
    _log.warning("the run's environment was reset; its earlier files are in %s", folder)
