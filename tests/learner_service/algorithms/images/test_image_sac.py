"""SAC from images: the update with a shared encoder, its state, and its policy in the quantized schemes."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorq.config.sections import GateConfig
from actorq.domain.policy import Checkpoint
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import scheme_named
from actorq.quantization.schemes.base import Plan
from learner_service.algorithms import GradientAlgorithm
from learner_service.algorithms.images.sac import SharedEncoderSAC, ShiftedSAC
from learner_service.algorithms.sac import SAC
from learner_service.batch import Batch
from learner_service.networks.images.shared_encoder import SharedEncoderCritic
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, snapshot_parameters
from quantizer_service.emission.fidelity import measure
from quantizer_service.emission.gate import judge
from quantizer_service.emission.reference import Reference
from tests.builders.structured import IMAGE, NUMBERS, packed, random_observations
from tests.learner_service.algorithms.algorithm_parts import (
    BATCH,
    BOUNDED,
    DEVICE,
    act,
    assert_equal_states,
    make,
    of_the_cpu,
    on_device,
    ones,
    random_batch,
)

# Small images have a small encoder.
SPEC = replace(BOUNDED, observations=ArraySpec((3, 12, 12), "uint8"), frame_stack=2)
# Large enough for the encoder of pictures.
PIXELS = replace(BOUNDED, observations=ArraySpec((3, 36, 36), "uint8"), frame_stack=3)
SEVERAL = replace(BOUNDED, observations=packed(NUMBERS, IMAGE))
RATE, LEARNING_RATE = 0.1, 1e-3


def made(spec: EnvironmentSpec = SPEC, **changes: Any) -> Any:
    settings = {"temperature": None, "shared_encoder": True, "random_shift": 2, "target_rate": RATE}
    return make("sac", spec, **{"learning_rate": LEARNING_RATE, **settings, **changes})


def batch_of(spec: EnvironmentSpec, size: int, seed: int = 0, n_step: int = 1) -> Batch:
    rng = np.random.default_rng(seed)
    if spec.leaves:
        seen = [random_observations(rng, spec, size) for _ in range(2)]
        batch = random_batch(rng, BOUNDED, size)
        return batch.with_columns(observations=seen[0], bootstrap_observations=seen[1])
    batch = random_batch(rng, spec, size)
    if n_step == 1:
        return batch
    windows = rng.integers(256, size=(size, n_step - 1, *spec.policy_observations.shape), dtype=np.uint8)
    discounts = np.full((size, n_step - 1), 0.9, np.float32)
    return batch.with_columns(between_observations=windows, between_discounts=discounts)


def test_the_settings_choose_the_class() -> None:
    assert type(made()) is SharedEncoderSAC
    assert type(made(shared_encoder=False)) is ShiftedSAC
    assert type(made(random_shift=0)) is SharedEncoderSAC
    assert type(made(random_shift=0, shared_encoder=False)) is SAC


def encoders(algorithm: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters of the policy's and of the critics' encoder."""
    policy, critics = algorithm.policy.encoder, algorithm.networks["critic"].network.features
    return ([each.detach().clone() for each in module.parameters()] for module in (policy, critics))  # type: ignore[return-value]


