"""Changed segments."""

from dataclasses import fields, replace
from typing import Any

from actorq.domain.trajectory import Segment


def changed(segment: Segment, **changes: Any) -> Segment:
    """The segment with other fields and columns."""
    own = {name: changes.pop(name) for name in [field.name for field in fields(Segment)] if name in changes}
    return replace(segment.with_columns(**changes), **own)


def without(segment: Segment, column: str) -> Segment:
    """The segment without one of its columns."""
    return replace(segment, columns={name: values for name, values in segment.columns.items() if name != column})
