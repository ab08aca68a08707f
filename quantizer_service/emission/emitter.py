"""The heart of the quantizer: takes graphs and checkpoints of one run, emits policies, and finds them again.

Plain calls with plain values: it knows neither the network nor threads, and must be used by one thread at a time.
"""

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from actorq.config.sections import QuantizerConfig
from actorq.domain.policy import MAX_VERSION_STEP, Checkpoint, Policy, PolicyDescriptor, PolicyGraph, RetainedPolicy
from actorq.domain.trajectory import Evaluation
from actorq.errors import ActorQError, ConflictError, InvalidInputError, NotFoundError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options, scheme_named
from actorq.quantization.statistics import Observed
from quantizer_service.emission.ladder import Ladder
from quantizer_service.emission.origin import Left, Origin
from quantizer_service.emission.topology import Form, Topology
from quantizer_service.store.reader import PolicyReader
from quantizer_service.store.store import PolicyStore

_log = logging.getLogger(__name__)

# Topologies whose plans are kept. A run has one; with growing and shrinking layers old ones are not needed again soon.
_MAX_TOPOLOGIES = 4
# Policies that a reader of another's store keeps in memory besides the newest version's.
_MAX_SERVED = 16
DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 100, 1000


@dataclass
class _Newest:
    """The newest version in memory, so that it is served before and without any disk."""

    checkpoint: Checkpoint
    policies: dict[str, Policy]


