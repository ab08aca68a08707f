"""What every algorithm keeps for a resumed run, and that nothing of it is lost."""

import numpy as np
import pytest
import torch

from learner_service.policy.policy_graph import snapshot_parameters
from tests.learner_service.algorithms.algorithm_parts import (
    ALL_ALGORITHMS,
    BATCH,
    DEVICE,
    assert_equal_states,
    hidden,
    make,
    ones,
    random_batch,
    spec_of,
    trained,
)


@pytest.fixture(params=ALL_ALGORITHMS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalized"])
def test_a_resumed_algorithm_continues_bit_for_bit(name: str, normalize: bool) -> None:
    spec, rng = spec_of(name), np.random.default_rng(0)
    original = make(name, normalize_observations=normalize)
    original.normalize(np.full(3, 0.5), np.full(3, 2.0))
    # An odd number, so that every second update is due at once.
    original.update(random_batch(rng, spec, 5 * BATCH), ones(5 * BATCH))
    state = {key: value.cpu().numpy().copy() for key, value in original.state().items()}
    resumed = [make(name, seed=seed, normalize_observations=normalize) for seed in (7, 8)]
    resumed[1].update(random_batch(rng, spec, 2 * BATCH), ones(2 * BATCH))
    for algorithm in resumed:
        algorithm.load_state({key: torch.from_numpy(value.copy()) for key, value in state.items()})
    further = random_batch(rng, spec, 4 * BATCH)
    expected = original.update(further, ones(4 * BATCH))
    for algorithm in resumed:
        losses = algorithm.update(further, ones(4 * BATCH))
        assert losses.loss == expected.loss
        np.testing.assert_array_equal(losses.priorities, expected.priorities)
        assert_equal_states(algorithm, original)


def test_a_state_is_a_copy(name: str) -> None:
    algorithm = trained(make(name), spec_of(name))
    state = algorithm.state()
    kept = {key: value.clone() for key, value in state.items()}
    trained(algorithm, spec_of(name))
    assert all(torch.equal(state[key], kept[key]) for key in kept)
    assert any(not torch.equal(value, kept[key]) for key, value in algorithm.state().items())


def test_a_state_from_before_the_first_update_can_be_restored(name: str) -> None:
    algorithm, spec = make(name), spec_of(name)
    state = algorithm.state()
    batch = random_batch(np.random.default_rng(0), spec, 4 * BATCH)
    first = algorithm.update(batch, ones(4 * BATCH))
    algorithm.load_state(state)
    again = algorithm.update(batch, ones(4 * BATCH))
    assert again.loss == first.loss
    np.testing.assert_array_equal(again.priorities, first.priorities)


def test_a_state_of_other_networks_is_refused(name: str) -> None:
    state = trained(make(name), spec_of(name)).state()
    with pytest.raises((KeyError, RuntimeError)):
        make(name, **hidden(name, 8)).load_state(state)
    with pytest.raises((KeyError, RuntimeError)):
        make(name).load_state({})


def test_a_normalizing_state_is_refused_without_normalization(name: str) -> None:
    original = make(name, normalize_observations=True)
    original.normalize(np.full(3, 50.0), np.full(3, 10.0))
    with pytest.raises(RuntimeError, match="normalize_observations is off"):
        make(name).load_state(original.state())


def test_the_same_seed_gives_the_same_networks_after_any_draws_of_torch(name: str) -> None:
    first = make(name, seed=5)
    torch.rand(3)
    assert_equal_states(make(name, seed=5), first)
    other = snapshot_parameters(make(name, seed=6).policy)
    mine = snapshot_parameters(first.policy)
    assert any(not np.array_equal(mine[key], other[key]) for key in mine)


@pytest.mark.parametrize("name", ["td3", "sac", "xqc"])
def test_a_state_of_another_device_kind_continues_with_other_noise(name: str) -> None:
    """A GPU's generator has 16 bytes of state, the CPU's has 5056, so it cannot continue the other's numbers."""
    original = trained(make(name), spec_of(name))
    elsewhere = 16 if DEVICE.type == "cpu" else 5056
    moved = {**original.state(), "generator": torch.arange(elsewhere).to(torch.uint8)}
    resumed = [make(name, seed=seed) for seed in (7, 8)]
    for algorithm in resumed:
        algorithm.load_state(moved)
        for key, value in original.state().items():
            assert key == "generator" or torch.equal(algorithm.state()[key], value), key
    # The same noise in every run that continues from there.
    assert_equal_states(*resumed)
    assert not torch.equal(resumed[0].state()["generator"], make(name).state()["generator"])
