"""The scheme that an actor acts with: the run's, the fastest one with `auto`, or int8-weights as the fallback."""

import logging
import random
import threading
from collections.abc import Callable, Iterable

from actor_service.policies.comparison import PolicyCheck
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actor_service.policies.selection import Selection, candidates
from actor_service.policies.subscription import Subscription
from actorq.client import QuantizerClient
from actorq.domain.policy import AUTO, FALLBACK, FP32, Policy, PolicyDescriptor
from actorq.errors import InvalidInputError
from actorq.transport.reconnect import keep_connected

_log = logging.getLogger(__name__)

_WAIT_S = 1.0
# How often candidates of several topologies are fetched, because a new one has just come.
_ATTEMPTS = 3


class SchemeSubscription:
    """Watches one scheme at a time. Its own thread looks at the acting policy, and changes the scheme if needed.

    With a scheme of the run, it changes to int8-weights when the check finds a mismatch.

    With `auto`, it begins with fp32, which comes first because it needs no quantization. It chooses as soon as an
    fp32 policy acts. It chooses again when the topology changes, and when the check finds a mismatch. The fidelity gate
    may hold a candidate back, for example for an untrained policy. Then it chooses again when the version has doubled:
    at most log2 N times for N versions. A chosen scheme stays when the gate turns its later versions into fp32. These
    versions are as fast as fp32, and the scheme returns when it passes again.

    connect: opens a client of the quantizer. The subscription closes it.
    load: makes a policy ready to act.
    on_fault: called with an error that a retry cannot fix.
    check: finds the schemes that this processor computes wrongly. They are no candidates of `auto`.
    scheme: the requested scheme.
    select: chooses among policies for `auto`. Its second argument is the scheme that acts.
    wanted: see Subscription. With `auto`, all policies are wanted.
    """

    def __init__(
        self,
        connect: Callable[[], QuantizerClient],
        slot: PolicySlot,
        load: Callable[[Policy], OnnxPolicy],
        on_fault: Callable[[BaseException], None],
        check: PolicyCheck,
        scheme: str,
        select: Callable[[Iterable[Policy], str], Selection],
        wanted: Callable[[PolicyDescriptor], bool] = lambda descriptor: True,
    ) -> None:
        self.check = check
        self._connect = connect
        self._slot = slot
        self._load = load
        self._on_fault = on_fault
        self._requested = scheme
        self._select = select
        self._wanted = wanted if scheme != AUTO else lambda descriptor: True
        self._topology: bytes | None = None
        self._again_at: int | None = None
        self._stop = threading.Event()
        self._client = connect()
        if scheme in check.avoided:
            _log.warning("this processor computes %s wrongly: acting with %s instead", scheme, FALLBACK)
            scheme = FALLBACK
        self._current = self._subscription(FP32 if scheme == AUTO else scheme, 0)
        self._thread = threading.Thread(target=self._run, name="scheme", daemon=True)

    @property
    def scheme(self) -> str:
        """The scheme that is watched now."""
        return self._current.scheme

    @property
    def avoided(self) -> str:
        """The scheme that this actor avoids because its processor computes it wrongly, the last one; empty for none."""
        return next((each for each in reversed(self.check.avoided) if self._requested in (each, AUTO)), "")

    def settled(self, descriptor: PolicyDescriptor) -> bool:
        """Whether the scheme of this policy is the final choice for its topology."""
        chosen = descriptor.topology == self._topology and descriptor.scheme == self.scheme
        return chosen or self._requested != AUTO

    def start(self) -> None:
        """Begin to watch."""
        self._current.start()
        self._thread.start()

    def look_again(self) -> None:
        """Ask `wanted` again, because its answer may have changed."""
        self._current.look_again()

    def close(self) -> None:
        """Stop watching, and wait until no thread can put a policy into the slot."""
        self._stop.set()
        self._slot.wake()
        self._client.close()
        if self._thread.is_alive():
            self._thread.join()
        self._current.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and not self._slot.closed:
                policy = self._slot.wait(lambda found: self._stop.is_set() or self._is_due(found), _WAIT_S)
                if policy is not None and not self._stop.is_set():
                    self._look_at(policy.descriptor)
        except BaseException as error:
            # A closed channel raises too, but `close` is no fault.
            if not self._stop.is_set():
                self._on_fault(error)

    def _is_due(self, descriptor: PolicyDescriptor) -> bool:
        """Whether to call `_look_at` for the acting policy."""
        return self.check.is_due(descriptor) or (
            self._requested == AUTO
            and (
                descriptor.topology != self._topology
                or (self._again_at is not None and descriptor.version >= self._again_at)
            )
        )

    def _look_at(self, acting: PolicyDescriptor) -> None:
        """Check the acting policy, and change the scheme if needed."""
        due = self.check.is_due(acting)
        mismatch = due and self.check.run(self._client, acting)
        if self._requested == AUTO:
            if mismatch or not due:
                self._choose(acting)
        elif mismatch and not self._stop.is_set():
            _log.warning("acting with %s instead of %s from now on", FALLBACK, acting.scheme)
            self._change_to(FALLBACK, acting)

    def _choose(self, acting: PolicyDescriptor) -> None:
        """Change to the scheme that `select` chooses."""
        policies, missing = self._candidates()
        if self._stop.is_set():
            return
        chosen, again = self.scheme, True
        try:
            selection = self._select(policies, self.scheme)
        except InvalidInputError as error:
            _log.error("%s; keeping %s", error, self.scheme)
        else:
            chosen, again = selection.scheme, selection.held_back or bool(missing)
            absent = "".join(f"; not {scheme}: {reason}" for scheme, reason in missing.items())
            _log.info("auto: %s%s", selection, absent)
        if chosen != self.scheme:
            self._change_to(chosen, acting)
        # The acting policy's topology, not the candidates'. If theirs is newer, the next policy makes a new choice due.
        self._topology = acting.topology
        self._again_at = 2 * acting.version if again else None
        self._slot.wake()

    def _candidates(self) -> tuple[list[Policy], dict[str, str]]:
        """The newest policies, one per scheme and all of one topology; and the error of each missing scheme."""
        policies: list[Policy] = []
        missing: dict[str, str] = {}

        def get(connected: Callable[[], None]) -> None:
            policies[:], errors = candidates(self._client.get, self.check.avoided)
            missing.clear()
            missing.update({scheme: str(error) for scheme, error in errors.items()})
            connected()

        for _ in range(_ATTEMPTS):
            count_retry = self._slot.counts.quantizer_retries.add
            keep_connected(get, self._stop, self._client.peer, random.Random(), on_retry=count_retry)
            if len({policy.descriptor.topology for policy in policies}) <= 1:
                break
        newest = [each for each in policies if each.descriptor.topology == policies[-1].descriptor.topology]
        return newest, missing

    def _change_to(self, scheme: str, acting: PolicyDescriptor) -> None:
        """Watch another scheme. The acting version comes first, so that the new scheme acts at once."""
        self._current.close()
        newest = self._slot.peek()
        version = newest.descriptor.version if newest else acting.version
        self._current = self._subscription(scheme, version - 1)
        self._current.start()

    def _subscription(self, scheme: str, after_version: int) -> Subscription:
        def load(policy: Policy) -> OnnxPolicy:
            return self.check.watch(self._load(policy))

        return Subscription(self._connect(), scheme, self._slot, load, self._on_fault, after_version, self._wanted)
