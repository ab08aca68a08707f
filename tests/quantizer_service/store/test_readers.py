"""A store has one writer, and readers that see only whole versions."""

import hashlib
import logging
import threading
from contextlib import suppress
from pathlib import Path

import onnx
import pytest

from actorq.domain.policy import Variant
from actorq.errors import NotFoundError, UserError
from actorq.statefiles import policies as stored
from actorq.statefiles.documents import write_document, write_twice
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.store.filled_stores import SOURCE, filled, opened, policy, read, retained


def test_a_store_has_one_writer_at_a_time(tmp_path: Path) -> None:
    first = filled(tmp_path, 1)

    with pytest.raises(UserError, match=f"another quantizer .*{tmp_path}.*--read-only"):
        opened(tmp_path)

    first.close()
    assert retained(opened(tmp_path)) == [1]


def test_a_refused_second_writer_does_not_disturb_the_first(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    partial = tmp_path / ".00000002.partial"
    partial.mkdir()

    with pytest.raises(UserError):
        opened(tmp_path)

    assert partial.exists()
    store.add_evaluation(1, 5.0)


def test_a_reader_beside_the_writer_sees_the_same_and_changes_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    (tmp_path / ".00000004.partial").mkdir()
    before = sorted(tmp_path.rglob("*"))

    reader = read(tmp_path)

    assert (reader.run_id, reader.versions(), reader.highest_version) == ("run", store.versions(), 3)
    assert reader.policy(2, Variant("int8")) == policy(2)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_version_that_the_writer_removes_is_not_found_rather_than_damaged(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    reader = read(tmp_path)
    store.add_version(checkpoint(SOURCE, 4), [policy(4)])

    for attempt in (lambda: reader.policy(1, Variant("int8")), lambda: reader.checkpoint(1)):
        with pytest.raises(NotFoundError, match="version 1 "):
            attempt()
    assert reader.policy(3, Variant("int8")) == policy(3)


def test_a_version_that_the_writer_removes_while_the_store_is_opened_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path, 3)
    read_verified = stored.read_verified

    def retain_before_tensors_of_version_1(path: Path, sha256: bytes) -> bytes:
        if path.parent.name == "00000001":
            store.add_version(checkpoint(SOURCE, 4), [policy(4)])
        return read_verified(path, sha256)

    monkeypatch.setattr(stored, "read_verified", retain_before_tensors_of_version_1)
    with caplog.at_level(logging.WARNING):
        reader = read(tmp_path)

    assert (retained(reader), dict(reader.damaged), caplog.text) == ([3, 2], {}, "")


def test_a_reader_may_open_and_read_at_any_moment_while_a_writer_writes(tmp_path: Path) -> None:
    store = opened(tmp_path, newest=1, best=0)
    store.claim("run")
    store.add_graph(SOURCE)
    store.add_version(checkpoint(SOURCE, 1), [policy(1)])
    opens = 0

    def write() -> None:
        for version in range(2, 200):
            store.add_version(checkpoint(SOURCE, version), [policy(version)])

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        reader = read(tmp_path)
        opens += 1
        assert not reader.damaged
        for version in retained(reader):
            with suppress(NotFoundError):
                reader.checkpoint(version)
                reader.policy(version, Variant("int8"))
    writer.join()
    assert opens


def test_a_folder_that_cannot_be_read_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"--store: .*{tmp_path / 'absent'} .*No such file or directory"):
        read(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_a_store_without_signatures_derives_roles_from_names(tmp_path: Path) -> None:
    filled(tmp_path, 1).close()
    bare = onnx.ModelProto.FromString(SOURCE.model)
    del bare.metadata_props[:]
    model = bare.SerializeToString()
    for file in (tmp_path / "graphs").iterdir():
        file.unlink()
    path = tmp_path / "graphs" / hashlib.sha256(model).hexdigest()
    path.with_suffix(".onnx").write_bytes(model)
    fields = {"inputs": ["observation"], "discrete_actions": True, "action_spans": []}
    write_document(path.with_suffix(".json"), fields)
    write_twice(tmp_path / "run.json", {"run_id": "run", "format": 3})

    (graph,) = read(tmp_path).graphs.values()
    assert graph.signature == SOURCE.signature
