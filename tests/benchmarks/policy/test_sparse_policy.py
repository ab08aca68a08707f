"""The benchmark of sparse policies compares forms that hold the same bytes, and states its targets."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.policy.figures import Bytes, Calls
from benchmarks.policy.inference_timing import Timing
from benchmarks.policy.sparse_policy import DenseCost, emitted, targets, widths
from benchmarks.policy.sparse_policy_bytes import forms, mask_once, milliseconds, sizes, values_only
from benchmarks.policy.sparse_policy_networks import Task, versions
from benchmarks.policy.sparse_policy_plot import plot


def sparse(size: int = 4096, density: float = 0.1, seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    return bytes((rng.integers(1, 256, size) * (rng.random(size) < density)).astype(np.uint8))


def test_every_form_that_is_timed_gives_back_what_was_written() -> None:
    data, ways = sparse(), forms()
    for form in ways.values():
        if form.read is not None:
            assert form.read(form.write(data), len(data)) == data
    found = sizes(data, ways)
    assert found["plain"] == len(data)
    assert found["packed"] < found["zlib 6"] < len(data)
    # Starts of rows, then a column and a value for each byte that is not 0.
    assert found["CSR"] == 4 * len(data) // 256 + 2 * np.count_nonzero(np.frombuffer(data, np.uint8))
    assert milliseconds(data, ways, 1).keys() == {name for name, form in ways.items() if form.read is not None}


def test_a_mask_that_is_remembered_costs_nothing_until_a_version_has_a_byte_beside_it() -> None:
    data = sparse()
    first = np.frombuffer(data, np.uint8)
    fewer, more = first.copy(), first.copy()
    fewer[np.flatnonzero(first)[:5]] = 0
    more[np.flatnonzero(first == 0)[:5]] = 9
    packed = forms()["packed"]

    assert mask_once([data, data]) == values_only(data)
    assert mask_once([data, bytes(fewer)]) < len(packed.write(bytes(fewer)))
    assert mask_once([data, bytes(more)]) == len(packed.write(bytes(more)))
    # From then on the receiver expects both.
    assert mask_once([data, bytes(more), data]) < mask_once([data, bytes(more), bytes(more) + b"\1"])


@pytest.mark.parametrize(("masks", "narrow"), [("random", False), ("structured", True)])
def test_policies_have_the_sparsity_that_was_asked_for(
    masks: str, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.policy.sparse_policy_networks._UPDATES", 60)
    monkeypatch.setattr("benchmarks.policy.sparse_policy_networks._PERIOD", 6)
    task = Task("small", 9, 4, 0.9)

    graph, checkpoints = versions(task, masks, count=2)
    found = emitted(graph, checkpoints)

    matrices = [array for array in checkpoints[1].parameters.values() if array.ndim == 2]
    density = sum(map(np.count_nonzero, matrices)) / sum(array.size for array in matrices)
    assert density == pytest.approx(0.1, rel=0.1)
    assert [each["int8"].descriptor.version for each in found] == [1, 2]
    assert "int8, ends too" in found[0]
    assert (max(widths(found[1]["fp32"])) < 200) == narrow


def bytes_of(task: str, masks: str, watched: int, fp32: int = 60) -> Bytes:
    return Bytes(task, masks, 0.9, (9, 9), 1000, {"fp32": fp32, "int8-weights": watched}, {}, 1, 1, 1, {})


def calls_of(masks: str, sparsity: float, batch: int, **microseconds: float) -> Calls:
    return Calls(
        masks, sparsity, batch, (9, 9), {name: Timing(value, value, value) for name, value in microseconds.items()}
    )


def test_targets_are_of_trained_masks_and_of_structured_ones_at_the_larger_batch() -> None:
    found = [bytes_of("Ant", "random", 100), bytes_of("Ant", "trained", 20)]
    calls = [
        calls_of("dense", 0.0, 1, fp32=9, int8=5),
        calls_of("dense", 0.0, 32, fp32=40, int8=20),
        calls_of("structured", 0.9, 1, fp32=2, int8=5),
        calls_of("structured", 0.9, 32, fp32=8, int8=10),
    ]

    stated = targets(found, calls, [DenseCost(64, 1.0, 0.03)])

    assert [(target.measured, target.bound, target.met) for target in stated] == [
        (50.0, 40.0, True),
        (3.0, 1.9, True),
        (4.0, 3.0, True),
        # Of what it gains over dense fp32, int8 has no part here.
        (0.8, 1.1, False),
        (3.0, 2.0, False),
    ]
    assert "(int8)" in stated[2].name


def test_a_sparse_network_whose_bytes_int8_does_not_reduce_misses_a_target() -> None:
    total, own = targets([bytes_of("Ant", "trained", watched=20, fp32=21)], [], [])
    assert (total.met, own.met) == (True, False)


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    calls = [calls_of(masks, 0.9, batch, fp32=4.0, int8=2.0) for masks in ("dense", "structured") for batch in (1, 32)]
    found = [bytes_of("Ant", "trained", 20), bytes_of("Hopper", "random", 30)]
    plot(found, calls, {"Ant": 40.0, "Hopper": 40.0}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
