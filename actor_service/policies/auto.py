"""The scheme `auto`: acts with fp32 first, measures all schemes meanwhile, and changes to the fastest."""

import logging
import random
from collections.abc import Callable, Iterable

from actor_service.policies.comparison import PolicyCheck
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actor_service.policies.scheme import SchemeSubscription
from actor_service.policies.selection import Selection
from actorq.client import QuantizerClient
from actorq.domain.policy import FP32, SCHEMES, Policy, PolicyDescriptor
from actorq.errors import ActorQError, InvalidInputError, UnavailableError
from actorq.transport.reconnect import keep_connected

_log = logging.getLogger(__name__)

_ATTEMPTS = 3


class AutoSubscription(SchemeSubscription):
    """A subscription that calls `select` with the newest policy of each scheme to choose its scheme.

    It begins with fp32, which comes first because it needs no quantization. It chooses on its own thread as soon as an
    fp32 policy acts. It chooses again when the topology changes. The fidelity gate may hold a candidate back, for
    example for an untrained policy. Then it chooses again when the version has doubled: at most log2 N times for N
    versions. A chosen scheme stays when the gate turns its later versions into fp32. These versions are as fast as
    fp32, and the scheme returns when it passes again.

    select: chooses among policies. Its second argument is the scheme that acts.

    The other parameters are those of SchemeSubscription. Schemes that `check` avoids are no candidates.
    """

    def __init__(
        self,
        connect: Callable[[], QuantizerClient],
        slot: PolicySlot,
        load: Callable[[Policy], OnnxPolicy],
        on_fault: Callable[[BaseException], None],
        check: PolicyCheck,
        select: Callable[[Iterable[Policy], str], Selection],
    ) -> None:
        super().__init__(connect, slot, load, on_fault, check, FP32)
        self._select = select
        self._topology: bytes | None = None
        self._again_at: int | None = None

    @property
    def avoided(self) -> str:
        """The last scheme found that this processor computes wrongly; empty when there is none."""
        return self._check.avoided[-1] if self._check.avoided else ""

    def settled(self, descriptor: PolicyDescriptor) -> bool:
        """Whether this policy has the scheme that was chosen for its topology."""
        return descriptor.topology == self._topology and descriptor.scheme == self.scheme

    def _look_at(self, acting: PolicyDescriptor) -> None:
        if not self._check.is_due(acting) or self._check.run(self._client, acting):
            self._choose(acting)

    def _is_due(self, descriptor: PolicyDescriptor) -> bool:
        return (
            self._check.is_due(descriptor)
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
            count_retry = self._slot.counts.quantizer_retries.add
            keep_connected(get, self._stop, self._client.peer, random.Random(), on_retry=count_retry)
            if len({policy.descriptor.topology for policy in policies}) <= 1:
                break
        newest = [each for each in policies if each.descriptor.topology == policies[-1].descriptor.topology]
        return newest, missing
