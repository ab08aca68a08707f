"""A learner whose run another learner continues from object storage ends, and changes nothing there."""

import json
import re
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import grpc
import pytest
import yaml

from actorq.client import LearnerClient
from actorq.config.sections import CheckpointConfig
from actorq.process import EXIT_USER_ERROR
from learner_service.objectstorage.store import ObjectStore
from learner_service.objectstorage.volume import open_volume
from learner_service.verify import verify
from tests.builders.s3_server import CREDENTIALS
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
            worker.assert_refused(grpc.StatusCode.UNAVAILABLE, "moving")
            code, told = process.end()
        with service_process(*learner) as process:
            assert process.end() == (code, told)
    assert code == EXIT_USER_ERROR
    assert re.search(rf"checkpoint\.object_storage: .*file://{stored};", told)
    assert {path.name: path.read_bytes() for path in (stored / "claims").iterdir()} == claims
    assert json.loads((here / "summary.json").read_text())["state"] == "interrupted"
    assert not (here / "outcome.json").exists()
    assert list((here / "checkpoints").glob("[0-9]*"))


class _LosesAnAnswer(BaseHTTPRequestHandler):
    """An S3 service that stores the first object, and then answers that it is too busy."""

    objects: ClassVar[dict[str, bytes]] = {}

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        code = HTTPStatus.PRECONDITION_FAILED if self.path in self.objects else HTTPStatus.SERVICE_UNAVAILABLE
        self.objects.setdefault(self.path, data)
        self._answer(code, b"")

    def do_GET(self) -> None:
        self._answer(HTTPStatus.OK, self.objects[self.path])

    def _answer(self, code: HTTPStatus, data: bytes) -> None:
        self.send_response(code)
        for header in ("etag", "x"), ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT"), ("content-length", len(data)):
            self.send_header(header[0], str(header[1]))
        self.end_headers()
        self.wfile.write(data)


def test_a_claim_with_a_lost_answer_is_recognized_as_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with ThreadingHTTPServer(("127.0.0.1", 0), _LosesAnAnswer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store = ObjectStore("s3://bucket/run", f"http://127.0.0.1:{server.server_port}")
        assert store.create("claims/00000001.json", b"ours")
        assert not store.create("claims/00000001.json", b"that of another")
        assert not store.create("claims/00000001.json", b"his")
        server.shutdown()


@pytest.mark.parametrize("name", ["object_storage.json", "object_storage.copy.json"])
def test_a_volume_whose_name_is_damaged_in_one_file_keeps_its_run(name: str, tmp_path: Path) -> None:
    storage = Storage(CheckpointConfig(object_storage=f"file://{tmp_path}/bucket/run"), tmp_path / "bucket/run")
    before = storage.learner(tmp_path / "run", 8, resume=False)
    damaged = tmp_path / "run" / name
    damaged.write_bytes(damaged.read_bytes()[:-9])
    found = {each.path: each for each in verify(tmp_path / "run")}
    assert found[name].state == "damaged"
    assert "other copy" in found[name].on_resume
    assert storage.learner(tmp_path / "run", 16).run_id == before.run_id
    assert [each.state for each in verify(tmp_path / "run") if each.path.startswith("object_storage")] == ["whole"] * 2
    assert storage.names("claims") == ["00000001.json"]
