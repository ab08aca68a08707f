"""Sweeps over TrainingRun objects, against a fake API server."""

import copy
import queue
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from actorq_apps.local.events import Events
from actorq_apps.sweep.cluster import ClusterRuns, read_template, template_tree
from actorq_apps.sweep.space import changes_tree, read_space
from actorq_apps.sweep.study import Study
from actorq_apps.sweep.sweep import run_sweep
from actorq_apps.sweep.trials import Objective, Progress, RunEnd, Trial, TrialResult, TrialState
from tests.actorq_apps.cluster.cluster_api import ClusterApi, cluster_api
from tests.actorq_apps.sweep.sweep_parts import Lines, study_in

TEMPLATE = {
    "apiVersion": "actorq.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "cartpole", "labels": {"team": "lab"}},
    "spec": {
        "environment": "CartPole-v1",
        "algorithm": "dqn",
        "config": {"dqn": {"n_step": 3}, "max_environment_steps": 10_000},
        "actors": {"replicas": 2},
    },
}
SPACE = read_space(("dqn.learning_rate=log:1e-4..1e-2", "dqn.hidden_sizes=16,16|64,64"), None)
BUDGET = 10_000


@pytest.fixture
def api() -> Iterator[ClusterApi]:
    with cluster_api() as api:
        api.kinds["actorq.dev/v1alpha1"] = [("TrainingRun", "trainingruns", True)]
        yield api


def config_of(changes: Mapping[str, Any]) -> RunConfig:
    return settings.build(RunConfig, template_tree(TEMPLATE), changes_tree(changes))


def runs_on(api: ClusterApi, lines: Lines) -> ClusterRuns:
    return ClusterRuns(api.cluster(), copy.deepcopy(TEMPLATE), "a1b2c3", config_of, lines.line, period_s=0.0)


def objects(api: ClusterApi) -> dict[str, Any]:
    return {path.rpartition("/")[2]: each for path, each in api.objects.items() if "/trainingruns/" in path}


class Controller(Lines):
    """Advances the runs of the objects after each check, as a controller would.

    bad: runs with these numbers stay at return 0. steps: environment steps between two checks.
    """

    def __init__(self, api: ClusterApi, bad: tuple[int, ...] = (), steps: int = 2500) -> None:
        super().__init__()
        self.most = 0
        self._api = api
        self._bad = bad
        self._steps = steps

    def update(self, results: list[TrialResult], running: Mapping[int, Progress]) -> None:
        going_on = [each for each in objects(self._api).values() if "finishedAt" not in each.get("status", {})]
        self.most = max(self.most, len(going_on))
        for each in going_on:
            assert not each["spec"].get("suspend")
            status = each.setdefault("status", {"environmentSteps": 0, "elapsedSeconds": 0.0})
            number = int(each["metadata"]["labels"]["actorq.dev/trial"])
            status["state"] = "Training"
            status["environmentSteps"] += self._steps
            status["elapsedSeconds"] = status["environmentSteps"] / 100
            status["return"] = 0.0 if number in self._bad else status["environmentSteps"] / 100 + number
            if status["environmentSteps"] >= BUDGET:
                status |= {"state": "BudgetEnded", "finishedAt": "2026-01-01T00:01:40Z"}


def sweep(study: Study, runs: ClusterRuns, controller: Lines, trials: int, jobs: int = 1) -> None:
    events: Events = queue.SimpleQueue()
    run_sweep(study, runs, controller, events, trials, jobs, BUDGET)


def test_each_trial_is_an_object_and_jobs_limits_running_ones(api: ClusterApi, tmp_path: Path) -> None:
    controller, study = Controller(api), study_in(tmp_path, space=SPACE, several=True)
    sweep(study, runs_on(api, controller), controller, 7, 3)
    made = objects(api)
    assert list(made) == [f"cartpole-a1b2c3-00{number}" for number in range(7)]
    assert controller.most == 3
    for result, each in zip(study.results(), made.values(), strict=True):
        assert result.state is TrialState.COMPLETE
        assert (result.value, result.steps, result.seconds) == (100.0 + result.number, BUDGET, 100.0)
        assert each["metadata"]["labels"]["team"] == "lab"
        assert each["spec"]["actors"] == {"replicas": 2}
        config = settings.build(RunConfig, template_tree(each))
        assert config.dqn.learning_rate == result.params["dqn.learning_rate"]
        assert ",".join(map(str, config.dqn.hidden_sizes)) == result.params["dqn.hidden_sizes"]
        assert config.dqn.n_step == 3


