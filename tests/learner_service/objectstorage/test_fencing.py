"""A learner whose run was continued elsewhere from object storage ends, and changes nothing there."""

import json
from pathlib import Path

import grpc
import pytest
import yaml

from actorq.client import LearnerClient
from actorq.config.sections import CheckpointConfig
from actorq.process import EXIT_USER_ERROR
from learner_service.objectstorage.volume import open_volume
from learner_service.verify import verify
from tests.builders.service_process import service_process
from tests.learner_service.learner_parts import config
from tests.learner_service.learner_servers import DEADLINE_S, joined, running_quantizer
from tests.learner_service.objectstorage.stored_runs import Storage


@pytest.mark.parametrize("linger", [False, True])
def test_a_learner_that_lost_its_run_ends_and_leaves_it_interrupted(linger: bool, tmp_path: Path) -> None:
    stored, here = tmp_path / "stored", tmp_path / "run"
    run = config(checkpoint={"period_s": 0.05, "object_storage": f"file://{stored}"})
    settings = tmp_path / "config.yaml"
    settings.write_text(yaml.safe_dump(run.model_dump(mode="json", exclude_unset=True)))
    with running_quantizer(tmp_path / "policies") as quantizer:
        learner = (
            *("learner", "--config", str(settings), "--run-directory", str(here), "--quantizer", quantizer),
            *("--resume", *(["--linger"] if linger else [])),
        )
        with (
            service_process(*learner) as process,
            LearnerClient(process.address, deadline_s=DEADLINE_S) as client,
        ):
            worker = joined(client, "actor-0")
            worker.send_segments(range(1, 9))
            next(status for status in client.watch(0.05) if list(stored.glob("manifests/*.json")))
            other = open_volume(run.checkpoint, tmp_path / "other")
            assert other is not None
            other.prepare(resume=True)
            claims = {path.name: path.read_bytes() for path in (stored / "claims").iterdir()}
            worker.assert_refused(grpc.StatusCode.UNAVAILABLE, "the learner is moving")
            code, told = process.end()
        with service_process(*learner) as process:
            assert process.end() == (code, told)
    assert code == EXIT_USER_ERROR
    assert f"checkpoint.object_storage: another learner has gone on with this run from file://{stored}; end" in told
    assert {path.name: path.read_bytes() for path in (stored / "claims").iterdir()} == claims
    assert json.loads((here / "summary.json").read_text())["state"] == "interrupted"
    assert not (here / "outcome.json").exists()
    assert list((here / "checkpoints").glob("[0-9]*"))


@pytest.mark.parametrize("name", ["object_storage.json", "object_storage.copy.json"])
def test_a_volume_whose_name_is_damaged_in_one_file_keeps_its_run(name: str, tmp_path: Path) -> None:
    storage = Storage(CheckpointConfig(object_storage=f"file://{tmp_path}/bucket/run"), tmp_path / "bucket/run")
    before = storage.learner(tmp_path / "run", 8, resume=False)
    damaged = tmp_path / "run" / name
    damaged.write_bytes(damaged.read_bytes()[:-9])
    found = {each.path: each for each in verify(tmp_path / "run")}
    assert found[name].state == "damaged"
    assert found[name].on_resume == "the other copy is used, and both are written again"
    assert storage.learner(tmp_path / "run", 16).run_id == before.run_id
    assert [each.state for each in verify(tmp_path / "run") if each.path.startswith("object_storage")] == ["whole"] * 2
    assert storage.names("claims") == ["00000001.json"]
