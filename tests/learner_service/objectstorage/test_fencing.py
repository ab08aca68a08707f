"""A learner whose run was continued elsewhere from object storage ends, and changes nothing there."""

import json
from pathlib import Path

import grpc
import pytest
import yaml

from actorq.client import LearnerClient
from actorq.process import EXIT_USER_ERROR
from learner_service.objectstorage.volume import open_volume
from tests.builders.service_process import service_process
from tests.learner_service.learner_parts import config
from tests.learner_service.learner_servers import DEADLINE_S, joined, running_quantizer


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
