"""The column of a recurrent policy's states. Its name contains the size of a state."""

import re

from actorq.domain.limits import MAX_STATE

_NAME = re.compile(r"state_([1-9][0-9]{0,6})")


def state_column(size: int) -> str:
    """The name of the column with states of this many numbers."""
    return f"state_{size}"


def state_size_of(name: str) -> int:
    """The size of the states in the column of this name; 0 for any other column, and for a size out of range."""
    found = _NAME.fullmatch(name)
    size = int(found[1]) if found else 0
    return size if size <= MAX_STATE else 0


def state_size_in(names: tuple[str, ...]) -> int:
    """The size of the states in a run with these further columns; 0 without memory."""
    return max(map(state_size_of, names), default=0)
