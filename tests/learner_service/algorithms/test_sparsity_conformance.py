"""The contract of every algorithm with sparse networks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from actorq.domain.policy import INT8_PER_TENSOR, LayerReport
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.algorithms import Algorithm
from learner_service.networks import Linear
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from learner_service.quantization.fake_quantization import FakeQuantization
from tests.learner_service.algorithms.algorithm_parts import (
    ALGORITHMS,
    BATCH,
    STORED_DATA,
    act,
    make,
    of_the_cpu,
    on_device,
    ones,
    random_actions,
    random_batch,
    spec_of,
)

SPARSITIES = {"actor": 0.6, "critic": 0.5}
# Masks change with every fourth update. TD3's policy uses every second update.
PERIOD = 4
KINDS: dict[str, dict[str, Any]] = {
    "static": {"method": "static"},
    "set": {"method": "set"},
    "rigl": {"method": "rigl"},
    "structured-set": {"method": "set", "structured": True},
    "structured-rigl": {"method": "rigl", "structured": True},
}


@pytest.fixture(params=(*ALGORITHMS, *STORED_DATA))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sparse(name: str, kind: str, seed: int = 1, **changes: Any) -> Algorithm:
    sparsity = {"period_updates": PERIOD, **SPARSITIES, **KINDS[kind], **changes.pop("sparsity", {})}
    return make(name, seed=seed, sparsity=sparsity, **changes)


def update(algorithm: Algorithm, spec: EnvironmentSpec, updates: int, seed: int = 7) -> None:
    batch = random_batch(np.random.default_rng(seed), spec, updates * BATCH)
    algorithm.update(batch, ones(updates * BATCH))


def networks(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The mask, bool[parameters], of each network."""
    suffix = ".topology.mask"
    return {key.removesuffix(suffix): mask for key, mask in state.items() if key.endswith(suffix)}


def assert_masked(state: dict[str, Tensor]) -> None:
    """Inactive weights are 0 in the networks and their targets, and in Adam's moments."""
    for network, mask in networks(state).items():
        beside = [state[f"{network}.{part}"] for part in ("parameters", "exp_avg", "exp_avg_sq")]
        beside += [state[key] for key in (f"target_{network}", "target") if key in state]
        for vector in beside:
            assert not vector[~mask].any()
            assert vector[mask].any()


@pytest.mark.parametrize("kind", KINDS)
def test_inactive_weights_are_exactly_zero_everywhere_and_their_number_stays(name: str, kind: str) -> None:
    algorithm, spec = sparse(name, kind), spec_of(name)
    masks = networks(algorithm.state())
    assert set(masks) == ({"online"} if name == "dqn" else {"policy", "critic"})
    for number in range(5):
        # Not the period, so that changes fall anywhere.
        update(algorithm, spec, 3, seed=number)
        state = algorithm.state()
        assert_masked(state)
        for network, mask in networks(state).items():
            before = int(masks[network].count_nonzero())
            if "structured" in kind and network != "critic":
                assert abs(int(mask.count_nonzero()) - before) <= 64 + 3
            else:
                assert int(mask.count_nonzero()) == before
    same = [torch.equal(mask, masks[network]) for network, mask in networks(algorithm.state()).items()]
    assert all(same) if kind == "static" else not any(same)


@pytest.mark.parametrize("kind", KINDS)
def test_published_parameters_have_the_zeros(name: str, kind: str) -> None:
    algorithm = sparse(name, kind)
    update(algorithm, spec_of(name), 9)
    mask = next(mask for network, mask in networks(algorithm.state()).items() if network != "critic")
    published = snapshot_parameters(algorithm.policy)
    values = np.concatenate([published[key].ravel() for key, _ in algorithm.policy.named_parameters()])
    inactive = ~mask.cpu().numpy()[: len(values)]
    assert (values[inactive] == 0).all()
    assert not np.signbit(values[inactive]).any()
    weights = sum(part.weight.numel() for part in algorithm.policy.modules() if isinstance(part, nn.Linear))
    assert inactive.sum() == pytest.approx(SPARSITIES["actor"] * weights, abs=3 if "structured" not in kind else 70)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_algorithm_continues_bit_for_bit_through_mask_changes(name: str, kind: str) -> None:
    spec = spec_of(name)
    original = sparse(name, kind)
    update(original, spec, 5)
    state = {key: value.cpu().numpy().copy() for key, value in original.state().items()}
    resumed = sparse(name, kind, seed=9)
    update(resumed, spec, 2)
    resumed.load_state({key: torch.from_numpy(value.copy()) for key, value in state.items()})
    for algorithm in (original, resumed):
        update(algorithm, spec, 3 * PERIOD, seed=8)
    expected, actual = original.state(), resumed.state()
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(actual[key], value), key
    if kind != "static":
        before = networks({key: on_device(value) for key, value in state.items()})
        assert all(not torch.equal(mask, before[network]) for network, mask in networks(actual).items())


