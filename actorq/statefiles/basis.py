"""The folder of a command that starts many runs. It stores the settings that all its runs share."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from actorq.errors import InvalidInputError, UserError
from actorq.statefiles.documents import read_document, write_document
from actorq.statefiles.files import is_unused

_NAME = "basis.json"


def open_folder(
    root: Path, command: str, folders: Sequence[str], basis: Mapping[str, Any], refusals: Mapping[str, str]
) -> None:
    """Create the folder of --directory with its subfolders, or continue in it.

    basis: sections of JSON values that never change within a folder.
    refusals: the error text for each changed section, with {} for the difference. Only the first is reported.

    Raises UserError for a folder with another basis or other content, and for one that cannot be written.
    """
    if root.exists() and not root.is_dir():
        raise UserError(f"--directory: {root} is a file")
    if is_known := (root / _NAME).exists():
        _check(root, basis, refusals)
    elif root.is_dir() and not is_unused(root, root / _NAME):
        raise UserError(f"--directory: expected a folder of {command} or an empty one, got {root}")
    try:
        for folder in folders:
            (root / folder).mkdir(parents=True, exist_ok=True)
        if not is_known:
            write_document(root / _NAME, basis, indent=2)
    except OSError as error:
        raise UserError(f"--directory: {root} cannot be written ({error.strerror})") from None


def _check(root: Path, basis: Mapping[str, Any], refusals: Mapping[str, str]) -> None:
    try:
        earlier = read_document(root / _NAME)
    except (OSError, InvalidInputError) as error:
        raise UserError(f"--directory: {root / _NAME} cannot be read ({error}); choose another folder") from None
    for section, refusal in refusals.items():
        if found := next(_differences(earlier.get(section), basis[section]), None):
            raise UserError(f"--directory: {root} {refusal.format(found)}")


def _differences(there: Any, here: Any, name: str = "") -> Iterator[str]:
    """Each value that differs, with its path."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted({*there, *here}):
            yield from _differences(there.get(key), here.get(key), f"{name}.{key}" if name else key)
    elif there != here:
        yield f"{name}: {_shown(there)} there, {_shown(here)} here"


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value) if not isinstance(value, dict) else "something"