class Emitter:
    """Emits and retains the policies of one run.

    config: how to quantize.
    store: a PolicyReader is served as it was when it was opened; nothing can be published then, and what was served
    last is kept in memory.
    """

    def __init__(self, store: PolicyReader, config: QuantizerConfig | None = None) -> None:
        config = config or QuantizerConfig()
        self._options = Options(
            ends=config.quantize_ends,
            per_tensor_error=config.per_tensor_error,
            compensate=config.compensate is not False,
        )
        self._thresholds = config.gate
        self._store = store
        self._writable = store if isinstance(store, PolicyStore) else None
        self._served: dict[tuple[int, str], Policy] = {}
        self._topologies: dict[bytes, Topology] = {}
        self._newest = _newest(store)
        self._highest = store.taken_version

    @property
    def newest_version(self) -> int:
        """The newest version that is served; 0 before the first."""
        return self._newest.checkpoint.version if self._newest else 0

    def newest_policies(self) -> tuple[Policy, ...]:
        """The policies that were emitted of the newest version."""
        return tuple(self._newest.policies.values()) if self._newest else ()

    def ready(self, run_id: str) -> tuple[int, tuple[bytes, ...]]:
        """The version above which a publisher goes on, 0 for none, and the topologies whose graph is here.

        Every version up to it may have been served, also by a process that was killed before it stored the version.
        The first run to come owns the store; raises ConflictError for another one.
        """
        if not run_id:
            raise InvalidInputError("run: expected a run id, got an empty one")
        self._writer.claim(run_id)
        return self._highest, tuple(self._store.graphs)

    def add_graph(self, source: PolicyGraph) -> None:
        """Validate a graph, prepare and keep it; raises InvalidInputError and keeps nothing when it is not valid."""
        if source.topology not in self._store.graphs:
            topology = Topology(Graph.parse(source))
            self._writer.add_graph(source)
            self._keep(topology)

    def emit(self, checkpoint: Checkpoint, schemes: Iterable[str]) -> tuple[Policy, ...]:
        """Emit a new version in each of the schemes and serve it from memory; `persist` has to follow.

        Its number is on disk before this returns. Raises ConflictError when its version is not above all before or its
        graph is not here, InvalidInputError when its version is too far above, or its tensors do not fit the graph, are
        not finite or do not run, and UnavailableError when the disk is full; then nothing has changed.
        """
        if checkpoint.version <= self._highest:
            raise ConflictError(
                f"checkpoint: expected a version above {self._highest}, got {checkpoint.version}; open the stream "
                "again and go on above the version that `ready` tells"
            )
        if checkpoint.version > (last := self._highest + MAX_VERSION_STEP):
            raise InvalidInputError(
                f"checkpoint: expected a version of at most {last}, {MAX_VERSION_STEP} above the highest one, got "
                f"{checkpoint.version}"
            )
        policies = self._emit(checkpoint, schemes)
        self._writer.reserve(checkpoint.version)
        self._highest = checkpoint.version
        self._newest = _Newest(checkpoint, {policy.descriptor.scheme: policy for policy in policies})
        return policies

    def persist(self, checkpoint: Checkpoint, policies: Iterable[Policy]) -> None:
        """Store an emitted version, with the schemes that were asked for since.

        Raises UnavailableError when the disk does not take it.
        """
        served = {policy.descriptor.scheme: policy for policy in policies}
        if self._newest is not None and self._newest.checkpoint.version == checkpoint.version:
            # Emitted again after a restart, they might differ from what actors have.
            served = self._newest.policies | served
        self._writer.add_version(checkpoint, served.values())

    def get(self, scheme: str, version: int = 0) -> Policy:
        """A policy of a retained version, 0 for the newest; emitted and stored now if it was not before.

        Raises NotFoundError for an unknown scheme or version, InvalidInputError when its file is damaged.
        """
        scheme_named(scheme)
        if self._newest is None:
            raise self._nothing_to_serve()
        if version in (0, self.newest_version):
            if scheme not in self._newest.policies:
                self._newest.policies[scheme] = self._emit_again(self._newest.checkpoint, scheme)
            return self._newest.policies[scheme]
        if (version, scheme) in self._served:
            return self._served[version, scheme]
        policy = self._store.policy(version, scheme) or self._emit_again(self._store.checkpoint(version), scheme)
        if self._writable is None:
            # Kept, since the store's writer may remove the version at any time.
            self._served[version, scheme] = policy
            while len(self._served) > _MAX_SERVED:
                del self._served[next(iter(self._served))]
        return policy

    def list_versions(self, page_size: int = 0, page_token: str = "") -> tuple[tuple[RetainedPolicy, ...], str]:
        """A page of retained versions, newest first, and the token of the next page, empty at the end.

        page_size: 1 to 1000, 0 for 100. Raises InvalidInputError for another size or a token not of this making.
        """
        if not 0 <= page_size <= MAX_PAGE_SIZE:
            raise InvalidInputError(f"page_size: expected 1 to {MAX_PAGE_SIZE}, or 0 for the default, got {page_size}")
        if page_token and not (page_token.isascii() and page_token.isdecimal()):
            raise InvalidInputError(
                f"page_token: expected the next_page_token of the page before, or none, got {page_token!r}"
            )
        # A token is the last version of its page, so that pages hold although versions come and go.
        versions = [entry for entry in self._store.versions() if not page_token or entry.version < int(page_token)]
        size = page_size or DEFAULT_PAGE_SIZE
        page = tuple(versions[:size])
        return page, str(page[-1].version) if len(versions) > size else ""

    def hold(self, version: int, seconds: float) -> float:
        """Retain a version until its next evaluation, for so many seconds at most; returns the seconds granted.

        Raises NotFoundError when it is not retained, InvalidInputError for seconds that are not above 0, and
        ConflictError where the store is another's.
        """
        if self._writable is None:
            raise ConflictError(
                "this quantizer is read-only: it cannot hold a version; ask the one that writes the store"
            )
        # The newest may be held although it is not yet persisted.
        if not 0 < version <= self.newest_version:
            raise NotFoundError(f"version {version} is not retained; the newest is {self.newest_version}")
        return self._writable.hold(version, seconds)

    def record_evaluation(self, evaluation: Evaluation) -> None:
        """Keep an evaluation of a retained version, so that the best are retained; one of another is dropped."""
        if self._store.retains(evaluation.policy_version):
            self._writer.add_evaluation(evaluation.policy_version, evaluation.mean_return)
        else:
            _log.info("evaluation of version %d dropped: it is not retained", evaluation.policy_version)

    def _emit(self, checkpoint: Checkpoint, schemes: Iterable[str]) -> tuple[Policy, ...]:
        topology, form, left = self._prepared(checkpoint)
        ladders = {scheme: self._ladder(topology, form, scheme) for scheme in schemes}
        origin = self._origin(checkpoint, topology, left, ladders.values())
        return tuple(self._policy(origin, ladder, scheme) for scheme, ladder in ladders.items())

    def _emit_again(self, checkpoint: Checkpoint, scheme: str) -> Policy:
        topology, form, left = self._prepared(checkpoint)
        newest = checkpoint.version == self.newest_version
        # What an old version needs says nothing about the next one.
        ladder = self._ladder(topology, form, scheme) if newest else self._new_ladder(form, scheme)
        policy = self._policy(self._origin(checkpoint, topology, left, (ladder,)), ladder, scheme)
        # A version that was emitted but not yet persisted is stored without this scheme: it can be emitted again.
        if self._writable is not None and self._writable.retains(checkpoint.version):
            self._writable.add_policy(policy)
        return policy

    def _prepared(self, checkpoint: Checkpoint) -> tuple[Topology, Form, Left | None]:
        """The topology of a checkpoint, which is checked, the form that it takes, and what is left of it there."""
        topology = self._topology(checkpoint.topology)
        topology.graph.check_parameters(checkpoint.parameters)
        topology.graph.check_calibration(checkpoint.calibration)
        return topology, *topology.form(checkpoint.parameters)

    def _origin(
        self, checkpoint: Checkpoint, topology: Topology, left: Left | None, ladders: Iterable[Ladder]
    ) -> Origin:
        observed = frozenset[Observed]().union(*(ladder.observed for ladder in ladders))
        checkpoint = replace(checkpoint, calibration=topology.footprint.fitting(checkpoint.calibration))
        return Origin.of(self._run_id, checkpoint, topology.reference, observed, left)

    def _policy(self, origin: Origin, ladder: Ladder, scheme: str) -> Policy:
        emission, fidelity = ladder.emit(origin)
        checkpoint = origin.checkpoint
        descriptor = PolicyDescriptor(
            run_id=origin.run_id,
            version=checkpoint.version,
            learner_step=checkpoint.learner_step,
            scheme=scheme,
            sha256=hashlib.sha256(emission.model).digest(),
            size_bytes=len(emission.model),
            fp32_size_bytes=sum(array.nbytes for array in checkpoint.parameters.values()),
            snapshot_at=checkpoint.snapshot_at,
            fidelity=fidelity,
            topology=checkpoint.topology,
        )
        return Policy(descriptor, emission.model)

    def _ladder(self, topology: Topology, form: Form, scheme: str) -> Ladder:
        """The ladder of a form; one that is not the last to have emitted goes on at the rung of that."""
        if scheme not in form.ladders:
            form.ladders[scheme] = self._new_ladder(form, scheme)
        ladder, latest = form.ladders[scheme], topology.latest(scheme)
        if latest is not None and latest is not ladder:
            ladder.follow(latest)
        topology.remember(scheme, ladder)
        return ladder

    def _new_ladder(self, form: Form, scheme: str) -> Ladder:
        return Ladder(form.graph, scheme_named(scheme), self._options, self._thresholds, form.widths)

    def _nothing_to_serve(self) -> ActorQError:
        """Why there is no newest version."""
        damaged = self._store.damaged
        if not self._store.highest_version:
            return NotFoundError("no policy has been published yet; start a learner, or wait for its first version")
        if not damaged:
            return NotFoundError("newer versions replaced those in the store while they were read; try again")
        newest = max(damaged)
        versions = "the only version is" if len(damaged) == 1 else f"all {len(damaged)} versions are"
        return InvalidInputError(f"no policy can be served: {versions} damaged, of version {newest} {damaged[newest]}")

    @property
    def _writer(self) -> PolicyStore:
        if self._writable is None:
            raise ConflictError(
                "this quantizer is read-only: nothing can be published to it; publish to the one that writes the "
                "store, or start this one without --read-only"
            )
        return self._writable

    @property
    def _run_id(self) -> str:
        if self._store.run_id is None:
            raise ConflictError("no run owns the store yet; open the stream of checkpoints first")
        return self._store.run_id

    def _topology(self, digest: bytes) -> Topology:
        if digest in self._topologies:
            return self._topologies[digest]
        if digest not in self._store.graphs:
            raise ConflictError(f"checkpoint: the graph of topology {digest.hex()} is not here; send it first")
        return self._keep(Topology(Graph.parse(self._store.graphs[digest])))

    def _keep(self, topology: Topology) -> Topology:
        while len(self._topologies) >= _MAX_TOPOLOGIES:
            del self._topologies[next(iter(self._topologies))]
        self._topologies[topology.graph.topology] = topology
        return topology


def _newest(store: PolicyReader) -> _Newest | None:
    """The newest version of a store with all that was emitted of it."""
    for retained in store.versions():
        try:
            policies = {scheme: store.policy(retained.version, scheme) for scheme in retained.schemes}
            checkpoint = store.checkpoint(retained.version)
        except NotFoundError:
            # Removed by the store's writer, which has newer ones; the next here may still be retained.
            continue
        return _Newest(checkpoint, {scheme: policy for scheme, policy in policies.items() if policy is not None})
    return None