def test_trials_share_no_folder_of_object_storage(api: ClusterApi, tmp_path: Path) -> None:
    template = copy.deepcopy(TEMPLATE)
    spec: dict[str, Any] = template["spec"]  # type: ignore[assignment]
    spec["config"]["checkpoint"] = {"object_storage": "s3://runs/sweep/"}
    spec["policyExport"] = {"url": "s3://policies/sweep", "scheme": "int8"}

    def config(changes: Mapping[str, Any]) -> RunConfig:
        return settings.build(RunConfig, template_tree(template), changes_tree(changes))

    runs = ClusterRuns(api.cluster(), template, "a1b2c3", config, lambda line: None)
    for number in (0, 1):
        made = runs.manifest(Trial(number, {"dqn.learning_rate": 0.001}))["spec"]
        name = f"cartpole-a1b2c3-00{number}"
        assert made["config"]["checkpoint"] == {"object_storage": f"s3://runs/sweep/{name}"}
        assert made["policyExport"] == {"url": f"s3://policies/sweep/{name}", "scheme": "int8"}
        assert made["config"]["dqn"] == {"n_step": 3, "learning_rate": 0.001}


def test_the_objects_are_in_the_namespace_of_the_sweep_whatever_that_of_the_template(api: ClusterApi) -> None:
    template = {**TEMPLATE, "metadata": {"name": "cartpole", "namespace": "elsewhere"}}
    ClusterRuns(api.cluster(), template, "a1b2c3", config_of, print).start(Trial(0, {"dqn.learning_rate": 0.001}))
    assert objects(api)["cartpole-a1b2c3-000"]["metadata"]["namespace"] == "lab"


def test_a_pruned_object_is_deleted(api: ClusterApi, tmp_path: Path) -> None:
    controller = Controller(api, bad=(5, 6), steps=500)
    study = study_in(tmp_path, space=SPACE, pruner="median")
    sweep(study, runs_on(api, controller), controller, 8)
    pruned = {result.number for result in study.results() if result.state is TrialState.PRUNED}
    assert pruned >= {5, 6}
    assert set(objects(api)) == {f"cartpole-a1b2c3-00{number}" for number in set(range(8)) - pruned}


def test_an_object_that_could_not_be_deleted_is_deleted_by_the_next_process(api: ClusterApi, tmp_path: Path) -> None:
    def refuse(verb: str, kind: str, name: str) -> tuple[int, str] | None:
        return (503, "the API server restarts") if verb == "delete" else None

    class Killed(Controller):
        def line(self, text: str) -> None:
            super().line(text)
            if "trying again" in text and "delete" in text:
                raise KeyboardInterrupt

    serve, api.refuse = api.refuse, refuse
    study = study_in(tmp_path, space=SPACE, pruner="median")
    with pytest.raises(KeyboardInterrupt):
        sweep(study, runs_on(api, killed := Killed(api, bad=(5, 6), steps=500)), killed, 8)
    name = f"cartpole-a1b2c3-00{study.results()[-1].number}"
    assert re.match(f"TrainingRun {name} .*: the API server restarts$", killed.lines[-1])
    assert name in objects(api)
    api.refuse = serve
    study = study_in(tmp_path, space=SPACE, pruner="median")
    sweep(study, runs_on(api, controller := Controller(api)), controller, len(study.results()))
    assert controller.lines == []
    assert name not in objects(api)