@pytest.mark.parametrize(
    "other",
    [
        {"method": "dense"},
        {"method": "set"},
        {"actor": 0.7},
        {"structured": True},
    ],
    ids=["dense", "method", "sparsity", "structure"],
)
def test_a_state_of_another_topology_is_refused_both_ways(name: str, other: dict[str, Any]) -> None:
    one, two = sparse(name, "rigl"), sparse(name, "rigl", sparsity=other)
    for algorithm, state in ((one, two.state()), (two, one.state())):
        with pytest.raises(RuntimeError, match="saved networks"):
            algorithm.load_state(state)


def test_masks_do_not_depend_on_what_torch_drew_before_but_on_the_seed(name: str) -> None:
    first = networks(sparse(name, "rigl").state())
    torch.rand(3)
    again, other = networks(sparse(name, "rigl").state()), networks(sparse(name, "rigl", seed=2).state())
    for network, mask in first.items():
        assert torch.equal(again[network], mask)
        assert not torch.equal(other[network], mask)


def test_the_method_dense_ignores_sparsities(name: str) -> None:
    """Sparsities matter to no method that has none."""
    dense, still_dense = make(name), make(name, sparsity={"method": "dense", "actor": 0.99, "critic": 0.99})
    for algorithm in (dense, still_dense):
        update(algorithm, spec_of(name), 3)
    expected, actual = dense.state(), still_dense.state()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[key], value) for key, value in expected.items())
    assert not networks(expected)


@pytest.mark.parametrize("kind", ["rigl", "structured-rigl"])
def test_frozen_layers_stay_dense(name: str, kind: str) -> None:
    algorithm = sparse(name, kind, network="own_algorithms:half_frozen")
    before = {key: value.clone() for key, value in algorithm.policy.state_dict().items()}
    update(algorithm, spec_of(name), 3 * PERIOD)
    after = algorithm.policy.state_dict()
    frozen = [key for key, value in algorithm.policy.named_parameters() if not value.requires_grad and value.ndim == 2]
    assert frozen
    for key in frozen:
        assert before[key].all()
        assert torch.equal(after[key], before[key])
    assert any((value == 0).any() for key, value in after.items() if value.ndim == 2 and key not in frozen)


def test_a_tiny_network_may_have_a_users_constants(name: str) -> None:
    # There is nothing to make narrow where a user's layers are all that is hidden.
    tiny = {"method": "tiny", "actor": 0.0, "critic": 0.0}
    update(make(name, sparsity=tiny, network="own_algorithms:random_features"), spec_of(name), 2)


def test_tiny_networks_have_as_many_weights_as_sparse_ones(name: str) -> None:
    tiny, masked = (make(name, sparsity={"method": method, "actor": 0.8, "critic": 0.6}) for method in ("tiny", "rigl"))
    update(tiny, spec_of(name), 2)
    linear = [part.weight.numel() for part in tiny.policy.modules() if isinstance(part, nn.Linear)]
    wanted = sum(int((part.weight != 0).sum()) for part in masked.policy.modules() if isinstance(part, nn.Linear))
    assert 0.85 * wanted <= sum(linear) <= wanted + 1
    assert not networks(tiny.state())
    if name != "dqn":
        sizes = {key: len(tiny.state()[f"{key}.parameters"]) for key in ("policy", "critic")}
        full = {key: len(masked.state()[f"{key}.parameters"]) for key in ("policy", "critic")}
        assert sizes["critic"] / full["critic"] > 1.5 * sizes["policy"] / full["policy"]