@pytest.mark.parametrize("spec", [SPEC, PIXELS, SEVERAL], ids=["small", "pixels", "several arrays"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_policy_has_the_encoder_that_the_critics_train(spec: EnvironmentSpec, layer_norm: bool) -> None:
    algorithm = made(spec, layer_norm=layer_norm)
    before, _ = encoders(algorithm)
    algorithm.update(batch_of(spec, 2 * BATCH), ones(2 * BATCH))
    policy, critics = encoders(algorithm)
    assert all(map(torch.equal, policy, critics))
    assert not all(map(torch.equal, policy, before))


@of_the_cpu
@pytest.mark.parametrize("n_step", [1, 3])
def test_an_update_is_that_of_sac_on_the_features(n_step: int) -> None:
    """Written out with autograd and torch's Adam."""
    algorithm = made(random_shift=0, n_step=n_step)
    policy, critics, target = copy.deepcopy(
        (algorithm.policy, algorithm.networks["critic"].network, algorithm.networks["critic"].target)
    )
    log_alpha = torch.zeros((), requires_grad=True)
    own = [*policy.torso[1].parameters(), *policy.head.parameters()]
    adams = [torch.optim.Adam(each, lr=LEARNING_RATE) for each in (critics.parameters(), own, [log_alpha])]
    drawn = torch.Generator().manual_seed(1)
    for update in range(3):
        batch, weights = batch_of(SPEC, BATCH, update, n_step), np.random.default_rng(update).random(BATCH, np.float32)
        losses = algorithm.update(batch, weights)
        errors = _updated(policy, critics, target, log_alpha, adams, batch, weights, drawn)
        np.testing.assert_allclose(losses.priorities, errors, rtol=1e-3, atol=1e-4)
    assert algorithm.state()["updates"] == 3
    trained = algorithm.networks["critic"]
    _assert_close(trained.network, critics)
    _assert_close(algorithm.policy.torso[1], policy.torso[1])
    # The encoder of the target is not used.
    _assert_close(trained.target.trunk, target.trunk)
    torch.testing.assert_close(algorithm.temperature.log_alpha.detach(), log_alpha.detach(), rtol=1e-3, atol=1e-5)


def _updated(
    policy: Any,
    critics: Any,
    target: Any,
    log_alpha: Tensor,
    adams: Sequence[torch.optim.Optimizer],
    batch: Batch,
    weights: NDArray[np.float32],
    drawn: torch.Generator,
) -> NDArray[np.float32]:
    columns = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
    alpha, rows = log_alpha.detach().exp(), len(weights)

    def noise(count: int) -> Tensor:
        return torch.randn((count, 2), generator=drawn)

    following_noise = noise(rows)
    between = noise(columns["between_discounts"].numel()) if "between_discounts" in columns else None
    with torch.no_grad():
        following = critics.encoded(columns["bootstrap_observations"])
        actions, log_probabilities = policy.sample(following, following_noise)
        soft = target.valued(following, actions).amin(0) - alpha * log_probabilities
        targets = columns["returns"] + columns["bootstrap_discounts"] * soft
        if between is not None:
            discounts = columns["between_discounts"]
            for step in range(discounts.shape[1]):
                # Noise is drawn row by row, step by step.
                features = critics.encoded(columns["between_observations"][:, step])
                _, logs = policy.sample(features, between.view(rows, -1, 2)[:, step])
                targets = targets - alpha * discounts[:, step] * logs
    features = critics.encoded(columns["observations"])
    errors = targets - critics.valued(features, policy.scale.normalize(columns["actions"]))
    _descend(adams[0], 0.5 * (torch.from_numpy(weights) * errors.square().sum(0)).mean())
    actions, log_probabilities = policy.sample(features.detach(), noise(rows))
    # Gradients reach the critics here too, but their optimizer has made its step.
    values = critics.valued(features.detach(), actions).amin(0)
    adams[2].zero_grad()
    temperature = -log_alpha * (log_probabilities.detach().mean() - 2)
    _descend(adams[1], (alpha * log_probabilities - values).mean() + temperature)
    adams[2].step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), critics.parameters(), strict=True):
            slow.lerp_(fast, RATE)
    found: NDArray[np.float32] = errors.detach().abs().mean(0).numpy()
    return found


def _descend(adam: torch.optim.Optimizer, loss: Tensor) -> None:
    adam.zero_grad()
    torch.autograd.backward(loss)
    adam.step()


def _assert_close(one: Any, other: Any) -> None:
    for (name, value), expected in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(value.detach(), expected.detach(), rtol=1e-2, atol=2e-4, msg=name)


