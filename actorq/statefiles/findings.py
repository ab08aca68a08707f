"""Findings of a check of a run's folder, one per file."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from actorq.errors import InvalidInputError, UnreadableError
from actorq.statefiles.documents import copy_of, read_document

State = Literal["whole", "damaged", "missing", "unreadable", "unchecked"]


@dataclass(frozen=True)
class Finding:
    """The state of one file.

    path: relative to the checked folder; empty for the folder itself.
    state: "unreadable" for a file that may be intact; "unchecked" for a file without a checksum that no resume reads.
    detail: one line about the content or the damage.
    on_resume: one line about the effect of a resume on a damaged file.
    """

    path: str
    state: State
    detail: str
    on_resume: str = ""

    def below(self, folder: str) -> "Finding":
        """The same finding with `folder` prepended to its path."""
        return replace(self, path=f"{folder}/{self.path}".rstrip("/"))


REFUSED = "a resume ends, and changes nothing"
"""The effect of an unreadable file on a resume."""


def faulty(path: str, error: Exception, on_resume: str, detail: str = "") -> Finding:
    """The finding for a file that cannot be read or has wrong content. detail: replaces the error's text."""
    if isinstance(error, UnreadableError):
        return Finding(path, "unreadable", str(error), REFUSED)
    return Finding(path, "damaged", detail or str(error), on_resume)


# The effect of a resume on a document that has one damaged copy.
_COPY_COUNTS = "the other copy is used, and both are written again"


def check_document(path: Path, whole: Callable[[dict[str, Any]], str], on_resume: str) -> Finding:
    """Check a document's digest. `whole` describes the values of an intact document."""
    try:
        return Finding(path.name, "whole", whole(read_document(path)))
    except FileNotFoundError:
        return Finding(path.name, "missing", "the file does not exist", on_resume)
    except (InvalidInputError, UnreadableError) as error:
        return faulty(path.name, error, on_resume)


def check_twice(path: Path, whole: Callable[[dict[str, Any]], str], when_lost: str) -> list[Finding]:
    """Check the digests of a document and its copy; no findings when both are missing.

    when_lost: the effect of a resume when both are lost.
    """
    found = [check_document(each, whole, "") for each in (path, copy_of(path))]
    if all(finding.state == "missing" for finding in found):
        return []
    on_resume = _COPY_COUNTS if any(finding.state == "whole" for finding in found) else when_lost
    if on_resume != _COPY_COUNTS and any(finding.state == "unreadable" for finding in found):
        on_resume = REFUSED
    return [finding if finding.state == "whole" else replace(finding, on_resume=on_resume) for finding in found]


def report(found: Iterable[Finding]) -> str:
    """The findings as one line of JSON, for the process that requested the check."""
    return json.dumps([asdict(finding) for finding in found])


def read_report(text: str) -> list[Finding]:
    """Parse the findings that `report` wrote."""
    return [Finding(**values) for values in json.loads(text)]