@pytest.mark.parametrize("kind", ["rigl", "structured-rigl"])
def test_sparse_policies_are_trained_as_actors_run_them(name: str, kind: str) -> None:
    spec = spec_of(name)
    algorithm = sparse(name, kind)
    fake = FakeQuantization(algorithm.policy, export_policy_graph(algorithm.policy, spec, algorithm.takes_noise))
    layers = [key for key, module in algorithm.policy.named_modules() if isinstance(module, nn.Linear)]
    fake.follow("int8", [LayerReport(layer, INT8_PER_TENSOR) for layer in layers])
    before = networks(algorithm.state())
    with fake.applied():
        update(algorithm, spec, 2 * PERIOD)
    state = algorithm.state()
    assert_masked(state)
    assert all(not torch.equal(mask, before[network]) for network, mask in networks(state).items())


def test_flops_of_sparse_networks_are_a_share_of_the_dense_ones(name: str) -> None:
    dense, rigl, tiny = (make(name, sparsity={"method": method, **SPARSITIES}) for method in ("dense", "rigl", "tiny"))
    assert dense.flops.action.ratio == dense.flops.update.ratio == 1.0  # type: ignore[attr-defined]
    for algorithm, least in ((rigl, 0.95), (tiny, 0.8)):
        flops = algorithm.flops  # type: ignore[attr-defined]
        assert flops.action.dense == dense.flops.action.now  # type: ignore[attr-defined]
        assert flops.update.dense == dense.flops.update.now  # type: ignore[attr-defined]
        assert least * 0.4 < flops.action.ratio < 0.41
        share = 0.4 if name == "dqn" else 0.5
        assert least * 0.4 < flops.update.ratio < share + 0.01


def test_networks_for_frames_are_sparse_too(name: str) -> None:
    spec = replace(spec_of(name), observations=ArraySpec((40, 40), "uint8"), frame_stack=2)
    algorithm = make(name, spec, sparsity={"method": "rigl", "structured": True, "period_updates": 4, **SPARSITIES})
    update(algorithm, spec, 5)
    assert_masked(algorithm.state())
    flops = algorithm.flops  # type: ignore[attr-defined]
    # Convolutions multiply each weight many times, and are denser than the layer after them.
    assert 0.4 < flops.action.ratio < 1.0


def test_a_sparse_network_learns() -> None:
    table = np.array([[1.0, -2.0, 0.5], [0.0, 0.25, 3.0]])
    contexts = np.array([[1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]], np.float32)
    algorithm, rng, size = sparse("dqn", "rigl", sparsity={"period_updates": 350}), np.random.default_rng(0), 10 * BATCH
    for _ in range(90):
        chosen, actions = rng.integers(2, size=size), random_actions(rng, spec_of("dqn"), size)
        batch = random_batch(rng, spec_of("dqn"), size)
        algorithm.update(
            type(batch)(
                observations=contexts[chosen],
                actions=actions,
                returns=table[chosen, actions].astype(np.float32),
                bootstrap_discounts=np.zeros(size, np.float32),
                bootstrap_observations=contexts[chosen],
                policy_versions=batch.policy_versions,
            ),
            ones(size),
        )
    with torch.no_grad():
        learned = algorithm.policy(on_device(contexts)).cpu().numpy()
    np.testing.assert_allclose(learned, table, atol=0.05)
    assert act(algorithm, contexts).tolist() == [0, 2]


@of_the_cpu
@pytest.mark.parametrize("kind", ["static", "rigl", "structured-rigl"])
def test_products_that_skip_zeros_train_the_same_networks(name: str, kind: str) -> None:
    """Sparse products are used only for large layers. The layers of other tests are small."""
    spec, layers = spec_of(name), ("policy_sizes", "critic_sizes") if name == "d4pg" else ("hidden_sizes",)
    sizes: dict[str, Any] = {**dict.fromkeys(layers, (150, 140)), "batch_size": 2 * BATCH}
    sparsity = {"actor": 0.95, "critic": 0.93}
    found = []
    for compressed in (False, True):
        algorithm = sparse(name, kind, sparsity={**sparsity, "compressed_products": compressed}, **sizes)
        linear = [part for part in algorithm.policy.modules() if isinstance(part, Linear)]
        assert any(layer.active is not None for layer in linear) == compressed
        # Through one change of the masks, and one step after it. Later steps multiply rounding differences.
        update(algorithm, spec, 2 * (PERIOD + 2))
        found.append(algorithm.state())
    plain, compressed_state = found
    for network, mask in networks(plain).items():
        assert torch.equal(networks(compressed_state)[network], mask)
    for key, value in plain.items():
        if value.is_floating_point():
            torch.testing.assert_close(compressed_state[key], value, rtol=1e-3, atol=1e-4)
