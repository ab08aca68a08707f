"""Messages of another library's run: lines of JSON on stdout, among the library's own lines."""

import json
import sys
from typing import Any

# Marks our lines on stdout. All others are the library's.
MARK = "peer:"


def tell(event: str, **values: Any) -> None:
    """Write one event: `started` when learning begins, or `evaluated` with environment_steps, mean_return, seconds."""
    sys.stdout.write(f"{MARK}{json.dumps({'event': event, **values})}\n")
    sys.stdout.flush()


def told(line: str) -> dict[str, Any] | None:
    """The event in a line; None for a line of the library."""
    if not line.startswith(MARK):
        return None
    event: dict[str, Any] = json.loads(line.removeprefix(MARK))
    return event