def test_an_interruption_after_a_pruned_trial_reports_nothing(api: ClusterApi) -> None:
    runs, trial = runs_on(api, lines := Lines()), Trial(0, {"dqn.learning_rate": 0.001})
    runs.start(trial)
    runs.prune(trial)
    runs.interrupt()
    assert (lines.lines, objects(api)) == ([], {})


def test_an_interrupted_sweep_suspends_its_objects_and_resumes_them(api: ClusterApi, tmp_path: Path) -> None:
    class Killed(Controller):
        def update(self, results: list[TrialResult], running: Mapping[int, Progress]) -> None:
            super().update(results, running)
            if len(results) == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(study_in(tmp_path, space=SPACE), runs_on(api, killed := Killed(api)), killed, 4)
    suspended = [name for name, each in objects(api).items() if each["spec"].get("suspend")]
    assert suspended == ["cartpole-a1b2c3-002"]
    study = study_in(tmp_path, space=SPACE)
    sweep(study, runs_on(api, controller := Controller(api)), controller, 4)
    assert len(objects(api)) == 4
    assert [result.steps for result in study.results()] == [BUDGET] * 4


def test_a_queue_decides_when_a_suspended_object_of_a_template_begins(api: ClusterApi) -> None:
    template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "suspend": True}}  # type: ignore[dict-item]
    trials = [Trial(number, {"dqn.learning_rate": 0.001}) for number in (0, 1)]

    def begin() -> tuple[ClusterRuns, list[bool]]:
        runs = ClusterRuns(api.cluster(), copy.deepcopy(template), "a1b2c3", config_of, print)
        for trial in trials:
            runs.start(trial)
        return runs, [each["spec"]["suspend"] for each in objects(api).values()]

    runs, suspended = begin()
    assert suspended == [True, True]
    objects(api)["cartpole-a1b2c3-000"]["spec"] |= {"suspend": False, "actors": {"replicas": 5}}
    runs.interrupt()
    assert [each["spec"]["suspend"] for each in objects(api).values()] == [True, True]
    # The sweep resumes only an object that it has suspended itself, and only once.
    assert begin()[1] == [False, True]
    assert objects(api)["cartpole-a1b2c3-000"]["spec"]["actors"] == {"replicas": 5}
    objects(api)["cartpole-a1b2c3-000"]["spec"]["suspend"] = True
    assert begin()[1] == [True, True]


def test_an_interruption_ignores_finished_and_missing_objects(api: ClusterApi) -> None:
    runs = runs_on(api, lines := Lines())
    for number in (0, 1):
        runs.start(Trial(number, {"dqn.learning_rate": 0.001}))
    objects(api)["cartpole-a1b2c3-000"]["status"] = {"state": "Solved", "finishedAt": "2026-01-01T00:01:40Z"}
    api.remove(next(path for path in api.objects if path.endswith("-001")))
    runs.interrupt()
    assert "suspend" not in objects(api)["cartpole-a1b2c3-000"]["spec"]
    assert lines.lines == []


@pytest.mark.parametrize(
    ("status", "end", "reason"),
    [
        ({}, None, ""),
        ({"state": "Suspended", "environmentSteps": 10}, None, ""),
        ({"state": "Solved", "return": 500.0}, RunEnd.SOLVED, ""),
        ({"state": "BudgetEnded"}, RunEnd.BUDGET_ENDED, ""),
        ({"state": "Stopped", "reason": "the run is over: Stopped"}, RunEnd.FAILED, "the run is over: Stopped"),
        (
            {"state": "Refused", "reason": "quota", "conditions": [{"type": "Failed", "status": "True"}]},
            RunEnd.FAILED,
            "quota",
        ),
        ({"state": "Pending", "conditions": [{"type": "Failed", "status": "False"}]}, None, ""),
    ],
)
def test_reads_the_end_of_a_run_from_the_status(api: ClusterApi, status: Any, end: RunEnd | None, reason: str) -> None:
    runs, trial = runs_on(api, Lines()), Trial(0, {"dqn.learning_rate": 0.001})
    runs.start(trial)
    objects(api)["cartpole-a1b2c3-000"]["status"] = status
    progress = runs.progress(trial)
    assert (progress.end, progress.reason) == (end, reason)


