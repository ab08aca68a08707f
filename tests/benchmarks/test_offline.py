"""The benchmark of stored data: its recordings, and its targets."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import ONE_SEED
from benchmarks.training.offline import recording, same_updates
from benchmarks.training.offline.targets import (
    ALGORITHMS,
    D3RLPY,
    DENSE,
    MEANINGS,
    NORMALIZED,
    SCHEMES,
    WITH,
    WITHOUT,
    targets,
)
from benchmarks.training.offline.tasks import MIXES, TASKS

SEEDS = (1, 2, 3, 4, 5)
PENDULUM = next(task for task in TASKS if task.name == "pendulum")


def _online(steps: dict[str, float], **changed: Any) -> list[dict[str, Any]]:
    return [
        {"task": "pendulum", "side": side, "seed": seed, "solved": True, "environment_steps": count, **changed}
        for side, count in steps.items()
        for seed in SEEDS
    ]


def _offline(ours: dict[str, float], theirs: float, speed: float = 100.0, seeds: Any = SEEDS) -> list[dict[str, Any]]:
    runs = []
    for seed in seeds:
        for mix in MIXES:
            for algorithm in ALGORITHMS:
                own = {"task": "pendulum", "mix": mix, "seed": seed}
                returns = {scheme: ours[scheme] + seed for scheme in SCHEMES}
                runs.append({**own, "side": f"{algorithm} {DENSE}", "returns": returns, "updates_per_s": speed})
                peer = {"returns": {"fp32": theirs + seed}, "updates_per_s": 100.0}
                runs.append({**own, "side": f"{algorithm} {D3RLPY}", **peer})
    return runs


def _targets(runs: list[dict[str, Any]]) -> list[Any]:
    return targets({"runs": runs, "random": {"pendulum": -1_200.0}})


def test_recordings_must_halve_the_median_steps() -> None:
    for with_them, met in ((400.0, True), (600.0, False)):
        steps, reached = _targets(_online({WITH: with_them, WITHOUT: 1_000.0}))
        assert (steps.measured, steps.met) == (with_them / 1_000.0, met)
        assert reached.met
    assert not _targets(_online({WITH: 1.0, WITHOUT: 2.0}, solved=False))[1].met
    # A run without recordings counts with all its steps.
    runs = [run | {"solved": run["side"] == WITH} for run in _online({WITH: 1.0, WITHOUT: 2.0})]
    assert all(target.met for target in _targets(runs))
    # The third side shows what the critics of the method do alone.
    of_all = _targets(_online({WITH: 400.0, WITHOUT: 1_000.0, NORMALIZED: 500.0}))
    assert [target.measured for target in of_all[:2]] == [0.4, 0.8]
    assert [target.met for target in of_all] == [True, False, True]
    for target in of_all:
        assert any(re.fullmatch(meaning.pattern, target.name) for meaning in MEANINGS), target.name
    assert {target.refused for target in _targets(_online({WITH: 1.0, WITHOUT: 2.0}, seed=1))} == {ONE_SEED}


def test_the_interval_of_the_difference_is_relative_to_the_gain_over_random_actions() -> None:
    # The peer gains 1,000 over random actions, so -5% are 50.
    runs = _offline({"int8": -300.0, "fp32": -210.0}, -203.0)
    found = {target.name: target for target in _targets(runs) if "difference" in target.name}
    assert len(found) == len(MIXES) * len(ALGORITHMS) * len(SCHEMES)
    for name, target in found.items():
        assert target.met == (" fp32:" in name), name
    fp32 = found["pendulum medium iql fp32: lower end of the difference to d3rlpy"]
    assert -0.05 < fp32.measured < -0.007


def test_a_peer_that_learns_nothing_gives_no_verdict() -> None:
    found = _targets(_offline({"int8": 0.0, "fp32": 0.0}, -1_300.0))
    assert all("no better than random" in target.refused for target in found if "difference" in target.name)


def test_updates_per_second_are_compared_over_both_data_sets() -> None:
    speeds = [
        target for target in _targets(_offline({"int8": 0.0, "fp32": 0.0}, 0.0, 80.0)) if "updates" in target.name
    ]
    assert [(target.measured, target.met) for target in speeds] == [(0.8, False)] * len(ALGORITHMS)


def test_one_seed_gives_no_verdict_on_returns() -> None:
    found = _targets(_offline({"int8": 0.0, "fp32": 0.0}, 0.0, seeds=(1,)))
    assert {target.refused for target in found if "difference" in target.name} == {ONE_SEED}


def test_each_target_has_an_explanation() -> None:
    runs = [*_online({WITH: 1.0, WITHOUT: 2.0}), *_offline({"int8": 0.0, "fp32": 0.0}, 0.0)]
    for target in _targets(runs):
        assert any(re.fullmatch(meaning.pattern, target.name) for meaning in MEANINGS), target.name


def _peer(file: Path, asked: dict[str, Any], shift: float) -> None:
    """Weights of networks as d3rlpy's. The second half of them differs from the first by `shift`."""
    rng, sizes = np.random.default_rng(0), {"L0": (256, 3), "L2": (256, 256), "last": (1, 256)}
    weights = {}
    for network in ("policy", "q_funcs.0", "q_funcs.1", "value_func"):
        last = "_mu" if network == "policy" and asked["algorithm"] == "iql" else "_fc"
        for layer, (units, inputs) in sizes.items():
            name = last if layer == "last" else f"_encoder._layers.{layer[1]}"
            inputs += network.startswith("q_funcs") and layer == "L0"
            weights[f"{network}.{name}.weight"] = rng.normal(scale=0.1, size=(units, inputs)).astype(np.float32)
            weights[f"{network}.{name}.bias"] = np.zeros(units, np.float32)
    after = {f"after.{name}": values + np.float32(shift) for name, values in weights.items()}
    np.savez(file, allow_pickle=False, **{f"before.{name}": values for name, values in weights.items()}, **after)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equal_updates_are_compared_network_by_network(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(same_updates, "UPDATES", 2)
    rows = 600
    rng, file = np.random.default_rng(0), tmp_path / "recorded.npz"
    arrays: dict[str, Any] = {
        **{name: rng.normal(size=(rows, 3)) for name in ("observations", "next_observations")},
        **{"actions": rng.uniform(-2.0, 2.0, (rows, 1)), "rewards": rng.normal(size=rows)},
        **{"terminations": np.zeros(rows, bool), "truncations": np.arange(rows) % 200 == 199},
    }
    np.savez(file, allow_pickle=False, **arrays)
    asked = []

    def ask(given: dict[str, Any]) -> None:
        with np.load(given["batches"]) as batches:
            assert batches["actions"].shape == (2, same_updates.ROWS, 1)
            assert np.abs(batches["actions"]).max() <= 1.0
            assert {values.dtype for values in batches.values()} == {np.dtype(np.float32)}
        asked.append(given)
        _peer(given["weights"], given, shift=1.0)

    found = list(same_updates.compare(algorithm, "Pendulum-v1", file, ask))
    assert [each["network"] for each in found] == list(same_updates.COMPARED[algorithm])
    assert asked[0]["algorithm"] == algorithm
    for each in found:
        # Two updates move a weight by at most 6e-4, and the peer moved each by 1.
        assert each["distance"] == pytest.approx(1.0, abs=1e-3)
        assert each["moved"] > 1.0


def test_equal_updates_may_differ_by_rounding_only() -> None:
    for distance, met in ((1e-5, True), (1e-2, False)):
        rows = [
            {"task": "pendulum", "algorithm": "iql", "network": name, "updates": 100, "distance": value}
            for name, value in (("q_funcs", 1e-7), ("value_func", distance))
        ]
        (target,) = targets({"runs": [], "same_updates": rows, "random": {}})
        assert (target.measured, target.met) == (distance, met)
        assert any(re.fullmatch(meaning.pattern, target.name) for meaning in MEANINGS)


@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_is_whole(mix: str) -> None:
    assert sum(MIXES[mix].values()) == pytest.approx(1.0)


def test_a_recording_has_whole_transitions_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MIXES", {"chance": {"random": 1.0}})
    file = tmp_path / "chance.npz"
    recording.record(PENDULUM, {}, "chance", 250, 1, file)
    with np.load(file) as arrays:
        assert {len(arrays[name]) for name in arrays.files} == {250}
        ends = arrays["terminations"] | arrays["truncations"]
        np.testing.assert_array_equal(np.flatnonzero(ends), [199, 249])
        follows = ~ends[:-1]
        np.testing.assert_array_equal(arrays["next_observations"][:-1][follows], arrays["observations"][1:][follows])
