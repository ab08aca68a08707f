"""What a new algorithm takes of another run's networks, and what it begins anew."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from learner_service.algorithms.base import is_on_policy
from learner_service.policy.policy_graph import snapshot_parameters
from tests.learner_service.algorithms import algorithm_parts as off_policy
from tests.learner_service.algorithms import on_policy_parts as on_policy
from tests.learner_service.algorithms.algorithm_parts import (
    ALL_ALGORITHMS,
    BATCH,
    DISCRETE,
    hidden,
    ones,
    random_batch,
    spec_of,
)

RLX2 = {"method": "rlx2", "actor": 0.5, "critic": 0.5, "period_updates": 3}


def make(name: str, **changes: Any) -> Any:
    return off_policy.make(name, **changes) if name in ALL_ALGORITHMS else on_policy.make(name, **changes)


def trained(algorithm: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if is_on_policy(algorithm):
        algorithm.learn([on_policy.random_trajectories(rng, DISCRETE)], 0.0)
    else:
        algorithm.update(random_batch(rng, spec_of(algorithm.name), 8 * BATCH), ones(8 * BATCH))
    return algorithm


def weights(state: dict[str, Tensor], of_targets: bool) -> dict[str, Tensor]:
    """The parameters by the name of their network, or those of the target networks."""
    if of_targets:
        return {name: value for name, value in state.items() if name.startswith("target")}
    return {name: value for name, value in state.items() if name.endswith(".parameters")}


@pytest.fixture(params=[*ALL_ALGORITHMS, *on_policy.CLASSES])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_networks_are_those_of_the_other_run(name: str) -> None:
    other = trained(make(name))
    begun = make(name, seed=7)
    begun.begin_from(other.state())
    found, expected = weights(begun.state(), False), weights(other.state(), False)
    assert found.keys() == expected.keys() != set()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    theirs = snapshot_parameters(other.policy)
    mine = snapshot_parameters(begun.policy)
    assert all(np.array_equal(mine[key], theirs[key]) for key in theirs)


def test_target_networks_are_equal_to_the_networks(name: str) -> None:
    other = trained(make(name))
    begun = make(name, seed=7)
    begun.begin_from(other.state())
    state = begun.state()
    pairs = {target: f"{online}.parameters" for online, target in begun.state_names.values() if target in state}
    assert bool(pairs) == (name in ALL_ALGORITHMS)
    assert all(torch.equal(state[target], state[online]) for target, online in pairs.items())
    if name == "dqn":
        assert not torch.equal(other.state()["target"], other.state()["online.parameters"])


def test_optimizers_counters_and_random_numbers_are_new(name: str) -> None:
    begun, new = make(name, seed=7), make(name, seed=7)
    begun.begin_from(trained(make(name)).state())
    assert begun.updates == 0
    state = begun.state()
    assert not [key for key in state if "exp_avg" in key]
    assert torch.equal(state["generator"], new.state()["generator"])


def test_the_normalizer_comes_along(name: str) -> None:
    other = make(name, normalize_observations=True)
    other.normalize(np.full(3, 5.0), np.full(3, 2.0))
    begun = make(name, seed=7, normalize_observations=True)
    begun.begin_from(other.state())
    np.testing.assert_array_equal(begun.state()["normalizer.mean"].cpu(), np.full(3, 5.0))
    np.testing.assert_array_equal(begun.state()["normalizer.scale"].cpu(), np.full(3, 0.5))


def test_the_begun_algorithm_learns(name: str) -> None:
    begun = make(name, seed=7)
    begun.begin_from(trained(make(name)).state())
    before = weights(begun.state(), False)
    trained(begun, seed=1)
    after = weights(begun.state(), False)
    assert all(not torch.equal(before[key], after[key]) for key in before)
    assert begun.updates > 0


def test_other_sizes_are_refused_with_both_numbers(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"expected \d+ saved parameters, got \d+"):
        make(name, **hidden(name, 8) if name in ALL_ALGORITHMS else {"hidden_sizes": (8,)}).begin_from(
            make(name).state()
        )


def test_the_temperature_of_sac_comes_along() -> None:
    other = trained(make("sac", temperature=None))
    begun = make("sac", temperature=None, seed=7)
    assert not torch.equal(begun.temperature.alpha, other.temperature.alpha)
    begun.begin_from(other.state())
    assert torch.equal(begun.temperature.alpha, other.temperature.alpha)


@pytest.mark.parametrize("method", ["rlx2", "static"])
def test_masks_come_along_and_change_by_the_schedule_of_the_new_run(method: str) -> None:
    other = trained(make("td3", sparsity=RLX2))
    begun = make("td3", seed=7, sparsity={**RLX2, "method": method})
    begun.begin_from(other.state())
    theirs, mine = other.state(), begun.state()
    masks = [key for key in theirs if key.endswith("topology.mask")]
    assert len(masks) == 2
    assert all(torch.equal(mine[key], theirs[key]) for key in masks)
    assert {int(mine[key]) for key in mine if key.endswith("topology.updates")} == {0}
    for key in masks:
        network = key.removesuffix(".topology.mask")
        assert not mine[f"{network}.parameters"][~mine[key]].any()
    trained(begun, seed=1)
    changed = [not torch.equal(begun.state()[key], theirs[key]) for key in masks]
    assert changed == [method == "rlx2"] * 2


@pytest.mark.parametrize(
    ("there", "here", "fact"),
    [
        (RLX2, {**RLX2, "actor": 0.7}, "another sparsity"),
        (RLX2, {"method": "dense"}, "its networks are sparse"),
    ],
)
def test_masks_of_other_densities_are_refused(there: dict[str, Any], here: dict[str, Any], fact: str) -> None:
    with pytest.raises(RuntimeError, match=fact):
        make("td3", sparsity=here).begin_from(make("td3", sparsity=there).state())