@pytest.mark.parametrize(
    "changes",
    [{}, {"layer_norm": True}, {"n_step": 3}, {"shared_encoder": False}],
    ids=["plain", "layer norm", "windows", "separate encoders"],
)
@pytest.mark.parametrize("spec", [SPEC, PIXELS], ids=["small", "pixels"])
def test_recorded_updates_are_those_of_autograd(
    spec: EnvironmentSpec, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    recorded, by_autograd = made(spec, **changes), made(spec, **changes)
    assert isinstance(recorded, GradientAlgorithm)
    assert recorded.can_record
    by_autograd.can_record = False
    for update in range(3):
        batch = batch_of(spec, 2 * BATCH, update, changes.get("n_step", 1))
        found = [each.update(batch, ones(2 * BATCH)) for each in (recorded, by_autograd)]
        np.testing.assert_array_equal(found[0].priorities, found[1].priorities)
    assert_equal_states(recorded, by_autograd)
    assert [record.getMessage() for record in caplog.records if "not recorded" in record.getMessage()] == []


def test_a_resumed_run_repeats_every_shift_and_update() -> None:
    whole = made()
    whole.update(batch_of(SPEC, BATCH), ones())
    resumed = made(seed=5)
    resumed.load_state(whole.state())
    for algorithm in (whole, resumed):
        algorithm.update(batch_of(SPEC, 2 * BATCH, 1), ones(2 * BATCH))
    assert_equal_states(whole, resumed)


def test_shifts_change_updates_and_zero_pixels_do_not() -> None:
    def state(pixels: int) -> Tensor:
        algorithm = made(random_shift=pixels, shared_encoder=False)
        algorithm.update(batch_of(SPEC, BATCH), ones())
        found: Tensor = algorithm.state()["critic.parameters"]
        return found

    assert not torch.equal(state(0), state(1))
    assert not torch.equal(state(1), state(4))


def test_learns_to_act_on_the_bright_side_of_an_image() -> None:
    """One side of an image is bright. The left side wants one action, the right side the opposite one."""
    algorithm = made(learning_rate=3e-3, temperature=1e-3)
    low, high = SPEC.actions.bounds()
    rng, half = np.random.default_rng(0), (high - low) / 2

    def images(size: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        wants_left, is_left = rng.random(size) < 0.5, np.arange(12) < 6
        levels = np.where(wants_left[:, None] == is_left, 200, 30)[:, None, None, None, :]
        seen = levels + rng.integers(40, size=(size, *SPEC.policy_observations.shape))
        return seen.astype(np.uint8), np.where(wants_left, 1.0, -1.0).astype(np.float32)

    for _ in range(120):
        seen, wanted = images(2 * BATCH)
        actions = rng.uniform(low, high, (2 * BATCH, 2)).astype(np.float32)
        scaled = (actions - low) / half - 1
        batch = random_batch(rng, SPEC, 2 * BATCH).with_columns(
            observations=seen,
            bootstrap_observations=seen,
            actions=actions,
            returns=-np.square(scaled - 0.8 * wanted[:, None]).sum(1).astype(np.float32),
            bootstrap_discounts=np.zeros(2 * BATCH, np.float32),
        )
        algorithm.update(batch, ones(2 * BATCH))
    seen, wanted = images(64)
    acted = (act(algorithm, seen) - low) / half - 1
    assert np.abs(acted - 0.8 * wanted[:, None]).mean() < 0.3


def test_critics_learn_from_pictures_that_differ_in_few_pixels() -> None:
    """The place of a narrow bar is the reward. A unit of the encoder that becomes 0 for all pictures would stay so."""
    algorithm = made(PIXELS, learning_rate=1e-3, random_shift=0)
    rng, size = np.random.default_rng(0), 2 * BATCH

    def pictures() -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        places = rng.integers(2, 33, size)
        bars = np.abs(np.arange(36) - places[:, None]) < 2
        seen = np.where(bars[:, None, None, None, :], 200, 80) * np.ones((1, 3, 3, 36, 1))
        return seen.astype(np.uint8), (places / 8 - 2).astype(np.float32)

    errors = []
    for _ in range(100):
        seen, rewards = pictures()
        batch = random_batch(rng, PIXELS, size).with_columns(
            observations=seen,
            bootstrap_observations=seen,
            returns=rewards,
            bootstrap_discounts=np.zeros(size, np.float32),
        )
        errors.append(algorithm.update(batch, ones(size)).loss / rewards.var())
    assert np.mean(errors[-10:]) < 0.2


@of_the_cpu
def test_the_graph_of_the_policy_is_whole_and_computes_the_same() -> None:
    algorithm = made(PIXELS)
    algorithm.update(batch_of(PIXELS, BATCH), ones())
    policy = algorithm.policy
    graph = export_policy_graph(policy, PIXELS, takes_noise=True)
    rows = batch_of(PIXELS, 8, 3).observations
    found = Reference(Graph.parse(graph)).run(
        snapshot_parameters(policy), {"observations": rows, "noise": np.zeros((8, 2), np.float32)}
    )
    np.testing.assert_allclose(found["actions"], act(algorithm, rows), rtol=1e-4, atol=1e-5)


@of_the_cpu
@pytest.mark.parametrize("scheme", ["int8-static", "int8", "int8-weights"])
def test_the_policy_passes_the_gate(scheme: str) -> None:
    algorithm = made(PIXELS)
    # Smooth pictures, as of a camera.
    rng = np.random.default_rng(0)
    coarse = rng.integers(256, size=(128, 3, 3, 6, 6), dtype=np.uint8)
    rows = coarse.repeat(6, axis=-1).repeat(6, axis=-2)
    for update in range(5):
        algorithm.update(batch_of(PIXELS, BATCH, update), ones())
    graph = export_policy_graph(algorithm.policy, PIXELS, takes_noise=True)
    calibration = calibration_batch(rows, PIXELS, takes_noise=True, seed=0)
    checkpoint = Checkpoint(1, 1, graph.digest, snapshot_parameters(algorithm.policy), calibration, 0.0)
    plan = Plan(Graph.parse(graph), scheme_named(scheme), None)
    expected, statistics = Reference(plan.graph).observe(checkpoint.parameters, calibration, plan.observed)
    emission = plan.emit(checkpoint.parameters, statistics, "run", 1)
    verdict = judge(measure(emission, expected, calibration, graph.signature, 0), GateConfig())
    assert verdict.passed, verdict.reason
    in_integers = [layer.name for layer in emission.layers if layer.weights.startswith("int8")]
    convolutions = ["torso.0.0", "torso.0.2", "torso.0.4"]
    others = ["torso.1.0.0", "torso.1.1", "torso.1.3"]
    expected_layers = others if scheme == "int8" else [*convolutions, *others]
    assert in_integers == [*expected_layers, *(["head"] if scheme == "int8-weights" else [])]


def test_the_flops_of_a_shared_encoder_are_fewer() -> None:
    shared, separate = (made(PIXELS, shared_encoder=each).flops for each in (True, False))
    assert 0 < shared.update.now < 0.6 * separate.update.now
    assert shared.update.now == shared.update.dense


def test_observations_without_images_are_refused() -> None:
    with pytest.raises(UserError, match=r"^sac.shared_encoder: expected observations with images, got a vector of 3"):
        made(BOUNDED, random_shift=0)
    with pytest.raises(UserError, match=r"^sac.random_shift: expected observations with images, got a vector of 3"):
        made(BOUNDED, shared_encoder=False)


def test_critics_judge_actions_without_gradients_for_the_encoder() -> None:
    critics = made().networks["critic"].network
    assert isinstance(critics, SharedEncoderCritic)
    features = critics.encoded(on_device(batch_of(SPEC, 4).observations)).detach()
    actions = torch.zeros((4, 2), device=DEVICE, requires_grad=True)
    for parameter in critics.parameters():
        parameter.grad = None
    torch.autograd.backward(critics.judge(features, actions).sum())
    assert actions.grad is not None
    assert all(parameter.grad is None for parameter in critics.parameters())
