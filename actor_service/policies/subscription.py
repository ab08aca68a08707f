"""Keeps the newest policy in the slot: watches the quantizer, loads policies, and changes the scheme if necessary."""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from actor_service.policies.comparison import PolicyCheck
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actor_service.policies.selection import Selection, candidates
from actorq.client import QuantizerClient
from actorq.domain.policy import AUTO, FALLBACK, FP32, Policy, PolicyDescriptor
from actorq.errors import ActorQError, DeniedError, InvalidInputError, NotFoundError, UnavailableError, UserError
from actorq.transport.reconnect import keep_connected

_log = logging.getLogger(__name__)

# Errors of a stream that only another scheme or another certificate can fix.
_FINAL = (NotFoundError, DeniedError, UserError)
_WAIT_S = 1.0
# Attempts to fetch candidates of one graph. The digests differ when a new graph has just come.
_ATTEMPTS = 3


@dataclass(eq=False)
class _Stream:
    """The stream of one scheme. Has its own client, because closing the client ends a waiting stream.

    version: the last received version.
    """

    client: QuantizerClient
    scheme: str
    version: int
    ended: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


@dataclass(eq=False)
class Subscription:
    """Watches one scheme of the quantizer at a time, on three threads of its own.

    One thread reads the stream and keeps only the newest policy. Another thread loads it. A single thread would load
    outdated versions, because gRPC buffers several small policies. The third thread checks the acting policy.

    If the run has a fixed scheme, the subscription changes to int8-weights when the check finds a mismatch.

    With `auto`, the subscription begins with fp32, which is available first because it needs no quantization. It
    selects a scheme as soon as an fp32 policy acts. It selects again when the graph changes, and when the check finds a
    mismatch. The fidelity gate may refuse a candidate, for example for an untrained policy. Then the subscription
    selects again when the version number has doubled: at most log2 N times for N versions. A selected scheme stays even
    if the gate turns its later versions into fp32. These versions are as fast as fp32, and the scheme returns when it
    passes again.

    connect: opens a client of the quantizer. The subscription closes it.
    load: makes a policy ready to act.
    on_fault: called with an error that a retry cannot fix.
    check: finds the schemes that this processor computes wrongly. They are not candidates of `auto`.
    requested: the requested scheme.
    select: selects a policy for `auto`. Its second argument is the acting scheme.
    wanted: whether to load the newest policy. Called for each newer policy and by `recheck`. With `auto`, all policies
        are loaded.
    """

    connect: Callable[[], QuantizerClient]
    slot: PolicySlot
    load: Callable[[Policy], OnnxPolicy]
    on_fault: Callable[[BaseException], None]
    check: PolicyCheck
    requested: str
    select: Callable[[Iterable[Policy], str], Selection]
    wanted: Callable[[PolicyDescriptor], bool] = lambda descriptor: True

    def __post_init__(self) -> None:
        self._graph_digest: bytes | None = None
        self._again_at: int | None = None
        self._changed = threading.Condition()
        self._received: Policy | None = None
        self._stop = threading.Event()
        self._client = self.connect()
        scheme = self.requested
        if scheme in self.check.avoided:
            _log.warning("this processor computes %s wrongly: acting with %s instead", scheme, FALLBACK)
            scheme = FALLBACK
        self._stream = _Stream(self.connect(), FP32 if scheme == AUTO else scheme, 0)
        self._loader = threading.Thread(target=self._load_newest, name="policy loader", daemon=True)
        self._checker = threading.Thread(target=self._check_policies, name="scheme", daemon=True)

    @property
    def scheme(self) -> str:
        """The watched scheme."""
        return self._stream.scheme

    @property
    def avoided(self) -> str:
        """The newest scheme that this actor avoids because its processor computes it wrongly; empty for none."""
        return next((each for each in reversed(self.check.avoided) if self.requested in (each, AUTO)), "")

    def settled(self, descriptor: PolicyDescriptor) -> bool:
        """Whether the scheme of this policy is the final choice for its graph."""
        chosen = descriptor.graph_digest == self._graph_digest and descriptor.scheme == self.scheme
        return chosen or self.requested != AUTO

    def start(self) -> None:
        """Start to watch."""
        self._read(self._stream)
        self._loader.start()
        self._checker.start()

    def recheck(self) -> None:
        """Call `wanted` again, because its answer may have changed."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop watching, and wait until no thread can put a policy into the slot."""
        self._stop.set()
        self.slot.wake()
        self.recheck()
        self._client.close()
        # The third thread may be changing the stream.
        _join(self._checker)
        self._end(self._stream)
        _join(self._loader)

    def _read(self, stream: _Stream) -> None:
        stream.thread = threading.Thread(target=self._receive, args=(stream,), name="subscription", daemon=True)
        stream.thread.start()

    def _end(self, stream: _Stream) -> None:
        stream.ended.set()
        stream.client.close()
        if stream.thread is not None:
            _join(stream.thread)

    def _receive(self, stream: _Stream) -> None:
        def watch(connected: Callable[[], None]) -> None:
            try:
                for policy in stream.client.watch(stream.scheme, stream.version):
                    connected()
                    with self._changed:
                        self._received = policy
                        stream.version = self.slot.served_version = policy.descriptor.version
                        self._changed.notify_all()
            except (*_FINAL, UnavailableError):
                raise
            except ActorQError as error:
                # A later attempt may succeed: with another version, or with a quantizer that is repaired or replaced.
                raise UnavailableError(str(error)) from error

        try:
            count_retry = self.slot.counts.quantizer_retries.add
            keep_connected(watch, stream.ended, stream.client.peer, random.Random(), on_retry=count_retry)
        except BaseException as error:
            # A closed channel raises too, but closing is not a fault.
            if not stream.ended.is_set():
                self.on_fault(error)

    def _load_newest(self) -> None:
        while (newest := self._next()) is not None:
            stream, policy = newest
            started = time.perf_counter()
            try:
                loaded = self.check.watch(self.load(policy))
                # Counted before the policy can act, so that activations never exceed loads.
                self.slot.counts.load_seconds.observe(time.perf_counter() - started)
                with self._changed:
                    if stream is self._stream:
                        self.slot.put(loaded)
            except InvalidInputError as error:
                # The next version may be valid.
                _log.error("%s; keeping the previous policy", error)
            except Exception as error:
                self.on_fault(error)
                return

    def _next(self) -> tuple[_Stream, Policy] | None:
        """The newest policy once it is wanted, with its stream; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop.is_set() or self._is_wanted())
            policy, self._received = self._received, None
            return None if self._stop.is_set() or policy is None else (self._stream, policy)

    def _is_wanted(self) -> bool:
        if self._received is None:
            return False
        return self.requested == AUTO or self.wanted(self._received.descriptor)

    def _check_policies(self) -> None:
        try:
            while not self._stop.is_set() and not self.slot.closed:
                policy = self.slot.wait(lambda found: self._stop.is_set() or self._is_due(found), _WAIT_S)
                if policy is not None and not self._stop.is_set():
                    self._check_policy(policy.descriptor)
        except BaseException as error:
            # A closed channel raises too, but `close` is not a fault.
            if not self._stop.is_set():
                self.on_fault(error)

    def _is_due(self, descriptor: PolicyDescriptor) -> bool:
        """Whether to call `_check_policy` for the acting policy."""
        return self.check.is_due(descriptor) or (
            self.requested == AUTO
            and (
                descriptor.graph_digest != self._graph_digest
                or (self._again_at is not None and descriptor.version >= self._again_at)
            )
        )

    def _check_policy(self, acting: PolicyDescriptor) -> None:
        due = self.check.is_due(acting)
        mismatch = due and self.check.run(self._client, acting)
        if self.requested == AUTO:
            if mismatch or not due:
                self._choose(acting)
        elif mismatch and not self._stop.is_set():
            _log.warning("acting with %s instead of %s from now on", FALLBACK, acting.scheme)
            self._change_to(FALLBACK, acting)

    def _choose(self, acting: PolicyDescriptor) -> None:
        policies, missing = self._candidates()
        if self._stop.is_set():
            return
        chosen, again = self.scheme, True
        try:
            selection = self.select(policies, self.scheme)
        except InvalidInputError as error:
            _log.error("%s; keeping %s", error, self.scheme)
        else:
            chosen, again = selection.scheme, selection.held_back or bool(missing)
            absent = "".join(f"; not {scheme}: {reason}" for scheme, reason in missing.items())
            _log.info("auto: %s%s", selection, absent)
        if chosen != self.scheme:
            self._change_to(chosen, acting)
        # The acting policy's graph, not the candidates' graph. If theirs is newer, the next policy causes a new
        # selection.
        self._graph_digest = acting.graph_digest
        self._again_at = 2 * acting.version if again else None
        self.slot.wake()

    def _candidates(self) -> tuple[list[Policy], dict[str, ActorQError]]:
        """The newest policies, one per scheme and all of one graph; and the error of each missing scheme."""
        policies: list[Policy] = []
        missing: dict[str, ActorQError] = {}

        def get(connected: Callable[[], None]) -> None:
            nonlocal policies, missing
            policies, missing = candidates(self._client.get, self.check.avoided)
            connected()

        for _ in range(_ATTEMPTS):
            count_retry = self.slot.counts.quantizer_retries.add
            keep_connected(get, self._stop, self._client.peer, random.Random(), on_retry=count_retry)
            if len({policy.descriptor.graph_digest for policy in policies}) <= 1:
                break
        newest = [each for each in policies if each.descriptor.graph_digest == policies[-1].descriptor.graph_digest]
        return newest, missing

    def _change_to(self, scheme: str, acting: PolicyDescriptor) -> None:
        """Watch another scheme. The acting version is loaded first, so that the new scheme acts at once."""
        self._end(self._stream)
        client = self.connect()
        with self._changed:
            # A policy of the old scheme that is still loading no longer acts.
            newest = self.slot.peek()
            self._received = None
            self._stream = _Stream(client, scheme, (newest.descriptor if newest else acting).version - 1)
        self._read(self._stream)


def _join(thread: threading.Thread) -> None:
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join()
