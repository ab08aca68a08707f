"""Makes the cluster match a TrainingRun, and the TrainingRun's status match the cluster.

Each reconciliation begins with the current objects of the cluster. Memory between reconciliations only saves work. An
operator that is killed between two requests therefore loses nothing.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from actorq.domain.status import RunStatus
from actorq.errors import ConflictError, UserError
from actorq.transport.options import Certificates
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.diagnosis import Fault, live_pods
from actorq_apps.cluster.objects import RUN_LABEL, VOLUME, WORKLOADS, Object, name_of, part
from actorq_apps.operator import credentials, differences
from actorq_apps.operator.certificates import certificates, secrets
from actorq_apps.operator.differences import Existing, changed_setting, differs, foreign, is_owned, refusal, stamped
from actorq_apps.operator.leader import OtherOperators
from actorq_apps.operator.render import MANIFESTS, Images, objects
from actorq_apps.operator.resource.training_run import API_VERSION, KIND, TrainingRun, TrainingRunSpec
from actorq_apps.operator.status import conditions, present
from actorq_apps.operator.status.answers import Answers
from actorq_apps.operator.status.events import COMPONENT, new_events, of_another_operator
from actorq_apps.operator.status.observed_run import ObservedRun, find_fault, lacks_pods, role_of, waits

# Seconds between reconciliations of an active run, and between writes of figures to its status.
PERIOD_S = 5.0
# Seconds between reconciliations of a run whose actors wait until learner and quantizer have nodes.
PLACING_PERIOD_S = 1.0
# Seconds between reconciliations of a run that another operator manages.
LEFT_PERIOD_S = 15.0
# In a healthy run, all objects are compared once in this time. All other checks compare only its workloads.
CHECK_PERIOD_S = 10.0
# Seconds per run, because with many runs the comparison must be rarer.
_CHECK_S_PER_RUN = 0.25
_TTL = "ttlSecondsAfterFinished"
_MOST_NAMED = 5
_log = logging.getLogger(__name__)


class Key(NamedTuple):
    """A TrainingRun's namespace and name."""

    namespace: str
    name: str


@dataclass
class _Desired:
    """The objects that a run needs.

    They depend on the generation of its TrainingRun, its resting components, and its Secret's labels.

    run: None for an invalid specification. fault: why nothing can be created.
    checked: when all objects last matched.
    healed: changes by others that the last reconciliation undid. Changes that come back are left alone.
    told: changes left alone, each logged once.
    """

    version: tuple[int, tuple[str, ...], Object | None, Fault | None]
    run: TrainingRun | None
    wanted: list[Object]
    fault: Fault | None
    checked: float = float("-inf")
    healed: dict[tuple[str, str], set[differences.Path]] = field(default_factory=dict)
    told: set[tuple[tuple[str, str], differences.Path]] = field(default_factory=set)

    def differs(self, wanted: Object, found: Object | None) -> bool:
        """Whether an object must be applied."""
        return differs(wanted, found, self.healed.get((wanted["kind"], name_of(wanted)), ()))


@dataclass
class _Memory:
    """State of a run between reconciliations that may be lost: its desired state, and its learner's last status.

    ended: for a run with nothing left to delete, the version of its object; empty before.
    """

    uid: str
    answers: Answers
    state: str = ""
    ended: str = ""
    desired: _Desired | None = None
    earlier: RunStatus | None = None
    written: float = float("-inf")


