"""What every on-policy algorithm keeps for a resumed run, also with sparse networks."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from tests.learner_service.algorithms.algorithm_parts import BOUNDED, DISCRETE
from tests.learner_service.algorithms.on_policy_parts import CLASSES, assert_equal_states, make, random_rollout, trained

SPECS = {"discrete": DISCRETE, "continuous": BOUNDED}
SPARSE: dict[str, dict[str, Any]] = {
    "dense": {},
    "static": {"method": "static"},
    "set": {"method": "set"},
    "rigl": {"method": "rigl"},
    "structured": {"method": "rigl", "structured": True},
}


@pytest.fixture(params=CLASSES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest) -> EnvironmentSpec:
    return SPECS[request.param]


def sparsity(kind: str) -> dict[str, Any]:
    """Settings; masks change with every third update."""
    return {"sparsity": {"actor": 0.6, "critic": 0.5, "period_updates": 3, **SPARSE[kind]}} if SPARSE[kind] else {}


@pytest.mark.parametrize("kind", SPARSE)
def test_a_resumed_algorithm_continues_bit_for_bit(name: str, spec: EnvironmentSpec, kind: str) -> None:
    rng, options = np.random.default_rng(0), {"normalize_observations": True, **sparsity(kind)}
    original = make(name, spec, **options)
    original.normalize(np.full(3, 0.5), np.full(3, 2.0))
    original.learn(random_rollout(rng, spec), 0.0)
    state = {key: value.cpu().numpy().copy() for key, value in original.state().items()}
    resumed = trained(make(name, spec, seed=7, **options), spec, rollouts=1)
    resumed.load_state({key: torch.from_numpy(value.copy()) for key, value in state.items()})
    assert_equal_states(resumed, original)
    further = random_rollout(rng, spec)
    assert resumed.learn(further, 0.5) == original.learn(further, 0.5)
    assert_equal_states(resumed, original)


def test_a_state_is_a_copy(name: str, spec: EnvironmentSpec) -> None:
    algorithm = make(name, spec)
    state = algorithm.state()
    kept = {key: value.clone() for key, value in state.items()}
    trained(algorithm, spec)
    assert all(torch.equal(state[key], kept[key]) for key in kept)
    algorithm.load_state(state)
    assert_equal_states(algorithm, make(name, spec))


def test_a_state_of_other_networks_is_refused(name: str, spec: EnvironmentSpec) -> None:
    state = trained(make(name, spec), spec).state()
    for sizes in ("hidden_sizes", "value_sizes"):
        changes: dict[str, Any] = {sizes: (8,)}
        with pytest.raises((KeyError, RuntimeError)):
            make(name, spec, **changes).load_state(state)
    with pytest.raises((KeyError, RuntimeError)):
        make(name, spec).load_state({})


def test_the_same_seed_gives_the_same_networks_after_any_draws_of_torch(name: str, spec: EnvironmentSpec) -> None:
    first = make(name, spec, seed=5)
    torch.rand(3)
    assert_equal_states(make(name, spec, seed=5), first)
    assert not torch.equal(make(name, spec, seed=6).state()["policy.parameters"], first.state()["policy.parameters"])


@pytest.mark.parametrize("kind", [kind for kind in SPARSE if kind != "dense"])
def test_inactive_weights_are_exactly_zero_and_masks_change(name: str, spec: EnvironmentSpec, kind: str) -> None:
    algorithm = make(name, spec, **sparsity(kind))
    before = algorithm.state()
    trained(algorithm, spec)
    state = algorithm.state()
    for network in ("policy", "critic"):
        mask = state[f"{network}.topology.mask"]
        for part in ("parameters", "exp_avg", "exp_avg_sq"):
            assert not state[f"{network}.{part}"][~mask].any()
            assert state[f"{network}.{part}"][mask].any()
        assert torch.equal(mask, before[f"{network}.topology.mask"]) == (kind == "static")
    weights = [part.weight for part in algorithm.policy.modules() if isinstance(part, nn.Linear)]
    density = sum(int((weight != 0).sum()) for weight in weights) / sum(weight.numel() for weight in weights)
    assert density == pytest.approx(0.4, abs=0.06)


def test_tiny_networks_have_as_many_weights_as_sparse_ones(name: str, spec: EnvironmentSpec) -> None:
    tiny = make(name, spec, sparsity={"method": "tiny", "actor": 0.6, "critic": 0.5})
    dense = make(name, spec)
    for network, density in (("policy", 0.4), ("critic", 0.5)):
        share = len(tiny.state()[f"{network}.parameters"]) / len(dense.state()[f"{network}.parameters"])
        assert 0.8 * density < share < density + 0.1
    trained(tiny, spec)


def test_flops_of_sparse_networks_are_a_share_of_the_dense_ones(name: str, spec: EnvironmentSpec) -> None:
    dense, sparse = make(name, spec), make(name, spec, **sparsity("rigl"))
    assert dense.flops.action.ratio == dense.flops.update.ratio == 1.0  # type: ignore[attr-defined]
    flops = sparse.flops  # type: ignore[attr-defined]
    assert flops.update.dense == dense.flops.update.now  # type: ignore[attr-defined]
    assert 0.38 < flops.action.ratio < 0.41
    assert 0.4 < flops.update.ratio < 0.5


def test_rlx2_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"sparsity.method rlx2: expected an algorithm with a replay, got {name}"):
        settings.build(RunConfig, {"algorithm": name, "sparsity": {"method": "rlx2"}})
