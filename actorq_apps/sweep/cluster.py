"""Executes the runs of trials on Kubernetes, as TrainingRun objects created from a template."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.errors import ActorQError, ConflictError, UnavailableError, UserError
from actorq.statefiles.files import replace_file
from actorq_apps.cluster.answers import QuotaError
from actorq_apps.cluster.connection import Cluster, UnreachableError
from actorq_apps.cluster.objects import TRAINING_RUN, Object, name_of, part
from actorq_apps.sweep.space import Value, changes_tree
from actorq_apps.sweep.trials import Progress, RunEnd, Trial, folder_below, own_urls

API_VERSION, KIND = TRAINING_RUN
SWEEP_LABEL, TRIAL_LABEL = "actorq.dev/sweep", "actorq.dev/trial"
# Marks objects that a sweep has suspended. Queues and people suspend objects, too.
_SUSPENDED = "actorq.dev/suspended-by-sweep"
# A run's name has at most 44 characters. The sweep appends its identity and the trial's number.
_NAME_CHARACTERS = 32
# Ends by the state of an object, and by a condition that is true.
_ENDS = {"Solved": RunEnd.SOLVED, "BudgetEnded": RunEnd.BUDGET_ENDED, "Stopped": RunEnd.FAILED, "Failed": RunEnd.FAILED}

# After these errors the same request may succeed later. Quotas report a conflict for simultaneous requests.
_PASSING = (ConflictError, QuotaError, UnavailableError, UnreachableError)


def read_template(file: Path) -> Object:
    """The TrainingRun in a YAML file. Raises UserError."""
    try:
        found = settings.from_yaml(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--template: cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"--template: {file} is not YAML: {error}") from None
    if not isinstance(found, dict) or (found.get("apiVersion"), found.get("kind")) != (API_VERSION, KIND):
        raise UserError(f"--template: expected one {KIND} of {API_VERSION} in {file}")
    name, spec = part(found, "metadata").get("name"), found.get("spec")
    if not isinstance(name, str) or not name or len(name) > _NAME_CHARACTERS:
        raise UserError(f"--template: expected metadata.name with 1 to {_NAME_CHARACTERS} characters, got {name!r}")
    if not isinstance(spec, dict) or not isinstance(spec.get("config", {}), dict):
        raise UserError(f"--template: expected spec with config as a mapping in {file}")
    return found


def template_tree(template: Object) -> dict[str, Any]:
    """The settings in a template, as a tree."""
    spec = template["spec"]
    return {**spec.get("config", {}), **{name: spec[name] for name in ("algorithm", "environment") if name in spec}}


@dataclass(eq=False)
class ClusterRuns:
    """Runs as TrainingRun objects: a `Backend`.

    identity: part of the objects' names, so that two sweeps with one template never share objects.
    config_of: returns the settings of a run with a trial's values. Impossible ones are refused at once.
    tell: gets a line when the cluster cannot be reached, or temporarily refuses something.
    """

    cluster: Cluster
    template: Object
    identity: str
    config_of: Callable[[Mapping[str, Value]], RunConfig]
    tell: Callable[[str], None]
    period_s: float = 2.0
    _running: dict[int, Trial] = field(default_factory=dict, init=False)
    _known: dict[int, Progress] = field(default_factory=dict, init=False)
    # Trials that could not be pruned or suspended yet, because the cluster was unreachable or refused temporarily.
    _unapplied: set[int] = field(default_factory=set, init=False)
    _undeleted: dict[int, Trial] = field(default_factory=dict, init=False)
    # The current problem of each trial's object.
    _problems: dict[int, str] = field(default_factory=dict, init=False)

    def start(self, trial: Trial) -> None:
        """Create the object. An existing object stays. One that an earlier process suspended continues."""
        try:
            self.config_of(trial.params)
        except UserError as error:
            self._known[trial.number] = Progress(end=RunEnd.FAILED, reason=str(error))
            return
        self._running[trial.number] = trial
        self._unapplied.add(trial.number)
        self._is_made(trial)

    def progress(self, trial: Trial) -> Progress:
        """The progress from the object's status. While the cluster is unreachable, the last known progress."""
        self._delete_pruned()
        known = self._known.get(trial.number, Progress())
        if known.end is not None or trial.number in self._undeleted or not self._is_made(trial):
            return known
        with self._told_once(trial, ActorQError):
            known = self._known[trial.number] = self._poll(trial, known)
        if known.end is not None:
            self._running.pop(trial.number, None)
        return known

    def _poll(self, trial: Trial, known: Progress) -> Progress:
        found = self.cluster.get(API_VERSION, KIND, self.name(trial))
        if found is None:
            return replace(known, end=RunEnd.FAILED, reason=f"{KIND} {self.name(trial)} was deleted")
        progress = _progress(found.get("status") or {}, known)
        if progress.end is RunEnd.FAILED:
            # Otherwise the pods of a failed run restart repeatedly, and its learner may even recover and train.
            self._suspend(found)
        return progress

    def prune(self, trial: Trial) -> None:
        """Delete the object. The cluster then removes everything of the run."""
        self._running.pop(trial.number, None)
        self._unapplied.discard(trial.number)
        self._undeleted[trial.number] = trial
        self._delete_pruned()

    def _delete_pruned(self) -> None:
        for trial in list(self._undeleted.values()):
            with self._told_once(trial, *_PASSING):
                self.cluster.delete(API_VERSION, KIND, self.name(trial))
                del self._undeleted[trial.number]
            if trial.number in self._undeleted:
                # The next request would fail after the same timeout.
                return

    def _is_made(self, trial: Trial) -> bool:
        """Create or resume the object, unless an earlier call did. Returns False if the cluster refuses for now."""
        if trial.number in self._unapplied:
            with self._told_once(trial, *_PASSING):
                found = self.cluster.get(API_VERSION, KIND, self.name(trial))
                if found is None:
                    self.cluster.apply(self.manifest(trial))
                elif _SUSPENDED in part(found, "metadata", "annotations"):
                    change = {"metadata": {"annotations": {_SUSPENDED: None}}, "spec": {"suspend": False}}
                    self.cluster.patch(API_VERSION, KIND, name_of(found), change)
                self._unapplied.discard(trial.number)
        return trial.number not in self._unapplied

    @contextmanager
    def _told_once(self, trial: Trial, *errors: type[ActorQError]) -> Iterator[None]:
        """Continue after these errors. Report each error once, even if several trials have it."""
        try:
            yield
        except errors as error:
            if str(error) not in self._problems.values():
                self.tell(f"trying again: {error}")
            self._problems[trial.number] = str(error)
        else:
            self._problems.pop(trial.number, None)

    def interrupt(self) -> None:
        """Suspend all running objects, which keep their volumes. Delete the objects of pruned trials."""
        for trial in self._running.values():
            try:
                if (found := self.cluster.get(API_VERSION, KIND, self.name(trial))) is not None:
                    self._suspend(found)
            except ActorQError as error:
                self.tell(f"{KIND} {self.name(trial)} may continue: {error}")
        for trial in self._undeleted.values():
            try:
                self.cluster.delete(API_VERSION, KIND, self.name(trial))
            except ActorQError as error:
                self.tell(f"{KIND} {self.name(trial)} continues until the same command deletes it: {error}")

    def _suspend(self, found: Object) -> None:
        """Suspend an object that is not over, unless somebody else has. `start` resumes it."""
        if "finishedAt" not in part(found, "status") and part(found, "spec").get("suspend") is not True:
            change = {"metadata": {"annotations": {_SUSPENDED: "true"}}, "spec": {"suspend": True}}
            self.cluster.patch(API_VERSION, KIND, name_of(found), change)

    def keep_best(self, trial: Trial, folder: Path) -> str:
        """Write the object's manifest and settings. The policy stays in the cluster."""
        replace_file(folder / "trainingrun.yaml", yaml.safe_dump(self.manifest(trial), sort_keys=False))
        replace_file(folder / "config.yaml", settings.to_yaml(self.config_of(trial.params)))
        return f"the best policy: in {KIND} {self.name(trial)}; its manifest is {folder / 'trainingrun.yaml'}"

    def name(self, trial: Trial) -> str:
        """The name of a trial's object."""
        return f"{self.template['metadata']['name']}-{self.identity}-{trial.number:03}"

    def manifest(self, trial: Trial) -> Object:
        """The object of a trial: the template with the sweep's namespace, and the trial's name, labels and settings."""
        made = copy.deepcopy(self.template)
        made.pop("status", None)
        metadata, spec, name = made["metadata"], made["spec"], self.name(trial)
        metadata |= {"name": name, "namespace": self.cluster.namespace}
        labels = {SWEEP_LABEL: self.identity, TRIAL_LABEL: str(trial.number)}
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
        changes = changes_tree({**trial.params, **own_urls(self.config_of(trial.params), name)})
        if isinstance(export := spec.get("policyExport"), dict) and "url" in export:
            export["url"] = folder_below(str(export["url"]), name)
        if "algorithm" in changes:
            spec["algorithm"] = changes.pop("algorithm")
        spec["config"] = settings.merged(spec.get("config", {}), changes)
        return made


def _progress(status: Mapping[str, Any], known: Progress) -> Progress:
    """The progress in a status, with the evaluations that this process has seen."""
    steps = int(status.get("environmentSteps") or 0)
    points, mean_return = known.evaluations, status.get("return")
    if mean_return is not None:
        # An equal return is most likely the same evaluation. The status does not contain its steps.
        earlier = points[:-1] if points and points[-1][1] == mean_return else points
        points = (*earlier, (steps, float(mean_return)))
    met = {each.get("type") for each in status.get("conditions") or () if each.get("status") == "True"}
    end = _ENDS.get(str(status.get("state"))) or next((found for name, found in _ENDS.items() if name in met), None)
    seconds = float(status.get("elapsedSeconds") or 0)
    reason = str(status.get("reason") or "the run failed") if end is RunEnd.FAILED else ""
    return Progress(points, steps, seconds, end, reason)
