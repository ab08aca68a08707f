"""A damaged file loses at most its version, and the store names the file."""

import logging
from pathlib import Path

import pytest

from actorq.domain.contract import CONTRACT
from actorq.domain.policy import Variant
from actorq.errors import InvalidInputError, UserError
from actorq.statefiles import policies as stored
from actorq.statefiles.documents import read_document, write_document, write_twice
from tests.quantizer_service.policy_graphs import dueling
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.store.filled_stores import SOURCE, filled, opened, policy, read, retained


@pytest.mark.parametrize("written", [{}, {"format": 1}, {"format": 5}, {"format": "3"}])
def test_a_store_of_another_format_is_refused_in_one_line(tmp_path: Path, written: dict[str, object]) -> None:
    filled(tmp_path, 2).close()
    write_twice(tmp_path / "run.json", {"run_id": "run", **written})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    for attempt in (opened, read):
        with pytest.raises(UserError, match=f"{tmp_path}.*format.*another version"):
            attempt(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_store_of_a_later_contract_is_refused_in_one_line(tmp_path: Path) -> None:
    filled(tmp_path, 1).close()
    write_twice(tmp_path / "run.json", {"run_id": "run", "format": 4, "contract": CONTRACT + 1})

    for attempt in (opened, read):
        with pytest.raises(UserError, match=f"contract {CONTRACT + 1} .* up to {CONTRACT}"):
            attempt(tmp_path)


@pytest.mark.parametrize("field", ["graph_digest", "fidelity", "sha256"])
def test_a_descriptor_that_lacks_a_field_is_damaged_and_says_so_in_one_line(tmp_path: Path, field: str) -> None:
    filled(tmp_path, 1).close()
    path = tmp_path / "00000001" / "policy-int8.json"
    tree = read_document(path)
    del tree[field]
    write_document(path, tree)

    told = read(tmp_path).damaged[1]

    assert str(path) in told
    assert field in told
    assert "\n" not in told


def test_a_descriptor_without_divergences_is_read(tmp_path: Path) -> None:
    filled(tmp_path, 1).close()
    path = tmp_path / "00000001" / "policy-int8.json"
    tree = read_document(path)
    for report in (tree["fidelity"], *tree["fidelity"]["refused"]):
        del report["mean_kl"], report["max_kl"]
    write_document(path, tree)

    found = stored.read_descriptor(path.parent, Variant("int8")).fidelity

    assert (found.mean_kl, found.max_kl, found.refused[0].mean_kl) == (None, None, None)
    assert found.argmax_agreement == 0.75
    assert retained(read(tmp_path)) == [1]


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "checkpoint.json", "policy-int8.onnx"])
def test_a_damaged_version_is_skipped_with_a_warning_but_not_removed(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, 3)
    damaged = tmp_path / "00000003" / name
    damaged.write_bytes(damaged.read_bytes()[:-1])

    with caplog.at_level(logging.WARNING):
        store = opened(tmp_path)

    assert retained(store) == [2, 1]
    # Its number is still used.
    assert (store.versions()[0].version, store.highest_version) == (2, 3)
    assert str(damaged) in caplog.text
    for version in range(4, 9):
        store.add_version(checkpoint(SOURCE, version), [policy(version)])
    assert damaged.exists()


def test_the_error_of_a_damaged_version_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    damaged = tmp_path / "00000001" / "policy-int8.onnx"
    damaged.write_bytes(b"other")
    store = opened(tmp_path)

    with pytest.raises(InvalidInputError, match=f"{damaged}: .*sha256 "):
        store.policy(1, Variant("int8"))
    assert damaged.read_bytes() == b"other"


def test_a_version_with_a_damaged_evaluation_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 1).add_evaluation(1, 5.0)
    (tmp_path / "00000001" / "evaluation.json").write_text("{")

    with caplog.at_level(logging.WARNING):
        store = opened(tmp_path)

    assert [(entry.version, entry.mean_return) for entry in store.versions()] == [(1, None)]
    assert "evaluation.json" in caplog.text


def test_versions_of_a_damaged_graph_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = filled(tmp_path, 1)
    store.add_graph(dueling())
    store.add_version(checkpoint(dueling(), 2), [])
    store.close()
    (tmp_path / "graphs" / f"{SOURCE.digest.hex()}.onnx").write_bytes(b"")

    with caplog.at_level(logging.WARNING):
        store = opened(tmp_path)

    assert retained(store) == [2]
    assert f"{SOURCE.digest.hex()}.onnx" in caplog.text


def test_a_file_that_is_damaged_later_is_refused_with_both_digests(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    folder = tmp_path / "00000001"
    (folder / "policy-int8.onnx").write_bytes(b"other")
    (folder / "checkpoint.safetensors").write_bytes(b"other")

    for attempt in (lambda: store.policy(1, Variant("int8")), lambda: store.checkpoint(1)):
        with pytest.raises(InvalidInputError, match=r"00000001/.*: .*\w{64}, .*\w{64}"):
            attempt()


def test_unfinished_files_are_removed(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    unfinished = [tmp_path / ".00000002.partial", tmp_path / ".00000009.removed"]
    for folder in unfinished:
        folder.mkdir()
        (folder / "checkpoint.safetensors").write_bytes(b"half")
    unfinished += [tmp_path / "00000001" / ".policy-fp32.onnx.partial", tmp_path / "graphs" / ".x.onnx.partial"]
    for path in unfinished[2:]:
        path.write_bytes(b"half")

    store = opened(tmp_path)

    assert not any(path.exists() for path in unfinished)
    assert retained(store) == [1]


def test_foreign_files_are_not_changed(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "lost+found").mkdir()

    assert retained(opened(tmp_path)) == [1]
    assert (tmp_path / "notes.txt").exists()


def test_a_folder_that_cannot_be_written_is_a_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UserError, match=f"--store: .*{tmp_path / 'file'}"):
        opened(tmp_path / "file")


@pytest.mark.parametrize("name", ["run.json", "run.copy.json"])
@pytest.mark.parametrize("text", ["", "[]", '{"run_id": "run", "format": 4}'])
def test_a_damaged_run_file_has_a_copy_and_is_written_again(tmp_path: Path, name: str, text: str) -> None:
    filled(tmp_path, 1).close()
    (tmp_path / name).write_text(text)

    assert read(tmp_path).run_id == "run"
    store = opened(tmp_path)
    assert (store.run_id, retained(store)) == ("run", [1])
    assert read_document(tmp_path / name) == {"run_id": "run", "format": 4, "contract": CONTRACT, "owner": [0, 0, []]}


def test_a_damaged_run_file_without_a_whole_copy_stops_the_start_in_one_line(tmp_path: Path) -> None:
    filled(tmp_path, 1).close()
    for name in ("run.json", "run.copy.json"):
        (tmp_path / name).write_text("")

    with pytest.raises(UserError, match=r"run\.json .*damaged"):
        opened(tmp_path)
