import hashlib
import logging
import math
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from actorq.domain.policy import FidelityReport, LayerReport, OutputError, Policy, PolicyDescriptor, RefusedRung
from actorq.errors import ConflictError, InvalidInputError, NotFoundError, UserError
from actorq.statefiles import policies as stored
from actorq.statefiles.documents import read_document, write_document, write_twice
from quantizer_service.store.reader import PolicyReader
from quantizer_service.store.store import PolicyStore
from tests.quantizer_service.policy_graphs import checkpoint, dueling, mlp

SOURCE = mlp(8, 8)


def policy(version: int, scheme: str = "int8", model: bytes = b"model") -> Policy:
    report = FidelityReport(
        32,
        0.1,
        0.2,
        0.01,
        0.02,
        0.75,
        (LayerReport("layers.0", "float32", "first layer"),),
        (OutputError("q_values", (0.1,), (0.2,)),),
        False,
        (RefusedRung((), math.inf, math.inf, None, math.inf, math.inf), RefusedRung(("layers.0",), 0.5, 0.6, 0.7)),
        0.003,
        0.04,
    )
    digest = hashlib.sha256(model).digest()
    return Policy(PolicyDescriptor("run", version, version * 100, scheme, digest, len(model), 1000, 1.5, report), model)


def opened(path: Path, newest: int = 3, best: int = 1, every: int = 0) -> PolicyStore:
    return PolicyStore(path, newest, best, every)


def filled(path: Path, versions: int, every: int = 0) -> PolicyStore:
    store = opened(path, every=every)
    store.claim("run")
    store.add_graph(SOURCE)
    for version in range(1, versions + 1):
        store.add_version(checkpoint(SOURCE, version), [policy(version)])
    return store


def read(path: Path) -> PolicyReader:
    return PolicyReader(path)


def retained(store: PolicyReader) -> list[int]:
    return [entry.version for entry in store.versions()]


