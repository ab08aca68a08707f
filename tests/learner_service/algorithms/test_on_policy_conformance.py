"""The contract of every on-policy algorithm."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.policy import INT8_PER_TENSOR, LayerReport
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from learner_service.quantization.fake_quantization import FakeQuantization
from tests.learner_service.algorithms.algorithm_parts import BOUNDED, DEVICE, DISCRETE, on_device, spoil
from tests.learner_service.algorithms.on_policy_parts import (
    CLASSES,
    N,
    T,
    as_acted,
    assert_equal_states,
    greedy,
    make,
    random_rollout,
    random_trajectories,
    trained,
)

SPECS = {"discrete": DISCRETE, "continuous": BOUNDED}


@pytest.fixture(params=CLASSES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest) -> EnvironmentSpec:
    return SPECS[request.param]


# What actors get


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalized"])
@pytest.mark.parametrize("kind", ["float32", "float64", "matrix", "frames"])
def test_the_exported_graph_outputs_the_distribution(
    name: str, spec: EnvironmentSpec, kind: str, normalize: bool
) -> None:
    spec = {
        "float32": spec,
        "float64": replace(spec, observations=ArraySpec((3,), "float64")),
        "matrix": replace(spec, observations=ArraySpec((4, 2), "float32")),
        "frames": replace(spec, observations=ArraySpec((40, 40), "uint8"), frame_stack=2),
    }[kind]
    algorithm = make(name, spec, normalize_observations=normalize)
    rng, shape = np.random.default_rng(0), spec.observations.shape
    algorithm.normalize(rng.standard_normal(shape), 0.1 + rng.random(shape))
    graph = export_policy_graph(algorithm.policy, spec)
    assert [port.name for port in graph.signature.inputs] == [OBSERVATIONS]
    session = onnxruntime.InferenceSession(graph.model, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    assert names == (["logits"] if spec.sizes else ["actions", "mean", "log_std"])
    before = algorithm.state()
    trained(algorithm, spec, rollouts=1)
    assert not torch.equal(algorithm.state()["policy.parameters"], before["policy.parameters"])
    parameters = snapshot_parameters(algorithm.policy)
    for rows in (1, 7):
        steps = random_trajectories(rng, spec, rows, 1)
        observations, actions = steps.observations[:-1, 0], steps.actions[:, 0]
        outputs: Any = session.run(None, {OBSERVATIONS: observations, **parameters})
        with torch.no_grad():
            expected: Any = algorithm.policy(on_device(observations))
        expected = expected if isinstance(expected, tuple) else (expected,)
        for output, tensor in zip(outputs, expected, strict=True):
            assert output.dtype == np.float32
            np.testing.assert_allclose(output, tensor.cpu().numpy(), rtol=1e-5, atol=1e-5)
        logarithms = algorithm.log_probabilities(observations, actions, {})
        np.testing.assert_allclose(logarithms, told(outputs, actions), rtol=1e-4, atol=1e-4)


def told(outputs: list[NDArray[np.float32]], actions: NDArray[Any]) -> NDArray[np.float64]:
    """log pi(a | s), float64[B], from the outputs of a graph."""
    if len(outputs) == 1:
        logits = outputs[0].astype(float)
        chosen = logits[np.arange(len(actions)), actions]
        return np.asarray(chosen - np.log(np.exp(logits).sum(1)))
    _, mean, log_std = (each.astype(float) for each in outputs)
    noise = (actions - mean) / np.exp(log_std)
    return np.asarray((-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(1))


@pytest.mark.parametrize("squash", [False, True], ids=["clipped", "squashed"])
def test_actions_of_the_mean_are_within_their_bounds(name: str, squash: bool) -> None:
    algorithm = make(name, BOUNDED, squash=squash, log_std=-0.5)
    assert algorithm.sampling == ("squashed" if squash else "clipped")
    with torch.no_grad():
        algorithm.policy.head.weight.mul_(1000.0)
        observations = torch.randn(64, 3, device=DEVICE)
        actions, mean, log_std = algorithm.policy(observations)
    low, high = BOUNDED.actions.bounds()
    bounded = torch.tanh(mean) if squash else mean.clamp(-1, 1)
    assert float(mean.abs().max()) > 1.5
    expected = low + (high - low) * (bounded.cpu().numpy() + 1) / 2
    np.testing.assert_allclose(actions.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert log_std.shape == (64, 2)
    assert (log_std == -0.5).all()


def test_actions_of_several_axes_keep_their_shape(name: str) -> None:
    spec = replace(BOUNDED, actions=ArraySpec((2, 2), "float32", (-1.0,), (3.0,)))
    algorithm = trained(make(name, spec), spec)
    observations = np.zeros((5, 3), np.float32)
    assert greedy(algorithm, observations).shape == (5, 2, 2)
    assert algorithm.log_probabilities(observations, np.zeros((5, 2, 2), np.float32), {}).shape == (5,)


def test_probabilities_of_an_earlier_version_come_from_its_parameters(name: str, spec: EnvironmentSpec) -> None:
    algorithm, rng = make(name, spec, normalize_observations=True), np.random.default_rng(0)
    trained(algorithm, spec)
    algorithm.normalize(np.full(3, 0.5), np.full(3, 2.0))
    steps = random_trajectories(rng, spec, 64, 1)
    rows = steps.observations[:-1, 0], steps.actions[:, 0]
    earlier = {key: torch.from_numpy(value) for key, value in snapshot_parameters(algorithm.policy).items()}
    expected = algorithm.log_probabilities(*rows, {})
    np.testing.assert_array_equal(algorithm.log_probabilities(*rows, earlier), expected)
    algorithm.normalize(np.zeros(3), np.ones(3))
    trained(algorithm, spec)
    assert np.abs(algorithm.log_probabilities(*rows, {}) - expected).max() > 1e-3
    np.testing.assert_array_equal(algorithm.log_probabilities(*rows, earlier), expected)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_initial_weights(name: str, spec: EnvironmentSpec, orthogonal: bool) -> None:
    algorithm = make(name, spec, orthogonal=orthogonal, hidden_sizes=(64, 64))
    weights = [part.weight.detach() for part in algorithm.policy.modules() if isinstance(part, nn.Linear)]
    hidden = weights[1] @ weights[1].t()
    assert torch.allclose(hidden, 2 * torch.eye(64, device=DEVICE), atol=1e-4) == orthogonal
    head = torch.linalg.svdvals(weights[2])
    assert torch.allclose(head, torch.full_like(head, 0.01), atol=1e-5) == orthogonal
    value = algorithm.networks["critic"].network.head.weight.detach()
    assert (float(value.norm()) == pytest.approx(1.0, abs=1e-4)) == orthogonal


def test_a_users_network_keeps_its_initial_weights(name: str, spec: EnvironmentSpec) -> None:
    algorithm = make(name, spec, network="own_algorithms:half_frozen")
    biases = [part.bias for part in algorithm.policy.torso.modules() if isinstance(part, nn.Linear)]
    assert biases
    assert all(bias.any() for bias in biases)
    frozen = {key: value.clone() for key, value in algorithm.policy.named_parameters() if not value.requires_grad}
    assert frozen
    trained(algorithm, spec)
    assert all(torch.equal(dict(algorithm.policy.named_parameters())[key], value) for key, value in frozen.items())


@pytest.mark.parametrize("scheme", ["int8", "int8-static"])
def test_all_layers_of_the_policy_can_be_trained_as_actors_run_them(
    name: str, spec: EnvironmentSpec, scheme: str
) -> None:
    algorithm, rng = trained(make(name, spec), spec), np.random.default_rng(0)
    fake = FakeQuantization(algorithm.policy, export_policy_graph(algorithm.policy, spec))
    layers = tuple(key for key, module in algorithm.policy.named_modules() if isinstance(module, nn.Linear))
    fake.follow(scheme, [LayerReport(layer, INT8_PER_TENSOR) for layer in layers])
    assert set(fake.layers) == set(layers)
    rollout = random_rollout(rng, spec)
    fake.calibrate(on_device(rollout[0].observations).flatten(0, 1))
    seen, actions = rollout[0].observations[0], rollout[0].actions[0]
    before, exact = snapshot_parameters(algorithm.policy), algorithm.log_probabilities(seen, actions, {})
    with fake.applied():
        rounded = algorithm.log_probabilities(seen, actions, {})
        algorithm.learn(rollout, 0.0)
    assert 0 < float(np.abs(rounded - exact).max()) < 0.5
    after = snapshot_parameters(algorithm.policy)
    assert all(np.isfinite(value).all() for value in after.values())
    assert all(not np.array_equal(after[key], before[key]) for key in before if key.endswith((".weight", "log_std")))


# How they learn


def test_resets_have_no_effect_on_updates(name: str, spec: EnvironmentSpec) -> None:
    rollout = random_rollout(np.random.default_rng(0), spec)
    learned, others = make(name, spec), make(name, spec)
    expected = learned.learn(rollout, 0.0)
    assert expected.updates == learned.updates > 0
    changed = [
        steps.with_columns(
            actions=np.where(steps.valid.reshape(T, N, *[1] * (steps.actions.ndim - 2)), steps.actions, 0),
            rewards=np.where(steps.valid, steps.rewards, 100).astype(np.float32),
            log_probabilities=np.where(steps.valid, steps.log_probabilities, -50).astype(np.float32),
        )
        for steps in rollout
    ]
    actual = others.learn(changed, 0.0)
    assert actual.loss == pytest.approx(expected.loss, rel=1e-5)
    torch.testing.assert_close(others.state(), learned.state(), rtol=1e-5, atol=1e-6)


def test_a_rollout_of_resets_only_makes_no_update(name: str, spec: EnvironmentSpec) -> None:
    steps = random_trajectories(np.random.default_rng(0), spec, 1, 4)
    algorithm = make(name, spec)
    before = algorithm.state()["policy.parameters"]
    learned = algorithm.learn([steps.with_columns(valid=np.zeros((1, 4), np.bool_))], 0.0)
    assert (learned.loss, learned.updates) == (0.0, 0)
    assert torch.equal(algorithm.state()["policy.parameters"], before)


@pytest.mark.filterwarnings("error")
def test_a_rollout_that_cannot_be_written_is_read(name: str, spec: EnvironmentSpec) -> None:
    steps = random_trajectories(np.random.default_rng(0), spec)
    plain, frozen = make(name, spec), make(name, spec)
    expected = plain.learn([steps], 0.0)
    for column in steps.columns.values():
        column.flags.writeable = False
    assert frozen.learn([steps], 0.0) == expected


def test_segments_of_different_lengths_are_learned_together(name: str, spec: EnvironmentSpec) -> None:
    rng, algorithm = np.random.default_rng(0), make(name, spec)
    rollout = [random_trajectories(rng, spec, steps, 2) for steps in (16, 5, 16, 1)]
    learned = algorithm.learn(rollout, 0.0)
    assert learned.updates > 0
    assert all(math.isfinite(value) for value in (learned.loss, *learned.figures.values()))
    assert all(bool(value.isfinite().all()) for value in algorithm.state().values() if value.is_floating_point())


@pytest.mark.parametrize("normalize", [False, True], ids=["raw", "normalized"])
def test_networks_and_optimizers_stay_finite_with_the_largest_numbers(
    name: str, spec: EnvironmentSpec, normalize: bool
) -> None:
    rng, algorithm = np.random.default_rng(0), make(name, spec, normalize_observations=normalize)
    for _ in range(5):
        rollout = random_rollout(rng, spec)
        for steps in rollout:
            drawn = () if spec.sizes else (steps.actions, steps.log_probabilities)
            for column in (steps.observations, steps.rewards, *drawn):
                spoil(rng, column)
        learned = algorithm.learn(rollout, 0.0)
        assert all(math.isfinite(value) for value in (learned.loss, *learned.figures.values()))
    assert all(bool(value.isfinite().all()) for value in algorithm.state().values() if value.is_floating_point())


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "uint8"])
def test_observations_of_other_types_are_trained_on_as_float32(name: str, spec: EnvironmentSpec, dtype: str) -> None:
    whole = random_rollout(np.random.default_rng(0), replace(spec, observations=ArraySpec((3,), "uint8")))
    made = []
    for kind in ("float32", dtype):
        algorithm = make(name, replace(spec, observations=ArraySpec((3,), kind)))
        algorithm.learn([each.with_columns(observations=(each.observations % 3).astype(kind)) for each in whole], 0.0)
        made.append(algorithm)
    assert_equal_states(*made)


@pytest.mark.parametrize("mu", [-200.0, 0.5], ids=["hardly ever", "more than certain"])
def test_weights_of_extreme_probabilities_stay_bounded(name: str, mu: float) -> None:
    rollout = [
        each.with_columns(log_probabilities=np.full((T, N), mu, np.float32))
        for each in random_rollout(np.random.default_rng(0), DISCRETE)
    ]
    algorithm = make(name)
    learned = algorithm.learn(rollout, 0.0)
    assert learned.figures["truncated_share"] == pytest.approx(1.0 if mu < 0 else 0.0)
    assert learned.figures["mean_weight"] <= 2.0
    assert all(bool(value.isfinite().all()) for value in algorithm.state().values() if value.is_floating_point())


def test_the_learned_figures_are_of_the_rollout(name: str, spec: EnvironmentSpec) -> None:
    algorithm = make(name, spec)
    rollout = [as_acted(algorithm, each) for each in random_rollout(np.random.default_rng(0), spec)]
    figures = algorithm.learn(rollout, 0.0).figures
    assert {"policy_loss", "value_loss", "entropy", "truncated_share", "mean_weight", "explained_variance"} <= {
        *figures
    }
    entropy = math.log(3) if spec.sizes else 2 * 0.5 * math.log(2 * math.pi * math.e)
    assert figures["entropy"] == pytest.approx(entropy, abs=0.02)
    assert figures["mean_weight"] == pytest.approx(1.0, abs=0.1)


def test_wide_layers_multiply_in_bf16_on_request(name: str, spec: EnvironmentSpec) -> None:
    wide: dict[str, Any] = {"hidden_sizes": (128, 136), "value_sizes": (128, 136), "batch_size": 512, "epochs": 1}
    wide = wide if name == "ppo" else {key: value for key, value in wide.items() if key != "epochs"}
    made = [make(name, spec, learner={"precision": precision}, **wide) for precision in ("fp32", "bf16")]
    assert [algorithm.precision for algorithm in made] == ["fp32", "bf16"]
    for algorithm in made:
        rng = np.random.default_rng(0)
        algorithm.learn([random_trajectories(rng, spec, T, 64)], 0.0)
    fp32, bf16 = (algorithm.state()["policy.parameters"] for algorithm in made)
    assert not torch.equal(fp32, bf16)
    torch.testing.assert_close(fp32, bf16, rtol=0.1, atol=0.02)
    assert make(name, spec, learner={"precision": "bf16"}).precision == "fp32"
