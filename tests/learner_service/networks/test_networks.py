"""What networks do with observations: frames, normalization, layers of a user's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from actorq.config.run_config import RunConfig
from actorq.domain.leaves import Image
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from learner_service.algorithms import make_algorithm
from learner_service.networks import QNetwork
from learner_service.networks.actions import ActionScale
from learner_service.networks.encoders import image_layers
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.observations import Observations, feature_layers
from tests.learner_service.learner_parts import SPEC

FRAMES = EnvironmentSpec("ALE/Pong-v5", ArraySpec((84, 84), "uint8"), ArraySpec((), "int64"), sizes=(6,), frame_stack=4)
STACKED = EnvironmentSpec("Stacked-v0", ArraySpec((3,), "float32"), ArraySpec((), "int64"), (2,), frame_stack=2)


def test_frames_are_divided_by_255_and_stay_images() -> None:
    frames = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    seen = Observations(FRAMES, Normalizer(FRAMES), layers=nn.Identity())(frames)
    assert seen.shape == (2, 4, 84, 84)
    torch.testing.assert_close(seen, frames.double().div(255).float())


def test_the_nature_cnn_has_the_papers_layers() -> None:
    layers, features = image_layers(Image(4, 84, 84))
    assert features == 512
    shapes = [tuple(parameter.shape) for parameter in layers.parameters() if parameter.ndim > 1]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136)]
    assert layers(torch.zeros(2, 4, 84, 84)).shape == (2, 512)


@pytest.mark.parametrize("size", [36, 37, 64, 100])
def test_the_nature_cnn_accepts_other_images_too(size: int) -> None:
    layers, _ = image_layers(Image(1, size, size + 3))
    assert layers(torch.zeros(2, 1, size, size + 3)).shape == (2, 512)


def of_images(*shape: int, dtype: str = "uint8") -> EnvironmentSpec:
    return EnvironmentSpec("Images-v0", ArraySpec(shape, dtype), ArraySpec((), "int64"), sizes=(5,))


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(UserError, match=r"3 x 3 .*2 x 8.*--network"):
        feature_layers(RunConfig(), of_images(2, 8, 1))


@pytest.mark.parametrize("shape", [(96, 96, 3), (40, 64, 4), (10, 10, 10), (10, 10, 4)])
def test_images_with_channels_last_give_the_outputs_of_their_transpose(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    last = make_algorithm(RunConfig(algorithm="dqn"), of_images(*shape)).policy
    spec = replace(FRAMES, observations=ArraySpec(shape[:2], "uint8"), frame_stack=shape[2], sizes=(5,))
    first = make_algorithm(RunConfig(algorithm="dqn"), spec).policy
    first.load_state_dict(dict(zip(first.state_dict(), last.state_dict().values(), strict=True)))
    images = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    assert last(images).shape == (3, 5)
    torch.testing.assert_close(last(images), first(images.permute(0, 3, 1, 2)))


def test_small_images_get_a_small_network() -> None:
    layers, features = feature_layers(RunConfig(), of_images(10, 10, 4, dtype="bool")) or (nn.Identity(), 0)
    shapes = [tuple(parameter.shape) for parameter in layers.parameters() if parameter.ndim > 1]
    assert (shapes, features) == ([(16, 4, 3, 3), (128, 1024)], 128)


def test_planes_of_bits_are_zeros_and_ones() -> None:
    planes = torch.rand(2, 10, 10, 4) < 0.5
    seen = Observations(of_images(10, 10, 4, dtype="bool"), layers=nn.Identity())(planes)
    torch.testing.assert_close(seen, planes.float())


def test_dqn_uses_the_nature_cnn_for_frames_by_default() -> None:
    policy = make_algorithm(RunConfig(environment="ALE/Pong-v5", algorithm="dqn"), FRAMES).policy
    assert policy(torch.zeros(3, 4, 84, 84, dtype=torch.uint8)).shape == (3, 6)
    assert any(isinstance(module, nn.Conv2d) for module in policy.modules())
    assert feature_layers(RunConfig(), SPEC) is None


def test_stacked_vectors_are_flattened_and_normalized_alike() -> None:
    normalizer = Normalizer(STACKED)
    normalizer.set(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 0.5]))
    observations = torch.tensor([[[1.0, 2.0, 3.0], [3.0, 6.0, 3.5]]])
    expected = torch.tensor([[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]])
    torch.testing.assert_close(Observations(STACKED, normalizer)(observations), expected)
    assert QNetwork(STACKED, (8,), dueling=True)(observations).shape == (1, 2)


def test_a_new_normalizer_only_clips_large_values() -> None:
    observations = torch.tensor([[0.5, -3.0, 9.0, -50.0]])
    assert Normalizer(SPEC)(observations).tolist() == [[0.5, -3.0, 9.0, -10.0]]


def test_a_constant_component_is_not_amplified() -> None:
    normalizer = Normalizer(SPEC)
    normalizer.set(np.full(4, 5.0), np.array([0.0, 1e-12, 1.0, 2.0]))
    normalized = normalizer(torch.tensor([[5.0, 5.0, 6.0, 5.0], [5.00001, 5.0, 6.0, 1e9]]))
    assert torch.isfinite(normalized).all()
    torch.testing.assert_close(normalized, torch.tensor([[0, 0, 1.0, 0], [0.1, 0, 1, 10]]), atol=0.01, rtol=0)


def test_bits_and_categories_are_not_normalized() -> None:
    normalizer = Normalizer(replace(SPEC, indicators=(1, 3)))
    normalizer.set(np.full(4, 0.5), np.full(4, 0.25))
    assert normalizer(torch.tensor([[1.0, 1.0, 0.0, 0.0]])).tolist() == [[2.0, 1.0, 0.0, -2.0]]


def test_frames_are_not_normalized_twice() -> None:
    dqn = make_algorithm(RunConfig(environment="ALE/Pong-v5", algorithm="dqn", normalize_observations=True), FRAMES)
    assert not any("normalizer" in name for name in dqn.policy.state_dict())


def test_actions_are_scaled_to_their_bounds_and_back() -> None:
    low, high = (-2.0, 0.0, 5.0, 1.0), (2.0, 1.0, 6.0, 9.0)
    spec = EnvironmentSpec("Boxes-v0", ArraySpec((3,), "float32"), ArraySpec((2, 2), "float32", low, high), ())
    scale = ActionScale(spec)
    squashed = torch.tensor([[-1.0, -1.0, -1.0, -1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.5, -0.5, 0.25]])
    actions = scale(squashed)
    assert actions.tolist() == [[[-2, 0], [5, 1]], [[2, 1], [6, 9]], [[0, 0.75], [5.25, 6]]]
    torch.testing.assert_close(scale.normalize(actions), squashed)
    assert not scale.state_dict(), "bounds are no parameters: they never change"
