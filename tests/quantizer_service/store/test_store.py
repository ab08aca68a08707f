"""A store keeps its content over restarts, within the limits of its settings."""

import errno
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from actorq.domain.policy import Variant
from actorq.errors import ConflictError, NotFoundError, UnavailableError
from tests.quantizer_service.policy_graphs import dueling, mlp
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.store.filled_stores import SOURCE, filled, opened, policy, read, retained


def test_a_restart_restores_everything(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    store.add_policy(policy(1, "fp32", b"another"))
    store.add_evaluation(2, 12.5)
    store.close()

    again = opened(tmp_path)

    assert again.run_id == "run"
    assert dict(again.graphs) == {SOURCE.digest: SOURCE}
    assert again.versions() == store.versions()
    assert (again.versions()[0].version, again.highest_version) == (2, 2)
    assert again.policy(1, Variant("fp32")) == policy(1, "fp32", b"another")
    assert again.policy(2, Variant("fp32")) is None
    loaded, saved = again.checkpoint(2), checkpoint(SOURCE, 2)
    assert (loaded.learner_step, loaded.graph_digest, loaded.snapshot_at) == (
        200,
        SOURCE.digest,
        saved.snapshot_at,
    )
    for tensors, expected in ((loaded.parameters, saved.parameters), (loaded.calibration, saved.calibration)):
        assert tensors.keys() == expected.keys()
        assert all(np.array_equal(tensors[name], expected[name]) for name in expected)


def test_scalars_are_restored_as_scalars(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    parameters = {"log_alpha": np.array(0.5, np.float32), "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T}
    store.add_version(checkpoint(SOURCE, 2, parameters=parameters), [])

    loaded = read(tmp_path).checkpoint(2).parameters

    assert {name: array.shape for name, array in loaded.items()} == {"log_alpha": (), "turned": (3, 2)}
    assert all(np.array_equal(loaded[name], array) for name, array in parameters.items())


def test_files_have_the_documented_paths(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    store.add_evaluation(1, 1.0)

    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        "run.json",
        "high_water.json",
        "run.copy.json",
        "writer.lock",
        f"graphs/{SOURCE.digest.hex()}.onnx",
        f"graphs/{SOURCE.digest.hex()}.json",
        *(f"00000001/checkpoint.{suffix}" for suffix in ("safetensors", "json")),
        *(f"00000001/policy-int8.{suffix}" for suffix in ("onnx", "json")),
        "00000001/evaluation.json",
    }


def test_a_store_holds_one_run(tmp_path: Path) -> None:
    filled(tmp_path, 1)

    with pytest.raises(ConflictError, match=r"'run'.*--store"):
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
    with pytest.raises(NotFoundError, match=r"version 2 .* 5, newest 7"):
        store.checkpoint(2)


def test_a_removed_folder_does_not_stop_retention(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    shutil.rmtree(tmp_path / "00000001")
    for version in range(4, 12):
        store.add_version(checkpoint(SOURCE, version), [policy(version)])

    assert retained(store) == retained(read(tmp_path)) == [11, 10, 9]


def test_a_version_that_does_not_fit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, 1)
    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(UnavailableError, match="No space left on device"):
            store.add_version(checkpoint(SOURCE, 2), [policy(2)])
    assert not list(tmp_path.glob(".*.partial"))
    store.add_version(checkpoint(SOURCE, 2), [policy(2)])
    assert retained(store) == [2, 1]


def test_every_nth_version_is_also_kept_permanently(tmp_path: Path) -> None:
    store = filled(tmp_path, 2, every=4)
    store.add_evaluation(2, 9.0)
    for version in range(3, 16):
        store.add_version(checkpoint(SOURCE, version), [policy(version)])

    assert retained(store) == retained(read(tmp_path)) == [15, 14, 13, 12, 8, 4, 2]


def test_the_next_version_replaces_a_missing_nth_version(tmp_path: Path) -> None:
    store = filled(tmp_path, 3, every=4)
    for version in (5, 6, 7, 8, 9, 14, 15, 20, 21, 22, 23):
        store.add_version(checkpoint(SOURCE, version), [policy(version)])

    assert retained(store) == [23, 22, 21, 20, 14, 8, 5]


def test_permanently_kept_versions_stay_until_the_first_retention_with_other_settings(tmp_path: Path) -> None:
    filled(tmp_path, 9, every=2).close()
    store = opened(tmp_path, every=3)
    assert retained(store) == [9, 8, 7, 6, 4, 2]

    store.add_version(checkpoint(SOURCE, 10), [policy(10)])

    assert retained(store) == [10, 9, 8, 6, 4]


def test_unused_graphs_are_dropped_except_the_newest(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    others = [mlp(8, width) for width in range(20, 34)]
    for graph in others:
        store.add_graph(graph)

    expected = {SOURCE.digest, *(graph.digest for graph in others[-8:])}
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
        assert SOURCE.digest in store.graphs
        store.add_version(checkpoint(dueling(), version), [])

    assert retained(store) == [4, 3, 2]
    store.add_graph(mlp(8, 40))
    assert SOURCE.digest not in store.graphs
    assert dueling().digest in store.graphs
