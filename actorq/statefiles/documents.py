"""State files with a digest: written atomically, checked when read."""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actorq.errors import InvalidInputError, UnreadableError
from actorq.statefiles.files import read_file, replace_file

_DIGEST = "digest"
# 128 bits detect damage and keep the file readable.
_DIGEST_CHARACTERS = 32
_SIGNED_TEXT = re.compile(rb"(.*)# digest: ([0-9a-f]{32})\n?", re.DOTALL)

_log = logging.getLogger(__name__)


def write_document(path: Path, values: Mapping[str, Any], *, sync: bool = True, indent: int | None = None) -> None:
    """Atomically replace the file with a JSON object: `values` and a field "digest". Raises OSError if this fails."""
    replace_file(path, encode_document(values, indent), sync=sync)


def encode_document(values: Mapping[str, Any], indent: int | None = None) -> bytes:
    """The bytes of a document for `decode_document`."""
    text = json.dumps({**values, _DIGEST: _digest(values)}, indent=indent)
    return (text if indent is None else f"{text}\n").encode()


def read_document(path: Path) -> dict[str, Any]:
    """The values of a document.

    Raises FileNotFoundError when the file does not exist, InvalidInputError when it is damaged, and UnreadableError
    when it cannot be read.
    """
    try:
        data = read_file(path)
    except IsADirectoryError:
        raise InvalidInputError(f"{path.name} is damaged: expected a file, got a folder") from None
    return decode_document(path.name, data)


def decode_document(name: str, data: bytes) -> dict[str, Any]:
    """The values of a document's bytes. Raises InvalidInputError that mentions `name` for a damaged document."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{name} is damaged: expected a JSON object, but {error}") from None
    if not isinstance(values, dict):
        raise InvalidInputError(f"{name} is damaged: expected a JSON object, got {type(values).__name__}")
    if _DIGEST not in values:
        raise InvalidInputError(f"{name} has no digest: it is damaged, or another version of ActorQ wrote it")
    expected = values.pop(_DIGEST)
    if (got := _digest(values)) != expected:
        raise InvalidInputError(f"{name} is damaged: expected digest {expected!r:.50}, got {got!r}")
    return values


def copy_of(path: Path) -> Path:
    """The path of the second copy that `write_twice` writes."""
    return path.with_name(f"{path.stem}.copy{path.suffix}")


def write_twice(path: Path, values: Mapping[str, Any]) -> None:
    """Write a document and a copy. A single disk fault therefore leaves one of them intact."""
    for each in (path, copy_of(path)):
        write_document(each, values)


def read_either(path: Path) -> dict[str, Any] | None:
    """The values of a document that was written twice; None when both files are missing.

    Logs one line when only the copy is intact. Raises UnreadableError when one file cannot be read and the other is not
    intact. Raises InvalidInputError when all existing files are damaged.
    """
    faults: list[InvalidInputError | UnreadableError] = []
    for each in (path, copy_of(path)):
        try:
            values = read_document(each)
        except FileNotFoundError:
            continue
        except (InvalidInputError, UnreadableError) as error:
            faults.append(error)
            continue
        if each != path:
            _log.warning("%s; its copy %s is used", faults[0] if faults else f"{path} is missing", each)
        return values
    # An unreadable file may be intact.
    for fault in sorted(faults, key=lambda each: not isinstance(each, UnreadableError)):
        raise fault
    return None


def remove_both(path: Path) -> None:
    """Remove a document and its copy. The copy goes first, so the document stays valid until the end."""
    for each in (copy_of(path), path):
        each.unlink(missing_ok=True)


def sign_text(text: str) -> str:
    """The text plus its digest in a last line, which is a comment in YAML."""
    return f"{text}# {_DIGEST}: {_digest_of_bytes(text.encode())}\n"


def is_as_signed(data: bytes) -> bool:
    """Whether the data is an unchanged result of `sign_text`."""
    signed = _SIGNED_TEXT.fullmatch(data)
    return signed is not None and _digest_of_bytes(signed[1]) == signed[2].decode()


def _digest(values: Mapping[str, Any]) -> str:
    return _digest_of_bytes(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


def _digest_of_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST_CHARACTERS]
