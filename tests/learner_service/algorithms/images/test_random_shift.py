"""Random shifts, compared with padding and cropping in NumPy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actorq.domain.leaves import Leaf, views
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from learner_service.algorithms.images.random_shift import RandomShift, shifted
from learner_service.batch import Batch
from learner_service.networks.encoders import Leaves
from tests.builders.structured import CATEGORY, IMAGE, NUMBERS, PLANES, critics, packed, random_observations
from tests.learner_service.algorithms.algorithm_parts import BOUNDED, DEVICE, on_device

ROWS = 6


def spec_of(shape: tuple[int, ...], frame_stack: int = 1, dtype: str = "uint8") -> EnvironmentSpec:
    return replace(BOUNDED, observations=ArraySpec(shape, dtype), frame_stack=frame_stack)


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def cropped(image: NDArray[Any], start: tuple[int, int], most: int) -> NDArray[Any]:
    """One image [..., height, width], padded by its border and cropped."""
    height, width = image.shape[-2:]
    padded = np.pad(image, [(0, 0)] * (image.ndim - 2) + [(most, most)] * 2, mode="edge")
    return padded[..., start[0] : start[0] + height, start[1] : start[1] + width]


def batch_of(observations: NDArray[Any], **further: NDArray[Any]) -> Batch:
    columns = {"observations": observations, "bootstrap_observations": observations, **further}
    return Batch(**{name: on_device(column) for name, column in columns.items()})


@pytest.mark.parametrize("shape", [(ROWS, 9, 11), (ROWS, 2, 9, 11), (ROWS, 3, 2, 9, 11)])
@pytest.mark.parametrize("dtype", ["uint8", "bool", "float32"])
def test_a_shift_is_a_crop_of_the_padded_image(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=shape).astype(dtype)
    starts = rng.integers(5, size=(2, ROWS))
    found = shifted(on_device(images), on_device(starts), 2).cpu().numpy()
    assert found.dtype == images.dtype
    for row in range(ROWS):
        start = int(starts[0, row]), int(starts[1, row])
        np.testing.assert_array_equal(found[row], cropped(images[row], start, 2))
    same = shifted(on_device(images), torch.full((2, ROWS), 2, device=DEVICE), 2)
    np.testing.assert_array_equal(same.cpu().numpy(), images)


@pytest.mark.parametrize(
    ("spec", "last"),
    [
        (spec_of((3, 9, 11)), False),
        (spec_of((9, 11, 3)), True),
        (spec_of((9, 11), 4), False),
        (spec_of((3, 9, 11), 2), False),
        (spec_of((9, 11, 3), 2), True),
    ],
    ids=["channels first", "channels last", "gray stack", "stack", "stack of channels last"],
)
def test_all_frames_and_channels_of_a_row_move_together(spec: EnvironmentSpec, last: bool) -> None:
    shape = spec.policy_observations.shape
    # Each pixel has its place as its value, the same in all frames and channels.
    places = np.arange(9 * 11, dtype=np.uint8).reshape(9, 11)
    images = np.broadcast_to(places[..., None] if last else places, (ROWS, *shape)).copy()
    found = RandomShift(spec, 2, "shift")(batch_of(images), generator()).observations.cpu().numpy()
    assert found.shape == images.shape
    planes = found if not last else np.moveaxis(found, -1, -3)
    planes = planes.reshape(ROWS, -1, 9, 11)
    crops = [cropped(places, (row, column), 2) for row in range(5) for column in range(5)]
    for row in planes:
        assert all(np.array_equal(plane, row[0]) for plane in row)
        assert any(np.array_equal(row[0], crop) for crop in crops)
    assert len({row[0].tobytes() for row in planes}) > 1


def test_each_column_and_each_row_moves_by_its_own_distance() -> None:
    spec = spec_of((3, 9, 11))
    images = np.random.default_rng(0).integers(256, size=(32, 3, 9, 11), dtype=np.uint8)
    between = np.repeat(images[:, None], 2, axis=1)
    found = RandomShift(spec, 4, "shift")(batch_of(images, between_observations=between), generator())
    assert found.between_observations.shape == between.shape
    first, second = found.observations.cpu().numpy(), found.bootstrap_observations.cpu().numpy()
    windows = found.between_observations.cpu().numpy()
    assert sum(map(np.array_equal, first, second)) < 4
    assert sum(map(np.array_equal, windows[:, 0], windows[:, 1])) < 4


def test_the_same_generator_gives_the_same_shifts() -> None:
    spec = spec_of((3, 9, 11))
    batch = batch_of(np.random.default_rng(0).integers(256, size=(ROWS, 3, 9, 11), dtype=np.uint8))
    shift = RandomShift(spec, 4, "shift")
    one, same, other = (shift(batch, generator(seed)).observations for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_zero_pixels_change_nothing_and_draw_nothing() -> None:
    spec, drawn = spec_of((3, 9, 11)), generator()
    batch = batch_of(np.zeros((ROWS, 3, 9, 11), np.uint8))
    assert RandomShift(spec, 0, "shift")(batch, drawn) is batch
    assert torch.equal(drawn.get_state(), generator().get_state())


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_only_the_images_of_several_arrays_are_shifted(frame_stack: int) -> None:
    leaves: tuple[Leaf, ...] = (NUMBERS, IMAGE, CATEGORY, critics(PLANES))
    spec = replace(BOUNDED, observations=packed(*leaves), frame_stack=frame_stack)
    depth = () if frame_stack == 1 else (frame_stack,)
    seen = random_observations(np.random.default_rng(0), replace(spec, frame_stack=1), ROWS, *depth)
    unpacked = Leaves(spec).unpacked(torch.from_numpy(seen)).numpy()
    found = RandomShift(spec, 2, "shift")(batch_of(unpacked), generator()).observations.cpu().numpy()
    start, moved = 0, {}
    for leaf in spec.leaves:
        shape = spec.policy_observations.seen(leaf).shape
        stop = start + int(np.prod(shape, dtype=np.int64))
        before, after = (array[:, start:stop].reshape(ROWS, -1, *leaf.shape) for array in (unpacked, found))
        moved[leaf.name] = not np.array_equal(before, after)
        if leaf.kind == "image":
            for row in range(ROWS):
                frames = [np.moveaxis(array[row], -1, -3) for array in (before, after)]
                crops = [cropped(frames[0], (y, x), 2) for y in range(5) for x in range(5)]
                assert any(np.array_equal(frames[1], crop) for crop in crops)
        start = stop
    assert moved == {leaf.name: leaf.kind == "image" for leaf in spec.leaves}
    assert views(spec.leaves, seen)


def test_observations_without_images_are_refused() -> None:
    with pytest.raises(UserError, match=r"^sac.random_shift: expected observations with images, got a vector of 3 num"):
        RandomShift(BOUNDED, 4, "sac.random_shift")
    RandomShift(BOUNDED, 0, "sac.random_shift")


@pytest.mark.parametrize("shape", [(3, 9, 11), (11, 9, 3)])
def test_a_shift_of_more_than_half_an_image_is_refused(shape: tuple[int, ...]) -> None:
    RandomShift(spec_of(shape), 4, "sac.random_shift")
    with pytest.raises(UserError, match=r"^sac.random_shift: expected at most 4 pixels, .* got 5$"):
        RandomShift(spec_of(shape), 5, "sac.random_shift")
