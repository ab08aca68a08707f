"""Stacks of images with several channels: the image that a policy gets, and its description."""

from dataclasses import replace

import pytest

from actorq.domain.environments import EnvironmentArguments
from actorq.domain.leaves import Image
from actorq.domain.spaces import ArraySpec, EnvironmentSpec, check_images
from actorq.errors import UserError

ACTIONS = ArraySpec((2,), "float32", (-1.0,), (1.0,))


def stack(shape: tuple[int, ...], frames: int = 3, dtype: str = "uint8", layout: str = "auto") -> EnvironmentSpec:
    arguments = EnvironmentArguments(image_layout=layout)  # type: ignore[arg-type]
    return EnvironmentSpec(
        "Pixels-v0", ArraySpec(shape, dtype), ACTIONS, frame_stack=frames, environment_arguments=arguments
    )


@pytest.mark.parametrize("shape", [(3, 84, 96), (84, 96, 3)])
def test_a_policy_gets_the_channels_of_all_frames(shape: tuple[int, ...]) -> None:
    spec = stack(shape)
    assert spec.image == Image(9, 84, 96)
    assert spec.has_stacked_images
    assert spec.observations_text == "3 stacked frames of 84 x 96 pixels with 3 channels"
    assert spec.vector is None
    assert EnvironmentSpec.from_json(spec.to_json()) == spec


def test_a_given_layout_is_followed() -> None:
    assert stack((10, 12, 11), layout="channels-last").image == Image(33, 10, 12)
    assert stack((10, 12, 11), layout="channels-first").image == Image(30, 12, 11)


def test_gray_frames_are_a_stack_without_channels() -> None:
    spec = stack((84, 84), 4)
    assert spec.image == Image(4, 84, 84)
    assert not spec.has_stacked_images
    assert spec.observations_text == "4 stacked frames of 84 x 84 pixels"


@pytest.mark.parametrize(("shape", "dtype"), [((3, 84, 84), "float32"), ((7,), "uint8"), ((2, 3, 8, 8), "uint8")])
def test_stacks_of_other_arrays_are_no_images(shape: tuple[int, ...], dtype: str) -> None:
    assert stack(shape, dtype=dtype).image is None


def test_an_image_without_a_stack_is_a_single_frame() -> None:
    spec = replace(stack((3, 84, 84)), frame_stack=1)
    assert spec.image == Image(3, 84, 84)
    assert not spec.has_stacked_images


def test_too_small_frames_are_refused() -> None:
    with pytest.raises(UserError, match=r"at least 3 x 3 pixels, got 2 x 2"):
        check_images(stack((3, 2, 2)))
