"""Requests that a test API server leaves unanswered until the test releases them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.actorq_apps.cluster.cluster_api import ClusterApi

# Longer than any timeout in these tests.
_LONGEST_S = 30.0


class Hanging:
    """Hanging requests. `begun` is set when there is one. `outlasted` means that a client waited until the end."""

    def __init__(self, matches: Callable[[str, str], bool]) -> None:
        self._matches = matches
        self.begun = threading.Event()
        self.released = threading.Event()
        self.outlasted = False
        self.count = 0

    def __call__(self, verb: str, kind: str, name: str) -> tuple[int, str] | None:
        if not self._matches(verb, kind):
            return None
        self.count += 1
        self.begun.set()
        if self.released.wait(_LONGEST_S):
            return None
        self.outlasted = True
        return 500, "it took too long"


@contextmanager
def hanging(api: ClusterApi, matches: Callable[[str, str], bool]) -> Iterator[Hanging]:
    """Make requests with these verbs and kinds hang during the block."""
    found, before = Hanging(matches), api.refuse
    api.refuse = found
    try:
        yield found
    finally:
        api.refuse = before
        found.released.set()
