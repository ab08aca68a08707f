"""The contract of every algorithm."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.policy import INT8_PER_TENSOR, LayerReport
from actorq.domain.signature import Role
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from learner_service.batch import Batch
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from learner_service.quantization.fake_quantization import FakeQuantization
from learner_service.replay import ReplayStore, Returns, SegmentSource, assemble
from tests.learner_service.algorithms.algorithm_parts import (
    ALGORITHMS,
    BATCH,
    BOUNDED,
    CONTINUOUS,
    DISCRETE,
    act,
    assert_equal_states,
    make,
    on_device,
    ones,
    random_actions,
    random_batch,
    rows,
    spec_of,
    spoil,
    trained,
    values,
)

CONTINUOUS_ALGORITHMS = tuple(name for name in ALGORITHMS if name != "dqn")


@pytest.fixture(params=ALGORITHMS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def observations_as(spec: EnvironmentSpec, dtype: str) -> EnvironmentSpec:
    return replace(spec, observations=ArraySpec(spec.observations.shape, dtype))


# What actors get


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalized"])
@pytest.mark.parametrize("kind", ["float32", "float64", "matrix", "frames"])
def test_the_exported_graph_computes_the_policy(name: str, kind: str, normalize: bool) -> None:
    spec = replace(spec_of(name), actions=BOUNDED.actions) if name != "dqn" else DISCRETE
    spec = {
        "float32": spec,
        "float64": observations_as(spec, "float64"),
        "matrix": replace(spec, observations=ArraySpec((4, 2), "float32")),
        "frames": replace(spec, observations=ArraySpec((40, 40), "uint8"), frame_stack=2),
    }[kind]
    algorithm = make(name, spec, normalize_observations=normalize)
    rng = np.random.default_rng(0)
    shape = spec.observations.shape
    algorithm.normalize(rng.standard_normal(shape), 0.1 + rng.random(shape))
    trained(algorithm, spec)

    graph = export_policy_graph(algorithm.policy, spec, algorithm.takes_noise)
    session = onnxruntime.InferenceSession(graph.model, providers=["CPUExecutionProvider"])
    parameters = snapshot_parameters(algorithm.policy)
    for batch in (1, 7):
        inputs: dict[str, NDArray[Any]] = {OBSERVATIONS: random_batch(rng, spec, batch).observations}
        if algorithm.takes_noise:
            inputs[Role.NOISE] = rng.standard_normal((batch, 2), np.float32)
        assert [port.name for port in graph.signature.inputs] == [*inputs]
        (actual,) = session.run(None, {**inputs, **parameters})
        with torch.no_grad():
            expected = algorithm.policy(*map(on_device, inputs.values())).cpu().numpy()
        assert actual.dtype == np.float32
        assert actual.shape == (batch, *((3,) if name == "dqn" else (2,)))
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_normalizer_is_published_and_changes_the_actions(name: str) -> None:
    spec = spec_of(name)
    algorithm = make(name, spec, normalize_observations=True)
    observations = random_batch(np.random.default_rng(0), spec, 64).observations
    plain, published = algorithm.policy(on_device(observations)), snapshot_parameters(algorithm.policy)
    mean, std = np.array([1.0, -2.0, 3.0]), np.array([0.5, 2.0, 10.0])
    algorithm.normalize(mean, std)
    after = snapshot_parameters(algorithm.policy)
    assert [key for key in after if not np.array_equal(after[key], published[key])] == [
        key for key in after if "normalizer" in key
    ]
    scaled = (mean + std * observations).astype(np.float32)
    torch.testing.assert_close(algorithm.policy(on_device(scaled)), plain, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(algorithm.policy(on_device(observations)), plain, atol=1e-3)


def test_without_normalization_normalize_has_no_effect(name: str) -> None:
    algorithm = make(name)
    before = snapshot_parameters(algorithm.policy)
    algorithm.normalize(np.ones(3), np.full(3, 2.0))
    after = snapshot_parameters(algorithm.policy)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("scheme", ["int8", "int8-static"])
def test_all_layers_of_the_policy_can_be_trained_as_actors_run_them(name: str, scheme: str) -> None:
    spec = spec_of(name)
    algorithm, rng = make(name, spec, learner={"quantization_aware_after": 0.5}), np.random.default_rng(0)
    fake = FakeQuantization(algorithm.policy, export_policy_graph(algorithm.policy, spec, algorithm.takes_noise))
    layers = tuple(key for key, module in algorithm.policy.named_modules() if isinstance(module, nn.Linear))
    fake.follow(scheme, [LayerReport(layer, INT8_PER_TENSOR) for layer in layers])
    assert set(fake.layers) == set(layers)
    batch = random_batch(rng, spec, BATCH)
    observations = on_device(batch.observations)
    fake.calibrate(observations)
    before = snapshot_parameters(algorithm.policy)
    with torch.no_grad():
        exact = algorithm.policy(observations)
    with fake.applied():
        with torch.no_grad():
            rounded = algorithm.policy(observations)
        for _ in range(4):
            algorithm.update(batch, ones())
    assert 0 < float((rounded - exact).abs().max()) < 0.2
    after = snapshot_parameters(algorithm.policy)
    assert all(np.isfinite(value).all() for value in after.values())
    assert all(not np.array_equal(after[key], before[key]) for key in before if key.endswith(".weight"))


# What they learn


CONTEXTS = np.array([[1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]], np.float32)


def bandit(contexts: NDArray[Any], actions: NDArray[Any], rewards: NDArray[Any]) -> Batch:
    """One step in one of two contexts, and the end."""
    return Batch(
        observations=CONTEXTS[contexts],
        actions=actions,
        returns=rewards.astype(np.float32),
        bootstrap_discounts=np.zeros(len(contexts), np.float32),
        bootstrap_observations=CONTEXTS[contexts],
        policy_versions=np.ones(len(contexts), np.int64),
    )


def test_a_bandit_of_discrete_actions_is_learned_exactly() -> None:
    table = np.array([[1.0, -2.0, 0.5], [0.0, 0.25, 3.0]])
    algorithm, rng, size = make("dqn"), np.random.default_rng(0), 10 * BATCH
    for _ in range(60):
        contexts, actions = rng.integers(2, size=size), random_actions(rng, DISCRETE, size)
        algorithm.update(bandit(contexts, actions, table[contexts, actions]), ones(size))
    with torch.no_grad():
        learned = algorithm.policy(on_device(CONTEXTS)).cpu().numpy()
    np.testing.assert_allclose(learned, table, atol=0.01)
    assert act(algorithm, CONTEXTS).tolist() == [0, 2]


@pytest.mark.parametrize("name", CONTINUOUS_ALGORITHMS)
def test_a_bandit_of_continuous_actions_is_learned_exactly(name: str) -> None:
    """Rewards are minus 1.5 times the squared distance from the best action, in halves of the range.

    Half of the actions are the policy's with noise, half are random. At the end the actions are to be within 0.1 of
    the best, and their values within 0.1 of 0.
    """
    low, high = BOUNDED.actions.bounds()
    best = np.array([[0.5, -0.25], [-0.5, 0.75]])
    algorithm, rng, size = make(name, BOUNDED, **ACCURATE[name]), np.random.default_rng(0), 10 * BATCH
    for _ in range(100):
        contexts, actions = rng.integers(2, size=size), random_actions(rng, BOUNDED, size)
        noise = rng.normal(0.0, 0.1, (size // 2, 2)) * (high - low)
        actions[::2] = np.clip(act(algorithm, CONTEXTS[contexts[::2]]) + noise, low, high)
        distances = 2 * (actions - low) / (high - low) - 1 - best[contexts]
        algorithm.update(bandit(contexts, actions, -1.5 * np.square(distances).sum(1)), ones(size))
    actions = act(algorithm, CONTEXTS)
    np.testing.assert_allclose(2 * (actions - low) / (high - low) - 1, best, atol=0.1)
    np.testing.assert_allclose(values(algorithm, CONTEXTS, actions), 0.0, atol=0.1)


ACCURATE: dict[str, dict[str, Any]] = {
    "d4pg": {
        "policy_sizes": (64, 64),
        "critic_sizes": (64, 64),
        "policy_learning_rate": 1e-3,
        "critic_learning_rate": 1e-3,
    },
    "td3": {"hidden_sizes": (64, 64), "learning_rate": 1e-3},
    "sac": {"hidden_sizes": (64, 64), "learning_rate": 1e-3},
}


@pytest.mark.parametrize("n_step", [1, 2])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_values_of_a_chain_of_two_states_are_those_of_its_end(tmp_path: Path, name: str, end: str, n_step: int) -> None:
    """Rewards 1 and 2, discount 1/2. After a terminal state nothing comes: 2, and 1 + 2 / 2. After a time limit the
    second state would come again, for ever: v = 2 + v / 2 = 4, and 1 + 4 / 2.
    """
    spec = spec_of(name)
    second = 2.0 if end == "terminated" else 4.0
    algorithm, rng = make(name, spec, n_step=n_step, discount=0.5), np.random.default_rng(0)
    store = ReplayStore.open(tmp_path, spec, 4096)
    store.insert(chain(rng, spec, end), SegmentSource.from_name("actor", 1, 1))
    starts = np.flatnonzero(store.flags & 1)
    for _ in range(60):
        batch = assemble(store, rng.choice(starts, 10 * BATCH), Returns(n_step, 0.5))
        algorithm.update(batch, ones(10 * BATCH))
    store.close()
    learned = values(algorithm, np.repeat(STATES[:2], 16, axis=0), random_actions(rng, spec, 32)).reshape(2, 16)
    np.testing.assert_allclose(learned, [[1 + second / 2] * 16, [second] * 16], atol=0.1)


STATES = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, -0.5], [9.0, 9.0, 9.0]], np.float32)


def chain(rng: np.random.Generator, spec: EnvironmentSpec, end: str) -> Segment:
    """Steps of 64 environments: first state, second state, reset. A terminal state occurs nowhere else."""
    environments, after = 64, 2 if end == "terminated" else 1
    last, never = np.zeros((3, environments), np.bool_), np.zeros((3, environments), np.bool_)
    last[1] = True
    return Segment(
        sequence=1,
        spans=(PolicySpan(0, 1, "fp32"),),
        columns={
            "observations": np.repeat(STATES[[0, 1, after, 0]][:, None], environments, axis=1),
            "actions": random_actions(rng, spec, 3 * environments).reshape(3, environments, *spec.actions.shape),
            "rewards": np.repeat(np.array([[1.0], [2.0], [0.0]], np.float32), environments, axis=1),
            "terminated": last if end == "terminated" else never,
            "truncated": last if end == "truncated" else never,
            "valid": np.repeat(np.array([[True], [True], [False]]), environments, axis=1),
            "ages": np.zeros(environments, np.uint8),
        },
    )


# How they update


def test_several_updates_in_one_call_are_those_of_several_calls(name: str) -> None:
    spec = spec_of(name)
    batch = random_batch(np.random.default_rng(0), spec, 6 * BATCH)
    weights = np.random.default_rng(1).random(6 * BATCH, np.float32)
    together, apart = make(name), make(name)
    expected = together.update(batch, weights)
    parts = [slice(start, start + BATCH) for start in range(0, 6 * BATCH, BATCH)]
    losses = [apart.update(rows(batch, part), weights[part]) for part in parts]
    # The sums of a row in a larger batch may have another order, as on processors without AVX-512.
    priorities = np.concatenate([part.priorities for part in losses])
    np.testing.assert_allclose(priorities, expected.priorities, rtol=1e-5, atol=1e-6)
    assert np.mean([part.loss for part in losses]) == pytest.approx(expected.loss, rel=1e-5)
    torch.testing.assert_close(together.state(), apart.state(), rtol=1e-5, atol=1e-6)


def test_rows_that_are_not_whole_minibatches_are_refused(name: str) -> None:
    batch = random_batch(np.random.default_rng(0), spec_of(name), BATCH + 1)
    with pytest.raises(ValueError, match=f"multiple of {BATCH} rows, got {BATCH + 1}"):
        make(name).update(batch, ones(BATCH + 1))


def test_importance_weights_scale_the_loss_of_their_transition(name: str) -> None:
    batch = random_batch(np.random.default_rng(0), spec_of(name), BATCH)
    weights = np.random.default_rng(1).random(BATCH, np.float32)

    def loss(weights: NDArray[np.float32]) -> float:
        return make(name).update(batch, weights).loss

    whole = loss(ones())
    assert whole > 0
    assert loss(0.25 * ones()) == pytest.approx(0.25 * whole, rel=1e-5)
    assert loss(weights) + loss(1 - weights) == pytest.approx(whole, rel=1e-5)
    assert loss(weights) != pytest.approx(weights.mean() * whole, rel=1e-3)


def test_transitions_of_weight_0_do_not_change_values(name: str) -> None:
    spec, rng = spec_of(name), np.random.default_rng(0)
    algorithm = make(name)
    probes = random_batch(rng, spec, BATCH)
    before = values(algorithm, probes.observations, probes.actions)
    batch = random_batch(rng, spec, BATCH)
    algorithm.update(batch, 0 * ones())
    np.testing.assert_array_equal(values(algorithm, probes.observations, probes.actions), before)
    algorithm.update(batch, ones())
    assert np.abs(values(algorithm, probes.observations, probes.actions) - before).max() > 1e-3


def test_priorities_are_the_errors_of_the_values(name: str) -> None:
    spec = spec_of(name)
    algorithm = trained(make(name), spec, 20)
    batch = random_batch(np.random.default_rng(0), spec, BATCH)
    believed = values(algorithm, batch.observations, batch.actions)
    # Below all that either critic believes, so that the mean error is the error of the mean.
    terminal = batch.with_columns(returns=np.full(BATCH, -6.0, np.float32), bootstrap_discounts=0 * ones())
    priorities = algorithm.update(terminal, ones()).priorities
    assert priorities.dtype == np.float32
    np.testing.assert_allclose(priorities, believed + 6.0, atol=1e-4)


@pytest.mark.parametrize("normalize", [False, True], ids=["raw", "normalized"])
def test_networks_and_optimizers_stay_finite_with_the_largest_numbers(name: str, normalize: bool) -> None:
    spec, rng = spec_of(name), np.random.default_rng(0)
    algorithm = make(name, normalize_observations=normalize)
    for _ in range(20):
        batch = random_batch(rng, spec, BATCH)
        for column in (batch.observations, batch.bootstrap_observations, batch.returns):
            spoil(rng, column)
        losses = algorithm.update(batch, ones())
        assert np.isfinite([losses.loss, *losses.priorities]).all()
        algorithm.update(random_batch(rng, spec, BATCH), ones())
    assert all(bool(value.isfinite().all()) for value in algorithm.state().values() if value.is_floating_point())


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "uint8"])
def test_observations_of_other_types_are_trained_on_as_float32(name: str, dtype: str) -> None:
    spec = spec_of(name)
    batch = random_batch(np.random.default_rng(0), observations_as(spec, "uint8"), 4 * BATCH)
    observations = {"observations": batch.observations % 3, "bootstrap_observations": batch.bootstrap_observations % 3}
    states = []
    for kind in ("float32", dtype):
        algorithm = make(name, observations_as(spec, kind))
        algorithm.update(
            batch.with_columns(**{key: value.astype(kind) for key, value in observations.items()}), ones(4 * BATCH)
        )
        states.append(algorithm)
    assert_equal_states(*states)


@pytest.mark.parametrize("name", CONTINUOUS_ALGORITHMS)
def test_bounds_are_those_of_each_component(name: str) -> None:
    """Bounds only name actions: with actions renamed, the same is learned."""
    low, high = BOUNDED.actions.bounds()
    plain, bounded = make(name, CONTINUOUS), make(name, BOUNDED)
    batch = random_batch(np.random.default_rng(0), CONTINUOUS, 4 * BATCH)
    renamed = batch.with_columns(
        actions=(low + (high - low) * (np.asarray(batch.actions, np.float32) + 1) / 2).astype(np.float32)
    )
    expected, losses = plain.update(batch, ones(4 * BATCH)), bounded.update(renamed, ones(4 * BATCH))
    np.testing.assert_allclose(losses.priorities, expected.priorities, rtol=1e-3, atol=1e-3)
    actions, scaled = act(bounded, batch.observations), act(plain, batch.observations)
    np.testing.assert_allclose(actions, low + (high - low) * (scaled + 1) / 2, rtol=1e-3, atol=1e-3)
    # With large weights, so that tanh saturates.
    with torch.no_grad():
        for parameter in bounded.policy.parameters():
            parameter.mul_(1e5)
    extreme = act(bounded, batch.observations)
    assert (extreme >= low).all()
    assert (extreme <= high).all()
    np.testing.assert_allclose(np.minimum(extreme - low, high - extreme), 0.0, atol=1e-3)


@pytest.mark.parametrize("name", CONTINUOUS_ALGORITHMS)
def test_actions_of_several_axes_keep_their_shape(name: str) -> None:
    spec = replace(CONTINUOUS, actions=ArraySpec((2, 2), "float32", (-1.0,), (3.0,)))
    algorithm = trained(make(name, spec), spec)
    assert act(algorithm, random_batch(np.random.default_rng(0), spec, 5).observations).shape == (5, 2, 2)


@pytest.mark.parametrize(("name", "reported"), [("td3", {"policy_loss"}), ("sac", {"policy_loss", "temperature"})])
def test_figures_are_means_over_the_updates_of_a_batch(name: str, reported: set[str]) -> None:
    algorithm = make(name)
    rows = 2 * algorithm.batch_size
    found = algorithm.update(random_batch(np.random.default_rng(0), spec_of(name), rows), ones(rows)).figures
    assert found.keys() == reported
    assert all(np.isfinite(value) for value in found.values())