def test_a_failed_object_is_suspended_before_its_trial_is_over(api: ClusterApi) -> None:
    runs, trial = runs_on(api, lines := Lines()), Trial(0, {"dqn.learning_rate": 0.001})
    runs.start(trial)
    found = objects(api)["cartpole-a1b2c3-000"]
    found["status"] = {"reason": "no such image", "conditions": [{"type": "Failed", "status": "True"}]}
    api.refuse = lambda verb, kind, name: (503, "the API server restarts") if verb == "patch" else None
    assert [runs.progress(trial).end for _ in range(2)] == [None, None]
    (line,) = lines.lines
    assert re.search("trying again.*TrainingRun cartpole-a1b2c3-000: the API server restarts$", line)
    api.refuse = lambda verb, kind, name: None
    assert runs.progress(trial) == Progress(end=RunEnd.FAILED, reason="no such image")
    assert objects(api)["cartpole-a1b2c3-000"]["spec"]["suspend"]
    # A process that was killed before it stored the result runs the trial again.
    runs_on(api, lines).start(trial)
    assert not objects(api)["cartpole-a1b2c3-000"]["spec"]["suspend"]


def test_a_run_is_made_and_deleted_once_the_cluster_can_be_reached(api: ClusterApi) -> None:
    lines = Lines()
    runs, trial = runs_on(api, lines), Trial(0, {"dqn.learning_rate": 0.001})

    def away(verb: str, kind: str, name: str) -> tuple[int, str]:
        return 503, "the API server restarts"

    there, api.refuse = api.refuse, away
    runs.start(trial)
    assert runs.progress(trial) == Progress()
    api.refuse = there
    assert (objects(api), runs.progress(trial).end) == ({}, None)
    assert list(objects(api)) == ["cartpole-a1b2c3-000"]
    api.refuse = away
    runs.prune(trial)
    api.refuse = there
    assert runs.progress(trial).end is RunEnd.FAILED
    assert objects(api) == {}
    assert all("trying again" in line for line in lines.lines)


@pytest.mark.parametrize(
    "said",
    [
        (403, 'trainingruns.actorq.dev "x" is forbidden: exceeded quota: lab, used: 2, limited: 2'),
        (409, 'Operation cannot be fulfilled on resourcequotas "lab": the object has been modified'),
    ],
)
def test_creates_an_object_later_if_a_quota_refuses_it(api: ClusterApi, tmp_path: Path, said: tuple[int, str]) -> None:
    refusals = [said] * 4

    def refuse(verb: str, kind: str, name: str) -> tuple[int, str] | None:
        return refusals.pop() if verb == "apply" and name.endswith("-002") and refusals else None

    api.refuse = refuse
    study = study_in(tmp_path, space=SPACE, several=True)
    sweep(study, runs_on(api, controller := Controller(api)), controller, 6, 3)
    assert [result.state for result in study.results()] == [TrialState.COMPLETE] * 6
    (line,) = [line for line in controller.lines if said[1] in line]
    assert re.search("trying again.*apply TrainingRun cartpole-a1b2c3-002: ", line)


def test_an_unchanged_return_is_not_a_new_evaluation(api: ClusterApi) -> None:
    runs, trial = runs_on(api, Lines()), Trial(0, {"dqn.learning_rate": 0.001})
    runs.start(trial)
    for steps, score in ((10, 7.0), (20, 7.0), (30, 7.0), (40, 8.0)):
        objects(api)["cartpole-a1b2c3-000"]["status"] = {"return": score, "environmentSteps": steps}
        known = runs.progress(trial)
    assert known.evaluations == ((30, 7.0), (40, 8.0))
    assert known.steps == 40


