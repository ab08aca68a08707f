"""The joint table measures the policies that runs left, row by row."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from actorq.domain.policy import Policy
from actorq.rundirectory import RunDirectory
from actorq.statefiles.documents import write_document
from benchmarks.policies import as_policy, checkpoint_of, emit, vector_network
from benchmarks.training.joint import bounds, last_policy, shown, table
from benchmarks.training.rlx2_tasks import TASKS
from quantizer_service.serving.policy_stream import policy_messages
from quantizer_service.store.store import PolicyStore


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Two seeds with fp32 actors and one with int8 actors, of untrained policies."""
    directory = tmp_path_factory.mktemp("runs")
    rows = [("fp32", 1, 10.0), ("fp32", 2, 30.0), ("int8", 1, 15.0)]
    return [_run(directory / f"{scheme}-{seed}", scheme, seed, settled) for scheme, seed, settled in rows]


def test_the_policy_is_that_of_the_last_evaluation(runs: list[dict[str, Any]]) -> None:
    policy, observations = last_policy(Path(runs[2]["directory"]))
    assert (policy.descriptor.version, policy.descriptor.scheme) == (1, "int8")
    assert observations.shape == (256, 24)


def test_a_row_is_the_mean_over_its_seeds(runs: list[dict[str, Any]]) -> None:
    figures = table(runs, repeats=1)
    assert list(figures) == ["dense/fp32", "dense/int8"]
    fp32, int8 = figures["dense/fp32"], figures["dense/int8"]
    assert (fp32["return"], fp32["returns"], int8["return"]) == (20.0, [10.0, 30.0], 15.0)
    assert fp32["training_flops"] == 1500
    assert fp32["inference_flops"] == 7
    assert (fp32["schemes"], int8["schemes"]) == (["fp32"], ["int8"])
    policies = [last_policy(Path(run["directory"]))[0] for run in runs]
    assert fp32["bytes"] == sum(map(len, policy_messages(policies[0])))
    assert int8["bytes"] < fp32["bytes"] / 2
    assert all(row["us"][batch] > 0 for row in figures.values() for batch in (1, 32))
    lines = shown(TASKS[0], figures).splitlines()
    assert len(lines) == 3
    assert "dense/int8 (int8): return 15.0" in lines[2]


def test_a_narrower_policy_is_held_against_dense_fp32() -> None:
    figures = {"dense/fp32": _row(60.0), "rlx2/int8": _row(30.0)}
    assert bounds(TASKS[0], figures) == []
    [target] = bounds(TASKS[0], {**figures, "structured/int8": _row(15.0)})
    assert (target.measured, target.met) == (4.0, True)


@pytest.mark.parametrize(
    ("us", "size", "met"), [(9.0, 60, [True, True]), (11.0, 60, [True, False]), (9.0, 90, [False, True])]
)
def test_int8_is_held_against_fp32_of_the_same_sparse_network(us: float, size: int, met: list[bool]) -> None:
    figures = {"rlx2/fp32": _row(10.0, 100), "rlx2/int8": _row(us, size)}
    assert [target.met for target in bounds(TASKS[0], figures)] == met


def test_rows_of_one_seed_give_no_verdict() -> None:
    figures = {"rlx2/fp32": _row(10.0, 100), "rlx2/int8": _row(5.0, 10, seeds=1)}
    assert {target.refused for target in bounds(TASKS[0], figures)} == {"one seed gives no verdict"}


def _row(us: float, size: int = 1, seeds: int = 2) -> dict[str, Any]:
    return {"us": {32: us}, "bytes": size, "returns": [1.0] * seeds}


def _run(directory: Path, scheme: str, seed: int, settled: float) -> dict[str, Any]:
    """A run's folder with one version, and what benchmarks.training.rlx2_tasks.run_task tells of it."""
    run = RunDirectory(directory)
    network = vector_network("mlp", 64, seed)
    graph, checkpoint = checkpoint_of(network)
    policy = as_policy(graph, checkpoint, scheme, emit(graph, checkpoint, scheme))
    store = PolicyStore(run.policies, retain_newest=1, retain_best=1)
    store.claim("benchmark")
    store.add_graph(graph)
    store.add_version(checkpoint, [_signed(policy)])
    store.close()
    write_document(run.summary, {"evaluation": {"policy_version": 1, "scheme": scheme}})
    flops = {"training": 1000 * seed, "action": {"flops": 7}}
    return {"method": "dense", "scheme": scheme, "settled": settled, "directory": str(directory), "flops": flops}


def _signed(policy: Policy) -> Policy:
    """With the digest that the store checks."""
    return replace(policy, descriptor=replace(policy.descriptor, sha256=sha256(policy.model).digest()))
