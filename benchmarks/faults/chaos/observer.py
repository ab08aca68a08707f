"""Observes the run from outside during the faults: its steps, its connections, and the content of each version."""

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from actorq.client import LearnerClient, QuantizerClient
from actorq.errors import ActorQError

_PERIOD_S = 0.1
_DEADLINE_S = 2.0


@dataclass(frozen=True)
class Look:
    """One observation of the learner, in monotonic seconds. steps is None without an answer."""

    at: float
    steps: int | None
    connected: frozenset[str] = frozenset()
    quantizer_connected: bool = False


def longest_standstill(looks: Sequence[Look], counts: Callable[[float], bool]) -> float:
    """The longest time without new transitions. Counts only moments for which `counts` is true."""
    longest = current = 0.0
    best, before = -1, looks[0].at
    for look in looks:
        if look.steps is not None and look.steps > best:
            best, current = look.steps, 0.0
        elif counts(look.at):
            current += look.at - before
        else:
            current = 0.0
        before = look.at
        longest = max(longest, current)
    return longest


class Observer:
    """Asks the learner ten times per second, and watches the served policies, on direct connections.

    All threads continue after any failure.
    """

    def __init__(self, learner: str, served: Iterable[tuple[str, str]]) -> None:
        """Start. served: addresses of quantizers and relays, each with a scheme to watch."""
        self._ended = threading.Event()
        self.looks: list[Look] = [Look(time.monotonic(), None)]
        self._contents: dict[tuple[int, str], set[str]] = defaultdict(set)
        self._learner = learner
        self._threads = [threading.Thread(target=self._poll, name="status", daemon=True)]
        for address, scheme in served:
            watcher = threading.Thread(target=self._watch, args=(address, scheme), name=scheme, daemon=True)
            self._threads.append(watcher)
        for thread in self._threads:
            thread.start()

    @property
    def newest(self) -> Look:
        """The newest observation."""
        return self.looks[-1]

    @property
    def versions(self) -> int:
        """Number of versions seen in any scheme."""
        return len({version for version, _ in self._contents})

    @property
    def versions_with_two_contents(self) -> list[int]:
        """Versions with different bytes in the same scheme."""
        return sorted({version for (version, _), contents in tuple(self._contents.items()) if len(contents) > 1})

    def close(self) -> None:
        """Stop the observation."""
        self._ended.set()
        self._threads[0].join()

    def _poll(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            try:
                with LearnerClient(self._learner, deadline_s=_DEADLINE_S) as client:
                    while not self._ended.wait(_PERIOD_S):
                        status = client.status()
                        connected = frozenset(actor.name for actor in status.actors if actor.connected)
                        self.looks.append(
                            Look(time.monotonic(), status.environment_steps, connected, status.quantizer_connected)
                        )
            except ActorQError:
                self.looks.append(Look(time.monotonic(), None))

    def _watch(self, quantizer: str, scheme: str) -> None:
        while not self._ended.wait(_PERIOD_S):
            try:
                with QuantizerClient(quantizer, deadline_s=_DEADLINE_S) as client:
                    for policy in client.watch(scheme):
                        digest = hashlib.sha256(policy.model).hexdigest()
                        self._contents[policy.descriptor.version, scheme].add(digest)
            except ActorQError:
                continue