def test_without_the_cluster_nothing_is_lost(api: ClusterApi) -> None:
    lines = Lines()
    runs, trial = runs_on(api, lines), Trial(0, {"dqn.learning_rate": 0.001})
    runs.start(trial)
    objects(api)["cartpole-a1b2c3-000"]["status"] = {"return": 7.0, "environmentSteps": 10}
    known = runs.progress(trial)
    assert known.evaluations == ((10, 7.0),)
    api.forbidden.add(("get", "trainingruns"))
    assert [runs.progress(trial), runs.progress(trial)] == [known, known]
    (line,) = lines.lines
    assert "trying again" in line
    api.forbidden.clear()
    del api.objects["/apis/actorq.dev/v1alpha1/namespaces/lab/trainingruns/cartpole-a1b2c3-000"]
    gone = runs.progress(trial)
    assert gone.end is RunEnd.FAILED
    assert re.search("TrainingRun cartpole-a1b2c3-000 .*deleted", gone.reason)


def test_creates_no_object_for_an_invalid_combination_of_values(api: ClusterApi) -> None:
    runs, trial = runs_on(api, Lines()), Trial(0, {"replay.min_size": 4000, "replay.capacity": 5000})
    runs.start(trial)
    progress = runs.progress(trial)
    assert progress.end is RunEnd.FAILED
    assert re.search(r"replay\.capacity .*replay\.min_size.*4000.* 5000", progress.reason)
    assert objects(api) == {}


def test_the_best_run_can_be_applied_again(api: ClusterApi, tmp_path: Path) -> None:
    runs = runs_on(api, Lines())
    line = runs.keep_best(Trial(3, {"dqn.learning_rate": 0.001}), tmp_path)
    assert re.search(f"TrainingRun cartpole-a1b2c3-003; .*{tmp_path}", line)
    again = read_template(tmp_path / "trainingrun.yaml")
    assert settings.build(RunConfig, template_tree(again)).dqn.learning_rate == 0.001
    assert settings.from_file(tmp_path / "config.yaml")["dqn"]["learning_rate"] == 0.001


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"kind": "Pod"}, r"TrainingRun .*actorq\.dev/v1alpha1"),
        ({"metadata": {}}, r"metadata\.name .* 32 .* None"),
        ({"metadata": {"name": "a" * 33}}, r"metadata\.name .* 32 .*a{33}"),
        ({"spec": {"config": 3}}, "spec .*config"),
    ],
)
def test_a_wrong_template_gets_one_line(tmp_path: Path, change: Any, fact: str) -> None:
    file = tmp_path / "template.yaml"
    file.write_text(yaml.safe_dump({**TEMPLATE, **change}))
    with pytest.raises(UserError, match=f"--template.*{fact}"):
        read_template(file)


class Solving(Controller):
    """Solves the runs at the end of their budget, each long after its learner first trained."""

    def update(self, results: list[TrialResult], running: Mapping[int, Progress]) -> None:
        super().update(results, running)
        for each in objects(self._api).values():
            if each["status"]["state"] == "BudgetEnded":
                each["status"] |= {"state": "Solved", "startedAt": "2025-12-31T00:00:00Z"}


def test_takes_the_seconds_of_a_run_from_the_learner(api: ClusterApi, tmp_path: Path) -> None:
    study = study_in(tmp_path, space=SPACE, objective=Objective.SECONDS)
    sweep(study, runs_on(api, controller := Solving(api)), controller, 2)
    assert [result.value for result in study.results()] == [100.0, 100.0]


def test_a_solved_run_whose_status_lacks_the_time_is_not_the_fastest(api: ClusterApi, tmp_path: Path) -> None:
    class Older(Solving):
        def update(self, results: list[TrialResult], running: Mapping[int, Progress]) -> None:
            super().update(results, running)
            objects(api)["cartpole-a1b2c3-000"]["status"].pop("elapsedSeconds", None)

    study = study_in(tmp_path, space=SPACE, objective=Objective.SECONDS)
    sweep(study, runs_on(api, controller := Older(api)), controller, 2)
    first, second = study.results()
    assert (first.state, second.state) == (TrialState.FAILED, TrialState.COMPLETE)
    assert "status.elapsedSeconds" in first.reason