@dataclass(eq=False)
class Reconciler:
    """Reconciles one run after the other. Not thread-safe.

    wake: called from other threads with the key of a run that has news.
    address_of: returns the address of a run's learner.
    """

    cluster: Cluster
    wake: Callable[[Key], object]
    manifests: Path = MANIFESTS
    images: Images = field(default_factory=Images)
    address_of: Callable[[Key], str] = lambda key: f"{key.name}-learner.{key.namespace}.svc:50051"
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    _memories: dict[Key, _Memory] = field(default_factory=dict, init=False)
    # The uids of the runs that other operators manage.
    _left: dict[Key, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.cluster = self.cluster.at(self.cluster.namespace, COMPONENT)
        self._others = OtherOperators(self.cluster, clock=self.clock)

    def reconcile(self, key: Key) -> float | None:
        """Check a run and make the necessary changes. Returns the seconds until the next check; None without one.

        Raises ActorQError when the cluster does not answer, ConflictError when the TrainingRun has changed meanwhile.
        """
        cluster = self.cluster.at(key.namespace)
        resource = cluster.get(API_VERSION, KIND, key.name)
        if resource is None or resource["metadata"].get("deletionTimestamp"):
            # Kubernetes deletes the objects that belong to it.
            self._forget(key)
            self._left.pop(key, None)
            return None
        if self._others.manages(key.namespace):
            return self._leave(cluster, key, resource)
        self._left.pop(key, None)
        memory = self._memory_of(key, resource)
        if memory.ended and memory.ended == _version_of(resource):
            return None
        try:
            found, observed = self._see(cluster, key, resource, memory)
        except UserError as error:
            fault = refusal(error)
            observed = ObservedRun(resource, self.now(), earlier=memory.earlier, refusal=fault, blind=True)
            self._write(cluster, observed, fault, memory)
            return PERIOD_S
        desired = memory.desired = self._desired(cluster, memory, observed)
        observed, live = replace(observed, refusal=desired.fault), observed.live
        if not self._is_enough(observed, desired, found):
            try:
                found |= present.others(cluster, resource, desired.wanted, found)
                if self._left_s(observed) <= 0:
                    return self._clear(cluster, observed, found, memory)
                if desired.run is not None and desired.fault is None:
                    observed = replace(observed, refusal=self._make(cluster, desired.run, desired, found, observed))
                observed = replace(observed, volumes=found.of(VOLUME), events=self._events(cluster, found))
            except UserError as error:
                fault = refusal(error)
                observed = replace(observed, refusal=observed.refusal or fault)
            if observed.refusal is not None:
                self._rest(cluster, observed, found)
        if live is not None and (memory.earlier is None or live.elapsed_s >= memory.earlier.elapsed_s + PERIOD_S):
            memory.earlier = live
        wait_s = self._write(cluster, observed, find_fault(observed), memory)
        if wait_s is None or wait_s > PERIOD_S:
            # A resting run should use no memory.
            memory.desired = None
        # No event reports that a pod gets its node. A pod that gets none in time has a fault.
        if wait_s is not None and observed.waits and find_fault(observed) is None:
            return min(wait_s, PLACING_PERIOD_S)
        return wait_s

    def known(self) -> list[Key]:
        """The runs that existed at their last reconciliation."""
        return list(self._memories)

    def runs_by_state(self) -> dict[str, int]:
        """The number of known runs by the state in their status, including states without runs. Thread-safe."""
        states = [each.state for each in list(self._memories.values())]
        return {state: states.count(state) for state in dict.fromkeys((*conditions.STATES, *states))}

    def close(self) -> None:
        """End all streams."""
        for key in list(self._memories):
            self._forget(key)

    def _memory_of(self, key: Key, resource: Object) -> _Memory:
        """The memory of a run, with its current state. A new run of the same name gets a new memory."""
        uid = resource["metadata"]["uid"]
        memory = self._memories.get(key)
        if memory is None or memory.uid != uid:
            self._forget(key)
            answers = Answers(self.address_of(key), lambda: self.wake(key), self.clock)
            memory = self._memories[key] = _Memory(uid, answers)
        memory.state = str(part(resource, "status").get("state") or conditions.PENDING)
        return memory

    def _clear(self, cluster: Cluster, observed: ObservedRun, found: Existing, memory: _Memory) -> float | None:
        """Delete a finished run's objects, except its volumes. Returns the seconds until the next check, if any."""
        memory.desired = None
        left = self._delete(cluster, [each for each in found.values() if each["kind"] != VOLUME], memory.uid)
        # The actors may end after their workload.
        wait_s = self._write(cluster, observed, find_fault(observed), memory)
        if left or wait_s:
            return wait_s or PERIOD_S
        memory.ended = _version_of(observed.resource)
        return None

    def _leave(self, cluster: Cluster, key: Key, resource: Object) -> float:
        """Leave a run to the operator of its namespace, and report this once. Returns the time until the next check."""
        self._forget(key)
        if self._left.get(key) != resource["metadata"]["uid"]:
            self._left[key] = resource["metadata"]["uid"]
            event = of_another_operator(ObservedRun(resource, self.now()), self.cluster.namespace)
            _log.warning("%s/%s: %s", *key, event["message"])
            self._tell(cluster, [event])
        return LEFT_PERIOD_S

    def _see(self, cluster: Cluster, key: Key, resource: Object, memory: _Memory) -> tuple[Existing, ObservedRun]:
        """A run's workloads, and the state of its pods and learner. Raises UserError for a refused request."""
        found = present.listed(cluster, key.name, present.OF_WORKLOADS)
        # An earlier run of this name may still exist. The status of its learner does not belong to this run.
        workloads = [each for each in found.values() if is_owned(each, memory.uid)]
        own = [each["metadata"]["uid"] for each in workloads]
        labeled = live_pods(cluster.list("v1", "Pod", f"{RUN_LABEL}={key.name}"))
        pods = [pod for pod in labeled if role_of(pod) != "learner" or any(is_owned(pod, uid) for uid in own)]
        asked = [] if "finishedAt" in part(resource, "status") else pods
        secret = f"{key.name}-operator-tls"

        def read() -> Certificates | None:
            plain = present.tls_mode(resource) == "none"
            return None if plain else certificates(cluster.get("v1", "Secret", secret) or {})

        live = memory.answers.newest(asked, read)
        observed = ObservedRun(resource, self.now(), live, memory.earlier, pods, list(found.values()))
        waiting = not (observed.suspended or observed.over) and waits(pods, workloads)
        return found, replace(observed, awaited=memory.answers.awaited, waits=waiting)

    def _desired(self, cluster: Cluster, memory: _Memory, observed: ObservedRun) -> _Desired:
        resource, desired = observed.resource, memory.desired
        generation = int(resource["metadata"].get("generation", 0))
        # Only the status shows that a run has ended. It must record the end before the learner's pods end.
        resting = observed.resting if "finishedAt" in observed.before or not observed.over else ()
        run = desired.run if desired is not None and desired.version[:2] == (generation, resting) else None
        labels: Object | None = None
        try:
            run = run or TrainingRun.of(resource)
            labels, fault = credentials.check(cluster, run)
            version = generation, resting, labels, fault
            if desired is not None and desired.version == version:
                return desired
            wanted = [] if fault else objects(run, resting, self.manifests, labels is not None, self.images)
            return _Desired(version, run, [stamped(each) for each in wanted], fault)
        except UserError as error:
            fault = Fault("spec", str(error).removeprefix("spec: "), reason="InvalidConfiguration")
            return _Desired((generation, resting, labels, fault), run, [], fault)

    def _is_enough(self, observed: ObservedRun, desired: _Desired, found: Existing) -> bool:
        """Whether workloads and pods show that the run works, and its other objects were compared recently."""
        period_s = max(CHECK_PERIOD_S, _CHECK_S_PER_RUN * len(self._memories))
        if observed.live is None or observed.over or self.clock() >= desired.checked + period_s:
            return False
        workloads = [each for each in desired.wanted if each["kind"] in WORKLOADS]
        changed = any(desired.differs(each, found.get((each["kind"], name_of(each)))) for each in workloads)
        lacking = any(lacks_pods(each) for each in observed.workloads)
        return not changed and not lacking and find_fault(observed) is None

    def _make(
        self, cluster: Cluster, run: TrainingRun, desired: _Desired, found: Existing, observed: ObservedRun
    ) -> Fault | None:
        """Apply the objects that differ. Returns why nothing may be applied. Raises UserError for a refused request."""
        wanted = desired.wanted
        fault = foreign(found, wanted, run.name, run.uid)
        if fault := fault or changed_setting(found, wanted, observed.before, observed.over):
            return fault
        existing = {name_of(each): each for each in found.of("Secret") if is_owned(each, run.uid)}
        made = secrets(run, existing, datetime.fromtimestamp(self.now(), UTC))
        others = present.there(cluster, [each for each in made if name_of(each) not in existing])
        if (taken := foreign(others, made, run.name, run.uid)) is not None:
            return taken
        changed = [each for each in wanted if desired.differs(each, found.get((each["kind"], name_of(each))))]
        for manifest in (*made, *changed):
            there = found.get((manifest["kind"], name_of(manifest)))
            cluster.apply(differences.fitted(manifest, there))
            if change := differences.removal(manifest, there):
                cluster.patch(manifest["apiVersion"], manifest["kind"], name_of(manifest), change)
            _log.info("%s/%s: %s %s applied", run.namespace, run.name, manifest["kind"], name_of(manifest))
        self._record_healed(run, desired, found)
        doomed = differences.no_longer_wanted(found, wanted, run.uid)
        self._delete(cluster, doomed, run.uid)
        # After a change, the next reconciliation compares all objects again.
        desired.checked = float("-inf") if made or changed or doomed else self.clock()
        return None

    def _record_healed(self, run: TrainingRun, desired: _Desired, found: Existing) -> None:
        """Record changes by others that were undone. Changes that come back are left alone, to avoid a fight."""
        for each in desired.wanted:
            key = each["kind"], name_of(each)
            there = found.get(key)
            undone = differences.changes(each, there) if there is not None else set()
            left = {path for path in undone & desired.healed.get(key, set()) if (key, path) not in desired.told}
            if left:
                names = ", ".join(sorted(".".join(path) for path in left)[:_MOST_NAMED])
                _log.warning("%s/%s: %s %s: others keep changing %s", run.namespace, run.name, *key, names)
            desired.told |= {(key, path) for path in left}
            desired.healed[key] = undone

    def _delete(self, cluster: Cluster, doomed: Sequence[Object], uid: str) -> bool:
        """Delete objects of the run. Returns whether there were any."""
        owned = [each for each in doomed if is_owned(each, uid)]
        for each in owned:
            if not each["metadata"].get("deletionTimestamp"):
                cluster.delete(each["apiVersion"], each["kind"], name_of(each))
                _log.info("%s: %s %s deleted", cluster.namespace, each["kind"], name_of(each))
        return bool(owned)

    def _rest(self, cluster: Cluster, observed: ObservedRun, found: Existing) -> None:
        """End the pods of resting components, even if the run's other objects cannot match its specification."""
        for each in differences.to_scale_down(found, observed.resource["metadata"]["uid"], observed.resting):
            try:
                cluster.patch(each["apiVersion"], each["kind"], name_of(each), {"spec": {"replicas": 0}})
                _log.info("%s: %s %s has no pods", cluster.namespace, each["kind"], name_of(each))
            except UserError as error:
                _log.warning("%s %s: %s", each["kind"], name_of(each), refusal(error).text)

    def _events(self, cluster: Cluster, found: Existing) -> list[Object]:
        """The events of the namespace, if they may explain a missing pod or volume."""
        pending = any(part(each, "status").get("phase") == "Pending" for each in found.of(VOLUME))
        lacking = any(lacks_pods(each) for each in found.of(*WORKLOADS))
        return cluster.list("v1", "Event") if pending or lacking else []

    def _write(self, cluster: Cluster, observed: ObservedRun, fault: Fault | None, memory: _Memory) -> float | None:
        """Write the status unless it is too early. Returns the time until the next check."""
        status = conditions.new_status(observed, fault)
        if status == observed.before:
            if "finishedAt" in status and status["actors"] == 0:
                return max(self._left_s(observed), 0.0)
            invalid = memory.desired is not None and memory.desired.run is None
            # A resting run stays so until somebody changes the object.
            return None if not observed.pods and (observed.suspended or invalid) else PERIOD_S
        early_s = memory.written + PERIOD_S - self.clock()
        if early_s > 0 and not conditions.is_news(observed.before, status):
            return early_s
        self._tell(cluster, new_events(observed, status, fault))
        metadata = {"resourceVersion": observed.resource["metadata"].get("resourceVersion")}
        cluster.patch(API_VERSION, KIND, name_of(observed.resource), {"metadata": metadata, "status": status}, "status")
        memory.written = self.clock()
        # After the end of the run, check again at once, because the actors must end with the run.
        return 0.0 if "finishedAt" in status and "finishedAt" not in observed.before else PERIOD_S

    def _tell(self, cluster: Cluster, events: Sequence[Object]) -> None:
        for event in events:
            try:
                cluster.create(event)
            except ConflictError:
                # Reported before.
                continue
            except UserError as error:
                _log.warning("%s: %s", event["message"], refusal(error).text)

    def _left_s(self, observed: ObservedRun) -> float:
        """Seconds that learner and quantizer of a finished run will still serve."""
        if "finishedAt" not in observed.before:
            return float("inf")
        # Read from the object, because the rest of the specification may be invalid.
        ttl_s = part(observed.resource, "spec").get(_TTL, TrainingRunSpec.model_fields[_TTL].default)
        return datetime.fromisoformat(observed.before["finishedAt"]).timestamp() + float(ttl_s) - observed.now

    def _forget(self, key: Key) -> None:
        if memory := self._memories.pop(key, None):
            memory.answers.close()


def _version_of(resource: Object) -> str:
    """The version of an object; empty if the cluster has given none."""
    return str(resource["metadata"].get("resourceVersion", ""))
