"""The catalog of one run's retained versions: finds, lists and holds them, and keeps the newest in memory."""

import logging
from collections.abc import Callable, Iterable
from functools import partial

from actorq.domain.lineage import UNCHECKED, Lineage
from actorq.domain.policy import (
    MAX_VERSION_STEP,
    WEIGHT_ENCODINGS,
    Checkpoint,
    Policy,
    PolicyDescriptor,
    RetainedPolicy,
    Variant,
    variant_of,
)
from actorq.domain.trajectory import Evaluation
from actorq.errors import ActorQError, ConflictError, InvalidInputError, NotFoundError
from actorq.quantization.schemes import scheme_named
from actorq.weightencoding import in_weight_encoding
from quantizer_service.store.reader import PolicyReader
from quantizer_service.store.store import PolicyStore

_log = logging.getLogger(__name__)

# Number of policies that a read-only quantizer keeps in memory, apart from the newest version's.
_MAX_SERVED = 16
_DEFAULT_PAGE_SIZE = 100


class Catalog:
    """The retained versions of one run. Only one thread at a time may use it.

    store: a PolicyStore to publish to, or a PolicyReader, which has the versions that existed when it was opened.
    emit_again: emits a retained version in a missing scheme, with signed weights.
    """

    def __init__(self, store: PolicyReader, emit_again: Callable[[Checkpoint, str], Policy]) -> None:
        self._store = store
        self._writable = store if isinstance(store, PolicyStore) else None
        self._emit_again = emit_again
        self._served: dict[tuple[int, Variant], Policy] = {}
        # The newest version in memory, and its emitted policies by variant. It is served before it is on disk.
        self._newest, self._policies = _newest(store)
        self._highest = store.taken_version

    @property
    def run_id(self) -> str:
        """The run that owns the store. Raises ConflictError before the first run."""
        if self._store.run_id is None:
            raise ConflictError("no run owns the store yet; open the stream of checkpoints first")
        return self._store.run_id

    @property
    def newest_version(self) -> int:
        """The newest served version; 0 before the first."""
        return self._newest.version if self._newest else 0

    @property
    def newest_policies(self) -> tuple[Policy, ...]:
        """The emitted policies of the newest version."""
        return tuple(self._policies.values())

    def claim(self, run_id: str, learner: Lineage = UNCHECKED) -> tuple[int, tuple[bytes, ...]]:
        """The version above which the publisher must continue (0 for none), and the digests of the stored graphs.

        Any version up to this one may have been served, even if the process died before storing it. The first run that
        claims the store owns it. Raises as PolicyStore.check does.
        """
        self.writer.claim(run_id, learner)
        return self._highest, tuple(self._store.graphs)

    def check_next(self, version: int) -> None:
        """Raise ConflictError when a version is not above all others, InvalidInputError when it is too far above."""
        if version <= self._highest:
            remedy = "open the stream again and continue above the version in `ready`"
            raise ConflictError(f"checkpoint: expected a version above {self._highest}, got {version}; {remedy}")
        if version > (last := self._highest + MAX_VERSION_STEP):
            most = f"at most {last}, {MAX_VERSION_STEP} above the highest one"
            raise InvalidInputError(f"checkpoint: expected a version of {most}, got {version}")

    def serve(self, checkpoint: Checkpoint, policies: Iterable[Policy]) -> None:
        """Serve a new version from memory. Its number is on disk when this returns.

        Raises UnavailableError, and changes nothing, when the disk cannot store the number.
        """
        self.writer.reserve(checkpoint.version)
        self._highest = checkpoint.version
        self._newest, self._policies = checkpoint, {policy.descriptor.variant: policy for policy in policies}

    def store_newest(self) -> None:
        """Store the newest version. Raises UnavailableError when the disk cannot store it."""
        if self._newest is not None:
            self.writer.add_version(self._newest, self._policies.values())

    def get(self, variant: Variant, version: int = 0) -> Policy:
        """A policy of a retained version (0 for the newest). A missing variant is emitted and stored first.

        Raises NotFoundError for an unknown scheme or version, InvalidInputError for a damaged file.
        """
        scheme_named(variant.scheme)
        if self._newest is None:
            raise self._nothing_to_serve()
        if version in (0, self.newest_version):
            if variant not in self._policies:
                self._policies[variant] = self._missing(self._newest, variant, self._policies.get)
            return self._policies[variant]
        if (version, variant) in self._served:
            return self._served[version, variant]
        stored = partial(self._store.policy, version)
        policy = stored(variant) or self._missing(self._store.checkpoint(version), variant, stored)
        if self._writable is None:
            # The policy is kept in memory, because the store's writer may remove the version at any time.
            self._served[version, variant] = policy
            while len(self._served) > _MAX_SERVED:
                del self._served[next(iter(self._served))]
        return policy

    def describe(self, scheme: str, version: int = 0) -> PolicyDescriptor:
        """The descriptor of a retained policy, in an encoding that is emitted, if any. Arguments and errors: `get`."""
        variants = [variant_of(scheme, each) for each in WEIGHT_ENCODINGS]
        served = version in (0, self.newest_version)
        emitted = (each for each in variants if (each in self._policies if served else self._store.has(version, each)))
        return self.get(next(emitted, variants[0]), version).descriptor

    def list_versions(self, page_size: int = 0, page_token: str = "") -> tuple[tuple[RetainedPolicy, ...], str]:
        """A page of retained versions, newest first, and the token of the next page (empty at the end).

        page_size: 0 for 100. page_token: the token of the page before; empty for the first page.
        """
        # A token is the last version of its page, so that pages stay consistent while versions are added and removed.
        versions = [entry for entry in self._store.versions() if not page_token or entry.version < int(page_token)]
        size = page_size or _DEFAULT_PAGE_SIZE
        page = tuple(versions[:size])
        return page, str(page[-1].version) if len(versions) > size else ""

    def hold(self, version: int, seconds: float) -> float:
        """See PolicyStore.hold. Raises ConflictError for a read-only store."""
        if self._writable is None:
            raise ConflictError(
                "this quantizer is read-only and cannot hold a version; ask the quantizer that writes the store"
            )
        # The newest version may be held before it is stored.
        if not 0 < version <= self.newest_version:
            raise NotFoundError(f"version {version} is not retained; the newest is {self.newest_version}")
        return self._writable.hold(version, seconds)

    def record_evaluation(self, evaluation: Evaluation) -> None:
        """Store an evaluation, which decides the best versions. Drops it if the version is not retained."""
        if self._store.retains(evaluation.policy_version):
            self.writer.add_evaluation(evaluation.policy_version, evaluation.mean_return)
        else:
            _log.info("evaluation of version %d dropped: it is not retained", evaluation.policy_version)

    def _missing(self, checkpoint: Checkpoint, variant: Variant, emitted: Callable[[Variant], Policy | None]) -> Policy:
        """Make a variant from another variant with the same numbers, or emit it. emitted: finds other variants."""
        sibling = next(filter(None, map(emitted, variant.siblings)), None)
        policy = sibling or self._emit_again(checkpoint, variant.scheme)
        policy = in_weight_encoding(policy, variant.weight_encoding)
        # A version that is served but not yet stored gets no file for this variant. The variant can be emitted again.
        if self._writable is not None and self._writable.retains(checkpoint.version):
            self._writable.add_policy(policy)
        return policy

    def _nothing_to_serve(self) -> ActorQError:
        """The error that says why there is no newest version."""
        damaged = self._store.damaged
        if not self._store.highest_version:
            return NotFoundError("no policy has been published yet; start a learner, or wait for its first version")
        if not damaged:
            return NotFoundError("newer versions replaced the versions in the store during the read; try again")
        newest = max(damaged)
        versions = "the only version is" if len(damaged) == 1 else f"all {len(damaged)} versions are"
        return InvalidInputError(f"no policy can be served: {versions} damaged; version {newest}: {damaged[newest]}")

    @property
    def writer(self) -> PolicyStore:
        """The store, for publications. Raises ConflictError for a read-only one."""
        if self._writable is None:
            raise ConflictError(
                "this quantizer is read-only and accepts no publications; publish to the quantizer that writes the "
                "store, or start this one without --read-only"
            )
        return self._writable


def _newest(store: PolicyReader) -> tuple[Checkpoint | None, dict[Variant, Policy]]:
    """The newest version of a store, and its emitted policies by variant."""
    for retained in store.versions():
        try:
            policies = {variant: store.policy(retained.version, variant) for variant in retained.variants}
            checkpoint = store.checkpoint(retained.version)
        except NotFoundError:
            # The store's writer has removed this version for newer ones. The next version in the list may still be
            # retained.
            continue
        return checkpoint, {variant: policy for variant, policy in policies.items() if policy is not None}
    return None, {}