def test_everything_comes_back_after_a_restart(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    store.add_policy(policy(1, "fp32", b"another"))
    store.add_evaluation(2, 12.5)
    store.close()

    again = opened(tmp_path)

    assert again.run_id == "run"
    assert dict(again.graphs) == {SOURCE.topology: SOURCE}
    assert again.versions() == store.versions()
    assert (again.newest_version, again.highest_version) == (2, 2)
    assert again.policy(1, "fp32") == policy(1, "fp32", b"another")
    assert again.policy(2, "fp32") is None
    loaded, saved = again.checkpoint(2), checkpoint(SOURCE, 2)
    assert (loaded.learner_step, loaded.topology, loaded.snapshot_at) == (200, SOURCE.topology, saved.snapshot_at)
    for tensors, expected in ((loaded.parameters, saved.parameters), (loaded.calibration, saved.calibration)):
        assert tensors.keys() == expected.keys()
        assert all(np.array_equal(tensors[name], expected[name]) for name in expected)


def test_scalars_come_back_as_scalars(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    parameters = {"log_alpha": np.array(0.5, np.float32), "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T}
    store.add_version(checkpoint(SOURCE, 2, parameters=parameters), [])

    loaded = read(tmp_path).checkpoint(2).parameters

    assert {name: array.shape for name, array in loaded.items()} == {"log_alpha": (), "turned": (3, 2)}
    assert all(np.array_equal(loaded[name], array) for name, array in parameters.items())


def test_files_lie_where_the_documentation_says(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    store.add_evaluation(1, 1.0)

    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        "run.json",
        "high_water.json",
        "run.copy.json",
        "writer.lock",
        f"graphs/{SOURCE.topology.hex()}.onnx",
        f"graphs/{SOURCE.topology.hex()}.json",
        *(f"00000001/checkpoint.{suffix}" for suffix in ("safetensors", "json")),
        *(f"00000001/policy-int8.{suffix}" for suffix in ("onnx", "json")),
        "00000001/evaluation.json",
    }


def test_a_store_holds_one_run(tmp_path: Path) -> None:
    filled(tmp_path, 1)

    with pytest.raises(ConflictError, match="has run 'run'; give this quantizer an empty --store"):
        opened(tmp_path).claim("other")


def test_the_newest_the_best_and_the_last_evaluated_are_kept(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    store.add_evaluation(1, 7.0)
    store.add_evaluation(2, 9.0)
    store.add_evaluation(2, 5.0)
    store.add_evaluation(3, 4.0)
    for version in range(4, 8):
        store.add_version(checkpoint(SOURCE, version), [policy(version)])

    assert retained(store) == retained(read(tmp_path)) == [7, 6, 5, 3, 1]
    assert not (tmp_path / "00000002").exists()
    with pytest.raises(NotFoundError, match="version 2 is not retained; retained versions: 5, newest 7"):
        store.checkpoint(2)


def test_every_nth_version_is_kept_for_good_besides(tmp_path: Path) -> None:
    store = filled(tmp_path, 2, every=4)
    store.add_evaluation(2, 9.0)
    for version in range(3, 16):
        store.add_version(checkpoint(SOURCE, version), [policy(version)])

    assert retained(store) == retained(read(tmp_path)) == [15, 14, 13, 12, 8, 4, 2]


def test_the_next_version_stands_for_an_nth_that_never_came(tmp_path: Path) -> None:
    store = filled(tmp_path, 3, every=4)
    for version in (5, 6, 7, 8, 9, 14, 15, 20, 21, 22, 23):
        store.add_version(checkpoint(SOURCE, version), [policy(version)])

    assert retained(store) == [23, 22, 21, 20, 14, 8, 5]


def test_versions_that_were_kept_for_good_stay_until_the_next_retention_under_other_settings(tmp_path: Path) -> None:
    filled(tmp_path, 9, every=2).close()
    store = opened(tmp_path, every=3)
    assert retained(store) == [9, 8, 7, 6, 4, 2]

    store.add_version(checkpoint(SOURCE, 10), [policy(10)])

    assert retained(store) == [10, 9, 8, 6, 4]


def test_graphs_that_no_retained_version_has_are_dropped_but_for_the_newest(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    others = [mlp(8, width) for width in range(20, 34)]
    for graph in others:
        store.add_graph(graph)

    expected = {SOURCE.topology, *(graph.topology for graph in others[-8:])}
    assert set(store.graphs) == expected
    store.close()
    assert set(opened(tmp_path).graphs) == expected
    assert len(list((tmp_path / "graphs").iterdir())) == 2 * len(expected)


def test_a_graph_stays_while_a_retained_version_has_it(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    for graph in [mlp(8, width) for width in range(20, 29)]:
        store.add_graph(graph)
    store.add_graph(dueling())
    for version in range(2, 5):
        assert SOURCE.topology in store.graphs
        store.add_version(checkpoint(dueling(), version), [])

    assert retained(store) == [4, 3, 2]
    store.add_graph(mlp(8, 40))
    assert SOURCE.topology not in store.graphs
    assert dueling().topology in store.graphs


@pytest.mark.parametrize("written", [{}, {"format": 1}, {"format": 4}, {"format": "3"}])
def test_a_store_of_another_format_is_refused_in_one_line(tmp_path: Path, written: dict[str, object]) -> None:
    filled(tmp_path, 2).close()
    write_twice(tmp_path / "run.json", {"run_id": "run", **written})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    for attempt in (opened, read):
        with pytest.raises(UserError, match=r"has format .* of another version .*; this version .* empty folder"):
            attempt(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("field", ["topology", "fidelity", "sha256"])
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


def test_a_descriptor_of_before_divergences_were_measured_is_read(tmp_path: Path) -> None:
    filled(tmp_path, 1).close()
    path = tmp_path / "00000001" / "policy-int8.json"
    tree = read_document(path)
    for report in (tree["fidelity"], *tree["fidelity"]["refused"]):
        del report["mean_kl"], report["max_kl"]
    write_document(path, tree)

    found = stored.read_descriptor(path.parent, "int8").fidelity

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
    # Its number is taken all the same.
    assert (store.newest_version, store.highest_version) == (2, 3)
    assert str(damaged) in caplog.text
    for version in range(4, 9):
        store.add_version(checkpoint(SOURCE, version), [policy(version)])
    assert damaged.exists()


def test_a_damaged_version_tells_which_file_is_damaged_and_what_to_do(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    damaged = tmp_path / "00000001" / "policy-int8.onnx"
    damaged.write_bytes(b"other")
    store = opened(tmp_path)

    with pytest.raises(InvalidInputError, match=f"{damaged}: expected sha256 .* remove its folder"):
        store.policy(1, "int8")
    assert damaged.read_bytes() == b"other"


def test_a_damaged_evaluation_does_not_cost_its_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 1).add_evaluation(1, 5.0)
    (tmp_path / "00000001" / "evaluation.json").write_text("{")

    with caplog.at_level(logging.WARNING):
        store = opened(tmp_path)

    assert [(entry.version, entry.mean_return) for entry in store.versions()] == [(1, None)]
    assert "evaluation skipped" in caplog.text


def test_versions_of_a_damaged_graph_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = filled(tmp_path, 1)
    store.add_graph(dueling())
    store.add_version(checkpoint(dueling(), 2), [])
    store.close()
    (tmp_path / "graphs" / f"{SOURCE.topology.hex()}.onnx").write_bytes(b"")

    with caplog.at_level(logging.WARNING):
        store = opened(tmp_path)

    assert retained(store) == [2]
    assert "graph skipped" in caplog.text


def test_a_file_that_is_damaged_later_is_refused_with_both_digests(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    folder = tmp_path / "00000001"
    (folder / "policy-int8.onnx").write_bytes(b"other")
    (folder / "checkpoint.safetensors").write_bytes(b"other")

    for read in (lambda: store.policy(1, "int8"), lambda: store.checkpoint(1)):
        with pytest.raises(InvalidInputError, match=r"00000001/.*: expected sha256 \w{64}, got \w{64}; .*remove"):
            read()


def test_what_was_left_unfinished_is_removed(tmp_path: Path) -> None:
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


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "lost+found").mkdir()

    assert retained(opened(tmp_path)) == [1]
    assert (tmp_path / "notes.txt").exists()


def test_a_folder_that_cannot_be_used_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UserError, match="--store: cannot write to"):
        opened(tmp_path / "file")


@pytest.mark.parametrize("name", ["run.json", "run.copy.json"])
@pytest.mark.parametrize("text", ["", "[]", '{"run_id": "run", "format": 3}'])
def test_a_damaged_run_file_has_a_copy_and_is_written_again(tmp_path: Path, name: str, text: str) -> None:
    filled(tmp_path, 1).close()
    (tmp_path / name).write_text(text)

    assert read(tmp_path).run_id == "run"
    store = opened(tmp_path)
    assert (store.run_id, retained(store)) == ("run", [1])
    assert read_document(tmp_path / name) == {"run_id": "run", "format": 3}


def test_a_damaged_run_file_without_a_whole_copy_stops_the_start_in_one_line(tmp_path: Path) -> None:
    filled(tmp_path, 1).close()
    for name in ("run.json", "run.copy.json"):
        (tmp_path / name).write_text("")

    with pytest.raises(UserError, match=r"run.json is damaged: .* no copy of it is whole; give an empty folder"):
        opened(tmp_path)


def test_a_store_has_one_writer_at_a_time(tmp_path: Path) -> None:
    first = filled(tmp_path, 1)

    with pytest.raises(UserError, match=r"another quantizer writes to .*; stop it, .* or add --read-only"):
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
    assert reader.policy(2, "int8") == policy(2)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_version_that_the_writer_removes_is_gone_for_the_reader_and_not_damaged(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    reader = read(tmp_path)
    store.add_version(checkpoint(SOURCE, 4), [policy(4)])

    for attempt in (lambda: reader.policy(1, "int8"), lambda: reader.checkpoint(1)):
        with pytest.raises(NotFoundError, match="version 1 is no longer retained"):
            attempt()
    assert reader.policy(3, "int8") == policy(3)


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


def test_a_reader_may_open_and_read_at_any_moment_while_a_writer_goes_on(tmp_path: Path) -> None:
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
                reader.policy(version, "int8")
    writer.join()
    assert opens


def test_a_folder_that_cannot_be_read_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--store: cannot read .*absent \(No such file or directory\)"):
        read(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
