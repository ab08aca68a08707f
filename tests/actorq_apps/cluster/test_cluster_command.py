"""`actorq cluster` from a user's view, against an API server in a kubeconfig."""

import re
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from actorq_apps.cli.display.cluster_view import summary, table
from actorq_apps.cli.main import main
from actorq_apps.cluster.diagnosis import PodView
from tests.actorq_apps.cluster.cluster_api import ClusterApi, cluster_api
from tests.actorq_apps.cluster.cluster_objects import STATUS, overlay, owned, pod, ready_pod, workload
from tests.builders.forked_commands import ForkedCommand


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterApi]:
    with cluster_api() as server:
        server.namespaces |= {"default"}
        context = {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "lab"}}
        server_address = f"http://127.0.0.1:{server.server_address[1]}"
        kubeconfig = {
            "current-context": "here",
            "contexts": [context],
            "clusters": [{"name": "here", "cluster": {"server": server_address}}],
            "users": [{"name": "me", "user": {}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield server


def test_actors_are_scaled_and_nothing_else(api: ClusterApi, capsys: pytest.CaptureFixture[str]) -> None:
    actor = workload("Deployment", "actor")
    api.add("apps/v1", "deployments", actor)
    assert main(["cluster", "scale", "actors", "4"]) == 0
    assert actor["spec"]["replicas"] == 4
    assert "1 -> 4 " in capsys.readouterr().out


def two_runs(api: ClusterApi) -> None:
    for run in ("small", "wide"):
        for name in (f"{run}-learner-0", f"{run}-actor-1"):
            made = pod(name, name.split("-")[1])
            made["metadata"]["labels"]["actorq/run"] = run
            api.add("v1", "pods", made)


def test_one_of_several_runs_is_shown_and_scaled(api: ClusterApi, capsys: pytest.CaptureFixture[str]) -> None:
    two_runs(api)
    assert main(["cluster", "status", "--run", "wide"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.search("wide .* lab", lines[0])
    assert [line.split()[0] for line in lines[2:4]] == ["wide-learner-0", "wide-actor-1"]
    run = {"metadata": {"name": "wide"}, "kind": "TrainingRun", "spec": {"actors": {"replicas": 2}}}
    api.add("actorq.dev/v1alpha1", "trainingruns", run)
    labels = {"app.kubernetes.io/name": "actorq", "app.kubernetes.io/component": "actor", "actorq/run": "wide"}
    actor = {"kind": "Deployment", "metadata": {"name": "wide-actor", "labels": labels}, "spec": {"replicas": 2}}
    api.add("apps/v1", "deployments", owned(actor, "TrainingRun", "wide"))
    assert main(["cluster", "scale", "actors", "6", "--run", "wide"]) == 0
    assert "2 -> 6 " in capsys.readouterr().out
    assert run["spec"] == {"actors": {"replicas": 6}}
    assert actor["spec"] == {"replicas": 2}, "the operator sets it"


@pytest.mark.parametrize(("state", "code"), [("Solved", 0), ("BudgetEnded", 3)])
def test_the_end_of_a_training_run_is_known_after_its_pods_are_gone(
    state: str, code: int, api: ClusterApi, capsys: pytest.CaptureFixture[str]
) -> None:
    status = {"state": state, "environmentSteps": 30_000, "return": 480.25}
    run = {"metadata": {"name": "wide"}, "kind": "TrainingRun", "spec": {}, "status": status}
    api.add("actorq.dev/v1alpha1", "trainingruns", run)
    assert main(["cluster", "wait", "--run", "wide"]) == code
    said = {"Solved": "solved", "BudgetEnded": "budget ended"}[state]
    assert capsys.readouterr().out.splitlines()[-1] == f"{said}  steps 30,000  return(eval) 480.2"


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["status"], "namespace lab .*small, wide.*--run"),
        (["status", "--run", "tall"], "namespace lab .*pods of run tall"),
        (["wait", "--run", "tall"], "namespace lab .*pods of run tall"),
        (["wait", "--timeout", "-1"], "--timeout.* 0 .*'-1'"),
        (["scale", "actors", "3", "--run", "tall"], "namespace lab .*Deployment .*run tall"),
    ],
)
def test_a_run_must_be_one_of_the_namespace(
    arguments: list[str], fact: str, api: ClusterApi, capsys: pytest.CaptureFixture[str]
) -> None:
    two_runs(api)
    assert main(["cluster", *arguments]) == 2
    assert re.search(fact, capsys.readouterr().err)


def test_status_shows_pods_while_the_learner_is_not_ready(api: ClusterApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.add("v1", "pods", pod("learner-0", "learner"))
    api.add("v1", "pods", ready_pod("actor-1", "actor", restarts=2))
    assert main(["cluster", "status"]) == 0
    title, *pods, status = capsys.readouterr().out.splitlines()
    assert title.endswith(" lab")
    assert pods == [
        "POD        ROLE     PHASE    POLICY  STALENESS  STEPS/S  RESTARTS",
        "learner-0  learner  Pending  -       -          -        0",
        "actor-1    actor    Running  -       -          -        2",
    ]
    assert re.search("learner.*not ready", status)


def test_suggests_certificates_when_the_learner_closes_the_connection(
    api: ClusterApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.add("v1", "pods", ready_pod("learner-0", "learner"))
    api.answer = lambda _: None
    assert main(["cluster", "status"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r"learner at 127\.0\.0\.1:\d+ .*TLS.*--certificates", line)


def test_logs_name_their_pods(api: ClusterApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.add("v1", "pods", ready_pod("learner-0", "learner"))
    api.add("v1", "pods", ready_pod("actor-1", "actor"))
    api.logs = {"learner-0": "one\ntwo\n", "actor-1": "unfinished"}
    assert main(["cluster", "logs", "-f", "actors"]) == 0
    assert capsys.readouterr().out == "unfinished\n"
    assert main(["cluster", "logs"]) == 0
    assert capsys.readouterr().out == "learner-0  one\nlearner-0  two\nactor-1    unfinished\n"


@pytest.mark.parametrize("flags", [(), ("-f",)])
def test_the_log_of_an_actor_with_a_simulator_is_the_actors(
    api: ClusterApi, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    actor = ready_pod("actor-1", "actor")
    api.add("v1", "pods", {**actor, "spec": {"containers": [{"name": "actor"}, {"name": "simulator"}]}})
    api.add("v1", "pods", ready_pod("learner-0", "learner"))
    api.logs = {"learner-0": "one\n", "actor-1": "two\n"}
    assert main(["cluster", "logs", *flags]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == ["actor-1    two", "learner-0  one"]


def test_logs_from_before_a_restart_are_those_of_pods_that_had_one(
    api: ClusterApi, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, restarts in (("actor-1", 0), ("actor-2", 1), ("actor-3", 4)):
        api.add("v1", "pods", ready_pod(name, "actor", restarts))
    api.logs = dict.fromkeys(("actor-1", "actor-2", "actor-3"), "now\n")
    api.previous_logs = {"actor-2": "one\ntwo\n", "actor-3": "three\n"}
    assert main(["cluster", "logs", "actors", "--previous"]) == 0
    assert capsys.readouterr().out == "actor-2  one\nactor-2  two\nactor-3  three\n"
    assert main(["cluster", "logs", "actor-2", "--previous"]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    assert main(["cluster", "logs", "actor-1", "--previous"]) == 2
    assert re.match("error: --previous.*actor-1", capsys.readouterr().err)


def test_reports_why_a_pod_has_no_log(api: ClusterApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.add("v1", "pods", pod("learner-0", "learner"))
    assert main(["cluster", "logs"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match("error: .*log of pod learner-0.*image can't be pulled$", line)


def test_up_fails_in_one_line_and_down_removes_what_it_made(
    api: ClusterApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rendered = tmp_path / "demo.yaml"
    rendered.write_text(yaml.safe_dump_all(overlay()))
    assert main(["cluster", "up", str(rendered), "--timeout", "0"]) == 1
    shown = capsys.readouterr()
    assert re.match("run demo .* lab.* 6 objects\n", shown.out)
    (line,) = shown.err.splitlines()
    assert re.match("error: .* 0 s: .*no pod of the learner.*`kubectl describe statefulset`", line)
    assert main(["cluster", "down"]) == 0
    assert re.match("run demo .* lab.*`down --delete-volume`", capsys.readouterr().out)
    assert main(["cluster", "down", "--delete-volume"]) == 0
    assert not api.objects


def test_runs_of_one_overlay_share_a_namespace_by_their_names(
    api: ClusterApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rendered = tmp_path / "demo.yaml"
    rendered.write_text(yaml.safe_dump_all(overlay()))
    for name in ("small", "wide"):
        assert main(["cluster", "up", str(rendered), "--name", name, "--timeout", "0"]) == 1
    assert api.names("statefulsets") == {"small-learner", "wide-learner"}
    assert main(["cluster", "scale", "actors", "3", "--run", "wide"]) == 0
    assert main(["cluster", "scale", "actors", "3"]) == 2
    assert re.search("namespace lab .*actors .*small, wide.*--run\n$", capsys.readouterr().err)
    assert main(["cluster", "down"]) == 2
    assert re.search("error: namespace lab .*runs small, wide.*--run\n$", capsys.readouterr().err)
    assert main(["cluster", "down", "--run", "small", "--delete-volume"]) == 0
    assert api.names("deployments") == {"wide-actor", "wide-quantizer"}
    assert api.names("persistentvolumeclaims") == {"data-wide-learner-0"}
    assert main(["cluster", "scale", "actors", "5"]) == 0, "the only run has a name"
    assert "3 -> 5 " in capsys.readouterr().out


def test_up_with_print_prints_the_objects_and_applies_none(
    api: ClusterApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rendered = tmp_path / "demo.yaml"
    rendered.write_text(yaml.safe_dump_all(overlay()))
    assert main(["cluster", "up", str(rendered), "--name", "wide", "--print"]) == 0
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    assert not api.objects
    assert main(["cluster", "up", str(rendered), "--name", "wide", "--timeout", "0"]) == 1
    made = {(each["kind"], each["metadata"]["name"]) for each in api.objects.values()}
    assert made == {(each["kind"], each["metadata"]["name"]) for each in printed}


def test_up_with_print_refuses_an_unknown_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = overlay()
    learner, configured = (
        next(each for each in objects if each["kind"] == kind) for kind in ("StatefulSet", "ConfigMap")
    )
    learner["spec"]["template"]["spec"]["volumes"] = [{"name": "configured", "configMap": {"name": "run-config"}}]
    configured["data"]["config.yaml"] = "sede: 3\n"
    rendered = tmp_path / "demo.yaml"
    rendered.write_text(yaml.safe_dump_all(objects))
    assert main(["cluster", "up", str(rendered), "-n", "lab", "--print"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.match("error: .*'sede'; did you mean 'seed'", printed.err)


def test_the_documented_role_has_all_needed_permissions(
    api: ClusterApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "cluster-command.md").read_text(encoding="utf-8")
    role = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    api.allowed = {(verb, each) for rule in role["rules"] for each in rule["resources"] for verb in rule["verbs"]}
    rendered = tmp_path / "demo.yaml"
    rendered.write_text(yaml.safe_dump_all(overlay()))
    api.add("v1", "pods", ready_pod("actor-1", "actor"))
    api.logs = {"actor-1": "line"}
    assert main(["cluster", "up", str(rendered), "--timeout", "0"]) == 1
    assert main(["cluster", "status"]) == 0
    assert main(["cluster", "scale", "actors", "2"]) == 0
    assert main(["cluster", "logs"]) == 0
    assert main(["cluster", "down", "--delete-volume"]) == 0
    of_operator = owned(workload("Deployment", "actor"), "TrainingRun", "own")
    of_operator["metadata"]["labels"]["actorq/run"] = "own"
    api.add("apps/v1", "deployments", of_operator)
    run = {"metadata": {"name": "own"}, "kind": "TrainingRun", "spec": {"actors": {"replicas": 1}}}
    api.add("actorq.dev/v1alpha1", "trainingruns", {**run, "status": {"state": "Solved"}})
    assert main(["cluster", "scale", "actors", "2"]) == 0
    assert main(["cluster", "wait", "--run", "own"]) == 0
    assert "permission" not in capsys.readouterr().err


def test_relays_are_a_role_like_the_others(api: ClusterApi, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("relay-a", "actor-1"):
        api.add("v1", "pods", ready_pod(name, name.partition("-")[0]))
    api.logs = {"relay-a": "of a relay", "actor-1": "of an actor"}
    assert main(["cluster", "logs", "relays"]) == 0
    assert capsys.readouterr().out == "of a relay\n"


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ([], "up, status, wait, scale, logs, forward, down"),
        (["stop"], "'stop'.*up, status, wait, scale, logs, forward, down.*actorq cluster --help"),
        (["status"], "namespace lab .*pods.* -n"),
        (["logs", "-n", "default"], "namespace default .*pods"),
        (["forward"], "namespace lab .*pods"),
        (["down"], "namespace lab .*`actorq cluster up`"),
        (["scale", "actors", "4"], "namespace lab .*Deployment .* -n"),
        (["scale", "actors", "-1"], "argument N.* 0 .*'-1'.*actorq cluster scale --help"),
        (["logs", "-f", "--previous"], "--previous.*--follow"),
        (["forward", "--learner-port", "65536"], "--learner-port.* 65535.*'65536'"),
        (["logs", "--tail", "-3"], "--tail.* 0 .*'-3'.*actorq cluster logs --help"),
        (["up", "x", "--timeout", "nan"], "--timeout.* 0 .*'nan'"),
        (["scale", "learner", "2"], "argument actors.*'learner'"),
        (["up", "/nowhere"], "/nowhere .*No such file"),
        (["up", "/nowhere", "--name", "a b"], "name of the run.* 43 .*'a b'"),
        (["status", "--namespce", "x"], "'--namespce'.*'--namespace'"),
    ],
)
def test_reports_a_wrong_command_or_flag_in_one_line(
    api: ClusterApi, arguments: list[str], fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: .*{fact}", line)


def test_a_missing_kubeconfig_is_an_error_without_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert main(["cluster", "status"]) == 2
    assert capsys.readouterr().err.startswith("error: no cluster: ")


CONTEXT = {"name": "here", "context": {"cluster": "here", "user": "me"}}


def kubeconfig(server: str, **user: object) -> str:
    tree = {
        "current-context": "here",
        "contexts": [CONTEXT],
        "clusters": [{"name": "here", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": user}],
    }
    return yaml.safe_dump(tree)


PLUGIN = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-command", "interactiveMode": "Never"}


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("a: [", "kubeconfig.*while parsing"),
        ("hello", "kubeconfig"),
        ("[1]", "kubeconfig"),
        ("current-context: x", "kube-config"),
        (kubeconfig("https://127.0.0.1:1", exec=PLUGIN), "credentials.*No such file.*'no-such-command'"),
        (kubeconfig("http://127.0.0.1:1"), r"http://127\.0\.0\.1:1 .*refused"),
        (kubeconfig("127.0.0.1:1"), r"`server`.*https://HOST.*'127\.0\.0\.1:1'"),
    ],
    ids=["no YAML", "text", "list", "no context", "no credentials", "no server", "no address"],
)
def test_reports_an_unusable_kubeconfig_in_one_line(
    text: str, fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kubeconfig").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    assert main(["cluster", "status", "-n", "lab"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: no cluster: .*{fact}", line)


def test_a_folder_is_no_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path))
    assert main(["cluster", "status"]) == 2
    assert re.search(f"{tmp_path} .*kubeconfig.*Is a directory", capsys.readouterr().err)


def test_another_web_server_is_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Page(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        (tmp_path / "kubeconfig").write_text(kubeconfig(address))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        try:
            assert main(["cluster", "status"]) == 2
        finally:
            server.shutdown()
            thread.join()
    assert re.match(f"error: no cluster: .*{address} .*`server`", capsys.readouterr().err)


def test_logs_end_silently_when_their_output_is_closed(api: ClusterApi) -> None:
    # As in `actorq cluster logs -f | head -1`.
    pods = {"learner-0": "learner", "actor-1": "actor"}
    for name, role in pods.items():
        api.add("v1", "pods", ready_pod(name, role))
    api.logs = dict.fromkeys(pods, "line\n" * 10_000)
    process = ForkedCommand("actorq_apps.cli.main", "cluster", "logs", "-f")
    try:
        assert process.stdout.readline().endswith("  line\n")
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (141, "")
    finally:
        process.kill()
        process.stderr.close()


def test_a_pod_is_shown_with_the_figures_that_the_learner_has_of_it() -> None:
    pods = [
        PodView("learner-0", "learner", "Running", True, 0),
        PodView("actor-1", "actor", "Running", True, 1),
        PodView("actor-2", "actor", "Running", False, 0),
    ]
    assert table(pods, STATUS).splitlines() == [
        "POD        ROLE     PHASE               POLICY  STALENESS  STEPS/S  RESTARTS",
        "learner-0  learner  Running             v36     -          -        0",
        "actor-1    actor    Running             v34     2          742      1",
        "actor-2    actor    Running, not ready  -       -          -        0",
    ]


def test_the_return_is_shown_with_its_target() -> None:
    assert summary(STATUS).endswith("  target 475.0")
    assert "target" not in summary(replace(STATUS, target_return=None))
