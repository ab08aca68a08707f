"""At its end a run writes its best policy to object storage, where `actorq.load_policy` can act with it."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actorq
from actorq.client import LearnerClient, QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.status import RunState, RunStatus
from actorq.domain.trajectory import Episode
from actorq.errors import UserError
from actorq.statefiles.documents import read_document
from actorq.v1 import learner_pb2
from learner_service.objectstorage.policy_export import PolicyExport
from learner_service.objectstorage.volume import open_volume
from learner_service.run.run import Run
from tests.builders.s3_server import CREDENTIALS, s3_server
from tests.learner_service.learner_parts import SPEC, config, evaluation, segment
from tests.learner_service.learner_servers import DEADLINE_S, ActorStream, actor, running_learner, running_quantizer


@pytest.fixture
def quantizer(tmp_path: Path) -> Iterator[str]:
    with running_quantizer(tmp_path / "policies") as address:
        yield address


def exporting(url: str, endpoint: str = "", **export: str) -> RunConfig:
    return config(
        target_return=100.0,
        policy_export={"url": url, **export},
        # The quantizer retains few versions without a hold, and the evaluated version must be among them.
        publication={"period_updates": 1_000_000},
        actor={"segment_length": 4, "max_steps_per_policy": 0, "report_period_s": 0.5},
        checkpoint={"period_s": 1_000.0, "object_storage_endpoint": endpoint},
    )


def solve(client: LearnerClient) -> RunStatus:
    """Train, then reach the target with the first version. Returns the last status."""
    client.join("actor-0", 1, "actor", "test")
    client.join("judge", 1, "evaluator", "test")
    worker, judge = (ActorStream(client, name) for name in ("actor-0", "judge"))
    worker.open(SPEC)
    worker.await_credit(1)
    worker.send_segment(segment(1, episodes=(Episode(51.0, 51, 0),)))
    worker.send_segments(range(2, 9))
    next(status for status in client.watch(0.05) if status.updates and status.emitted)
    judge.open(SPEC)
    judge.send_evaluation(evaluation(1, 1, 150.0, 90.0))
    for stream in (worker, judge):
        stream.await_directive(learner_pb2.DIRECTIVE_STOP)
        stream.close()
    *_, last = client.watch(0.05)
    assert last.state is RunState.SOLVED
    return last


def test_flagged_evaluations_choose_no_policy(quantizer: str, tmp_path: Path) -> None:
    tree = exporting(f"file://{tmp_path}/exported").model_dump()
    tree["checkpoint"] = {"period_s": 1_000.0, "object_storage": f"file://{tmp_path}/stored"}
    with (
        running_learner(RunConfig.model_validate(tree), tmp_path / "run", quantizer) as running,
        LearnerClient(running.address, deadline_s=DEADLINE_S) as client,
        QuantizerClient(quantizer) as policies,
        actor(client, "judge", role="evaluator") as judge,
        actor(client, "actor-0") as worker,
    ):
        worker.await_credit(1)
        worker.send_segment(segment(1, episodes=(Episode(51.0, 51, 0),)))
        worker.await_acknowledged(1)
        next(status for status in client.watch(0.05) if policies.list())
        for each in (evaluation(1, 1, 60.0), evaluation(2, 1, 9_000.0), evaluation(3, 2, 9_000.0)):
            judge.send_evaluation(each)
            judge.await_acknowledged(each.sequence)
        assert client.status().flagged_evaluation
        next(status for status in client.watch(0.05) if policies.list()[-1].mean_return == 60.0)
        client.stop()
        worker.await_directive(learner_pb2.DIRECTIVE_STOP)
        judge.await_directive(learner_pb2.DIRECTIVE_STOP)
        worker.close()
        judge.close()
        running.exit_code.result(DEADLINE_S)
    assert check(tmp_path / "exported", 1, "int8")["evaluation"]["max_return"] == 60.0
    (kept,) = (tmp_path / "run" / "best").glob("*.json")
    assert (kept.name, read_document(kept)["mean_return"]) == ("00000001-int8.json", 60.0)


def finished(run: RunConfig, directory: Path, quantizer: str) -> RunStatus:
    with (
        running_learner(run, directory, quantizer, resume=True, linger=True) as running,
        LearnerClient(running.address, deadline_s=DEADLINE_S) as client,
    ):
        return solve(client)


def check(folder: Path, version: int, scheme: str) -> dict[str, Any]:
    """Act with the policy in a folder. Returns its description."""
    policy = actorq.load_policy(folder / "policy.onnx")
    assert (policy.version, policy.scheme, policy.environment) == (version, scheme, SPEC)
    assert policy.predict([0.0, 0.1, 0.0, -0.1]) in (0, 1)
    described: dict[str, Any] = json.loads((folder / "policy.json").read_text())
    return described


def test_the_best_policy_is_in_a_bucket_after_the_run(
    quantizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server(tmp_path / "served") as server:
        run = exporting("s3://bucket/policies/run", server.endpoint)
        last = finished(run, tmp_path / "run", quantizer)
        assert last.exported_policy == "s3://bucket/policies/run/policy.onnx"
        described = check(server.bucket / "policies/run", 1, "int8")
    assert described["run_id"] == last.run_id
    assert (described["evaluation"]["mean_return"], described["evaluation"]["scheme"]) == (120.0, "int8")


def test_the_next_learner_of_a_finished_run_knows_the_url(quantizer: str, tmp_path: Path) -> None:
    run = exporting(f"file://{tmp_path}/exported")
    before = finished(run, tmp_path / "run", quantizer)
    with (
        running_learner(run, tmp_path / "run", quantizer, resume=True, linger=True) as running,
        LearnerClient(running.address, deadline_s=DEADLINE_S) as client,
    ):
        *_, again = client.watch(0.05)
    assert again.exported_policy == before.exported_policy == f"file://{tmp_path}/exported/policy.onnx"


def test_a_run_that_another_learner_has_continued_exports_nothing(quantizer: str, tmp_path: Path) -> None:
    tree = exporting(f"file://{tmp_path}/exported").model_dump()
    tree["checkpoint"] = {"period_s": 1_000.0, "object_storage": f"file://{tmp_path}/stored"}
    run = RunConfig.model_validate(tree)

    def solved_too_late() -> None:
        with (
            running_learner(run, tmp_path / "run", quantizer) as running,
            LearnerClient(running.address, deadline_s=DEADLINE_S) as client,
        ):
            other = open_volume(run.checkpoint, tmp_path / "other")
            assert other is not None
            other.prepare(resume=True)
            assert solve(client).exported_policy == ""
            running.exit_code.result(DEADLINE_S)

    with pytest.raises(UserError, match="another learner"):
        solved_too_late()
    assert not list((tmp_path / "exported").iterdir())


def test_a_policy_is_exported_in_the_scheme_of_choice(quantizer: str, tmp_path: Path) -> None:
    finished(exporting(f"file://{tmp_path}/exported", scheme="fp32"), tmp_path / "run", quantizer)
    check(tmp_path / "exported", 1, "fp32")


def test_a_run_ends_also_when_its_policy_cannot_be_exported(
    quantizer: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "exported").mkdir()
    # No file can replace a folder.
    (tmp_path / "exported" / "policy.onnx").mkdir()
    last = finished(exporting(f"file://{tmp_path}/exported"), tmp_path / "run", quantizer)
    assert last.exported_policy == ""
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert f"{tmp_path}/exported" in record.getMessage()


def test_an_export_below_a_file_is_refused_before_the_run_begins(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        QuantizerClient("127.0.0.1:1") as client,
        pytest.raises(UserError, match=r"^policy_export.url file://[^\n]*$"),
    ):
        PolicyExport(exporting(f"file://{tmp_path}/file/folder"), tmp_path / "evaluations.jsonl", client)


def test_a_policy_of_another_run_is_not_replaced(quantizer: str, tmp_path: Path) -> None:
    run = exporting(f"file://{tmp_path}/exported")
    first = finished(run, tmp_path / "first", quantizer)
    before = {path.name: path.read_bytes() for path in (tmp_path / "exported").iterdir()}
    fact = rf"^policy_export\.url: file://{tmp_path}/exported .*{first.run_id}"
    with QuantizerClient(quantizer) as client, pytest.raises(UserError, match=fact):
        Run(run, tmp_path / "second", client, resume=False)
    assert {path.name: path.read_bytes() for path in (tmp_path / "exported").iterdir()} == before


def test_a_foreign_policy_stored_during_the_run_is_not_replaced(
    quantizer: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    export = tmp_path / "exported"
    with (
        running_learner(exporting(f"file://{export}"), tmp_path / "run", quantizer, linger=True) as running,
        LearnerClient(running.address, deadline_s=DEADLINE_S) as client,
    ):
        (export / "policy.json").write_text('{"run_id": "other"}')
        assert solve(client).exported_policy == ""
    assert [path.name for path in export.iterdir()] == ["policy.json"]
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert "run other;" in record.getMessage()


@pytest.mark.parametrize("content", ["", "[]", "{}", "\udcff"])
def test_a_foreign_file_is_not_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "policy.json").write_text(content, errors="surrogateescape")
    with (
        QuantizerClient("127.0.0.1:1") as client,
        pytest.raises(UserError, match=rf"{tmp_path} .*policy\.json"),
    ):
        PolicyExport(exporting(f"file://{tmp_path}"), tmp_path / "evaluations.jsonl", client).begin("run")
