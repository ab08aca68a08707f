"""`actorq policies` for a run's folder and for a quantizer, and the choice of versions in other commands."""

import json
import re
import shutil
from pathlib import Path

import pytest

from actorq.config.run_config import RunConfig
from actorq.domain.policy import AUTO, SIGNED
from actorq.errors import UserError
from actorq.inference.runpolicies import RunPolicies
from actorq.rundirectory import RunDirectory
from actorq_apps.cli.main import main
from tests.builders.processors import INT8_HERE
from tests.builders.stored_policies import CONTINUOUS, stored_run
from tests.quantizer_service.policy_graphs import gaussian, mlp
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.quantizer_server import running_quantizer
from tests.quantizer_service.recurrent_graphs import integrator, version

GRAPH = mlp(8, 8)
RETURNS = {1: 30.0, 2: 50.0, 3: 40.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of five versions, of which the second is the best."""
    versions = [checkpoint(GRAPH, version) for version in range(1, 6)]
    return stored_run(tmp_path_factory.mktemp("stored") / "run", GRAPH, versions, RETURNS)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["policies", *arguments]) == 0
    return capsys.readouterr().out


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["policies", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


def test_the_best_and_the_newest_version_come_first_then_evaluated_ones(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *lines = printed(capsys, str(run.root)).splitlines()
    assert header.split() == ["version", "updates", "scheme", "return", "argmax", "agreement", "size"]
    # Unsigned weights are shown.
    unsigned = () if INT8_HERE.weight_encoding == SIGNED else ("(unsigned)",)
    assert [line.split()[: 4 + len(unsigned)] for line in lines] == [
        ["2", "200", "int8", *unsigned, "50.0"],
        ["5", "500", "int8", *unsigned, "-"],
        ["3", "300", "int8", *unsigned, "40.0"],
        ["1", "100", "int8", *unsigned, "30.0"],
        ["4", "400", "int8", *unsigned, "-"],
    ]
    assert [line.split()[-1] for line in lines if line.split()[-1] in ("best", "newest")] == ["best", "newest"]


def test_json_has_the_fields_of_each_policy(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    best, newest, *_ = json.loads(printed(capsys, str(run.root), "--json"))
    assert (best["version"], best["updates"], best["scheme"], best["mean_return"]) == (2, 200, "int8", 50.0)
    assert (best["marks"], newest["marks"], newest["mean_return"]) == (["best"], ["newest"], None)
    assert 0.0 <= best["argmax_agreement"] <= 1.0
    assert (best["mean_kl"], best["max_kl"]) == (None, None)
    folder = run.policies / "00000002"
    assert best["size_bytes"] == (folder / f"policy-{INT8_HERE}.onnx").stat().st_size


def test_lists_stochastic_policies_with_their_divergence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = gaussian()
    root = str(stored_run(tmp_path / "run", graph, [checkpoint(graph, 1)]).root)
    header, line = printed(capsys, root).splitlines()
    assert header.split()[4:6] == ["KL,", "nats"]
    (policy,) = json.loads(printed(capsys, root, "--json"))
    assert 0 < policy["mean_kl"] < policy["max_kl"] < 0.01
    assert line.partition("-  ")[2].split()[:3] == [f"{policy['mean_kl']:.1g}", "/", f"{policy['max_kl']:.1g}"]


def test_lists_policies_with_memory_with_their_drift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = integrator()
    root = str(stored_run(tmp_path / "run", graph, [version(graph)], spec=CONTINUOUS).root)
    header, line = printed(capsys, root).splitlines()
    assert "state drift" in header
    (policy,) = json.loads(printed(capsys, root, "--json"))
    assert policy["state_drift"] <= 0.02
    assert f"{policy['state_drift']:.1%}" in line.split()


def test_a_quantizer_lists_the_same_policies(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    expected = printed(capsys, str(run.root))
    with running_quantizer(run.policies, read_only=True) as address:
        assert printed(capsys, "--quantizer", address) == expected


def test_a_damaged_version_is_skipped(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    copied = shutil.copytree(run.root, tmp_path / "run")
    (copied / "policies" / "00000003" / "checkpoint.json").write_text("{}")
    assert [row["version"] for row in json.loads(printed(capsys, str(copied), "--json"))] == [2, 5, 1, 4]
    assert "version 3 " in caplog.text


def test_reports_mistakes_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search("RUN_DIR .*--quantizer.*actorq policies --help", error_of(capsys))
    assert re.search(f"{tmp_path / 'no'} .*exist", error_of(capsys, str(tmp_path / "no")))
    assert re.search(r"127\.0\.0\.1:1 .*--quantizer", error_of(capsys, "--quantizer", "127.0.0.1:1"))
    empty = RunDirectory(tmp_path / "empty")
    empty.create(RunConfig())
    assert f"{empty.policies} has no policies" in error_of(capsys, str(empty.root))
    with running_quantizer(tmp_path / "store") as address:
        assert re.search(f"{address} has no policies", error_of(capsys, "--quantizer", address))


def test_a_choice_finds_its_version(run: RunDirectory) -> None:
    policies = RunPolicies(run)
    choices = ("", "best", "newest", "3")
    assert [policies.find(choice).version for choice in choices] == [2, 2, 5, 3]
    with pytest.raises(UserError, match=f"version 9 .*{run.root}.*actorq policies {run.root}"):
        policies.find("9")


def test_does_not_call_a_just_replaced_version_damaged(run: RunDirectory, tmp_path: Path) -> None:
    copied = RunDirectory(shutil.copytree(run.root, tmp_path / "run"))
    policies = RunPolicies(copied)
    found = policies.find("1")
    model = copied.policies / "00000001" / f"policy-{INT8_HERE}.onnx"
    model.write_bytes(b"changed")
    with pytest.raises(UserError, match=rf"policy-{INT8_HERE}\.onnx.*sha256"):
        policies.stored(found, "int8")
    shutil.rmtree(model.parent)
    with pytest.raises(UserError, match=r"version 1 .*try again"):
        policies.stored(found, "int8")


def test_without_an_evaluation_there_is_a_newest_version_and_no_best_one(tmp_path: Path) -> None:
    policies = RunPolicies(stored_run(tmp_path / "run", GRAPH, [checkpoint(GRAPH, version) for version in (1, 2)]))
    assert policies.find().version == 2
    with pytest.raises(UserError, match=r"no version .*evaluation.*newest.*actorq policies"):
        policies.find("best")


def test_the_scheme_of_an_auto_run_is_that_of_its_evaluation(tmp_path: Path) -> None:
    versions = [checkpoint(GRAPH, version) for version in (1, 2)]
    run = stored_run(tmp_path / "run", GRAPH, versions, {1: 3.0}, scheme="int4")
    policies = RunPolicies(run)
    assert {policies.scheme_of(version) for version in policies.versions} == {"int4"}
    run.write_config(RunConfig(scheme=AUTO))
    of_auto = RunPolicies(run)
    assert of_auto.scheme_of(of_auto.find("1")) == "int4"


def test_evaluate_names_the_command_that_lists_versions(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run.root), "--version", "77"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: version 77 .*{run.root}.*actorq policies {run.root}", line)
