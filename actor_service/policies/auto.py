"""`auto`: acts with the first policy that there is, measures all schemes meanwhile, and stays with the fastest."""

import logging
import random
import threading
from collections.abc import Callable, Iterable

from actor_service.counts import ActorCounts
from actor_service.policies.comparison import PolicyCheck
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actor_service.policies.selection import Selection
from actor_service.policies.subscription import Subscription
from actorq.client import QuantizerClient
from actorq.domain.policy import FP32, SCHEMES, Policy, PolicyDescriptor
from actorq.errors import ActorQError, InvalidInputError, UnavailableError
from actorq.transport.reconnect import keep_connected

_log = logging.getLogger(__name__)

_WAIT_S = 1.0
_ATTEMPTS = 3


class AutoSubscription:
    """A subscription that chooses its scheme by `select`, which gets the newest policy of each scheme.

    It begins with fp32, which needs no quantization and so is there first, and chooses as soon as that acts, on a
    thread of its own. It chooses again when a policy of another topology comes. Where the fidelity gate has held a
    candidate back, as it may with an untrained policy, it chooses again when the version has doubled: of N versions
    that is at most log2 N times. A scheme that was chosen is kept when the gate makes its later versions fp32: they
    are as fast as fp32 then, and the scheme is back when it passes again.

    connect: opens a client of the quantizer, which this closes.
    load: makes a policy ready to act.
    select: chooses among policies; its second argument is the scheme that acts.
    on_fault: called with an error that trying again would not mend.
    check: tells which schemes are no candidates, because this processor computes them wrongly.
    """

    def __init__(
        self,
        connect: Callable[[], QuantizerClient],
        slot: PolicySlot,
        load: Callable[[Policy], OnnxPolicy],
        select: Callable[[Iterable[Policy], str], Selection],
        on_fault: Callable[[BaseException], None],
        check: PolicyCheck,
        counts: ActorCounts | None = None,
    ) -> None:
        self._connect = connect
        self._check = check
        self._slot = slot
        self._load = load
        self._select = select
        self._on_fault = on_fault
        self._counts = counts or ActorCounts()
        self._stop = threading.Event()
        self._topology: bytes | None = None
        self._again_at: int | None = None
        self._client = connect()
        self._current = self._subscription(FP32)
        self._thread = threading.Thread(target=self._run, name="selection", daemon=True)

    @property
    def scheme(self) -> str:
        """The scheme that is watched now."""
        return self._current.scheme

    @property
    def avoided(self) -> str:
        """The newest scheme that this processor computes wrongly; empty when there is none."""
        return self._check.avoided[-1] if self._check.avoided else ""

    def settled(self, descriptor: PolicyDescriptor) -> bool:
        """Whether this policy is of the scheme that was chosen for its topology."""
        return descriptor.topology == self._topology and descriptor.scheme == self.scheme

    def start(self) -> None:
        """Begin to watch."""
        self._current.start()
        self._thread.start()

    def close(self) -> None:
        """Stop watching and wait until nothing more is put into the slot."""
        self._stop.set()
        self._slot.wake()
        self._client.close()
        if self._thread.is_alive():
            self._thread.join()
        self._current.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and not self._slot.closed:
                if (policy := self._slot.wait(self._is_due, _WAIT_S)) is not None and not self._stop.is_set():
                    self._check_or_choose(policy.descriptor)
        except BaseException as error:
            # A closed channel raises too: that is the end and no fault.
            if not self._stop.is_set():
                self._on_fault(error)

    def _check_or_choose(self, acting: PolicyDescriptor) -> None:
        if not self._check.is_due(acting) or self._check.run(self._client, acting):
            self._choose(acting)

    def _is_due(self, descriptor: PolicyDescriptor) -> bool:
        return (
            self._stop.is_set()
            or self._check.is_due(descriptor)
            or descriptor.topology != self._topology
            or (self._again_at is not None and descriptor.version >= self._again_at)
        )

    def _choose(self, acting: PolicyDescriptor) -> None:
        policies, missing = self._candidates()
        if self._stop.is_set():
            return
        chosen, again = self.scheme, True
        try:
            selection = self._select(policies, self.scheme)
        except InvalidInputError as error:
            _log.error("%s; going on with %s", error, self.scheme)
        else:
            chosen, again = selection.scheme, selection.held_back or bool(missing)
            absent = "".join(f"; not {scheme}: {reason}" for scheme, reason in missing.items())
            _log.info("auto: %s%s", selection, absent)
        if chosen != self.scheme:
            self._current.close()
            # The same version again: it is to act in the new scheme at once.
            newest = self._slot.peek()
            version = newest.descriptor.version if newest else acting.version
            self._current = self._subscription(chosen, version - 1)
            self._current.start()
        # That of what acts and not of the candidates: if theirs is newer already, it is due again when one of it comes.
        self._topology = acting.topology
        self._again_at = 2 * acting.version if again else None
        self._slot.wake()

    def _candidates(self) -> tuple[list[Policy], dict[str, str]]:
        """The newest policy of each scheme, all of one topology; and why there is none, by scheme."""
        policies: list[Policy] = []
        missing: dict[str, str] = {}

        def get(connected: Callable[[], None]) -> None:
            policies.clear()
            missing.clear()
            for scheme in SCHEMES:
                if scheme in self._check.avoided:
                    continue
                try:
                    policies.append(self._client.get(scheme))
                except UnavailableError:
                    raise
                except ActorQError as error:
                    missing[scheme] = str(error)
                connected()

        for _ in range(_ATTEMPTS):
            keep_connected(get, self._stop, self._client.peer, random.Random(), on_retry=self._count_retry)
            if len({policy.descriptor.topology for policy in policies}) <= 1:
                break
        return [
            policy for policy in policies if policy.descriptor.topology == policies[-1].descriptor.topology
        ], missing

    def _count_retry(self) -> None:
        if not self._stop.is_set():
            self._counts.quantizer_retries.add()

    def _subscription(self, scheme: str, after_version: int = 0) -> Subscription:
        return Subscription(
            self._connect(), scheme, self._slot, self._load, self._on_fault, self._counts, after_version
        )
