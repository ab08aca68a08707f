"""Random shifts of images (DrQ, Kostrikov et al. 2020, arXiv 2004.13649; DrQ-v2, arXiv 2107.09645).

An image moves by whole pixels, at most `most` along each axis, and the pixels at its border fill the gap. This is a
random crop of the image after it was padded by replication. All frames of a stack move together. Each image of each
row moves by its own distance, also before and after a step (K = M = 1 of the paper).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorq.domain.leaves import Image
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.batch import Batch

# Columns of a batch with observations. The last one has windows [B, n - 1, ...].
_OBSERVATIONS = ("observations", "bootstrap_observations", "between_observations")


@dataclass(frozen=True)
class _Image:
    """An image of observations.

    frame: one frame of it. place: its numbers in the result of `Leaves.unpacked`; all for observations of one array.
    """

    frame: Image
    place: slice


class RandomShift:
    """Shifts the images in the observations of batches. Other arrays of an observation stay as they are.

    most: pixels; 0 changes nothing. setting: its name, for errors.

    Raises UserError if an observation has no image, or if `most` is more than half of an image's side.
    """

    def __init__(self, spec: EnvironmentSpec, most: int, setting: str) -> None:
        self._most = most
        self._has_leaves = bool(spec.leaves)
        self._images = list(_images(spec))
        if most and not self._images:
            raise UserError(
                f"{setting}: expected observations with images, got {spec.observations_text} in {spec.environment_id}; "
                f"leave --{setting.replace('_', '-')} out"
            )
        for image in self._images if most else ():
            if most > (largest := min(image.frame.height, image.frame.width) // 2):
                raise UserError(
                    f"{setting}: expected at most {largest} pixels, half of the shorter side of an image of "
                    f"{image.frame.pixels}, got {most}"
                )

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch with shifted images.

        generator: draws two numbers for each image and column, on the device of the batch.
        """
        if not self._most:
            return batch
        found = {}
        for name in _OBSERVATIONS:
            if name in batch:
                column = batch.columns[name]
                rows = column.flatten(0, 1) if name == "between_observations" else column
                found[name] = self._shifted(rows, generator).view(column.shape)
        return batch.with_columns(**found)

    def _shifted(self, observations: Tensor, generator: torch.Generator) -> Tensor:
        """Observations [B, ...] of one array, or float32[B, numbers] of `Leaves.unpacked`."""
        if not self._has_leaves:
            (image,) = self._images
            return self._moved(observations, image, generator)
        found = observations.clone()
        for image in self._images:
            own = observations[:, image.place]
            frames = own.reshape(len(own), -1, *image.frame.shape)
            found[:, image.place] = self._moved(frames, image, generator).flatten(1)
        return found

    def _moved(self, images: Tensor, image: "_Image", generator: torch.Generator) -> Tensor:
        """Images [B, ..., *frame], moved."""
        starts = torch.randint(2 * self._most + 1, (2, len(images)), generator=generator, device=images.device)
        if image.frame.layout == "channels-first":
            return shifted(images, starts, self._most)
        return shifted(images.movedim(-1, -3), starts, self._most).movedim(-3, -1).contiguous()


def _images(spec: EnvironmentSpec) -> Iterator[_Image]:
    """The images that policy or critics see."""
    if not spec.leaves:
        if spec.image is not None:
            axes = spec.observations.shape
            yield _Image(Image(1, *axes) if len(axes) == 2 else spec.frame(axes), slice(None))
        return
    start = 0
    for leaf in spec.leaves:
        stop = start + math.prod(spec.policy_observations.seen(leaf).shape)
        if leaf.kind == "image":
            yield _Image(spec.frame(leaf.shape), slice(start, stop))
        start = stop


def shifted(images: Tensor, starts: Tensor, most: int) -> Tensor:
    """Images [B, ..., height, width] after they were padded by `most` pixels and cropped to their size.

    starts: int64[2, B], the first row and the first column of each crop, from 0 to 2 * most. `most` moves nothing.
    """
    if images.device.type == "cpu":
        return torch.from_numpy(_shifted_rows(images.numpy(), (starts - most).tolist()))
    height, width = images.shape[-2:]
    # A view of all crops, [B, ..., starts, starts, height, width]. Only the chosen crops are copied.
    crops = _padded(images, most).unfold(-2, height, 1).unfold(-2, width, 1)
    rows = torch.arange(len(images), device=images.device)
    return crops[rows, ..., starts[0], starts[1], :, :]


def _shifted_rows(images: NDArray[Any], by: Sequence[Sequence[int]]) -> NDArray[Any]:
    """The same on a processor, where copies of whole images are many times faster than an index.

    by: the distances in rows and in columns, [2][B].
    """
    height, width = images.shape[-2:]
    found = np.empty_like(images)
    for image, moved, down, right in zip(images, found, *by, strict=True):
        rows, columns = _kept(height, down), _kept(width, right)
        moved[..., rows, columns] = image[..., _moved_by(rows, down), _moved_by(columns, right)]
        # The border fills the gap: the columns first, then whole rows.
        moved[..., rows, : columns.start] = moved[..., rows, columns.start, None]
        moved[..., rows, columns.stop :] = moved[..., rows, columns.stop - 1, None]
        moved[..., : rows.start, :] = moved[..., rows.start, None, :]
        moved[..., rows.stop :, :] = moved[..., rows.stop - 1, None, :]
    return found


def _kept(side: int, by: int) -> slice:
    """The pixels of a moved image that are not in the gap."""
    return slice(max(0, -by), side - max(0, by))


def _moved_by(pixels: slice, by: int) -> slice:
    return slice(pixels.start + by, pixels.stop + by)


def _padded(images: Tensor, by: int) -> Tensor:
    """The images with copies of their border around them. torch's own padding knows no bytes."""
    height, width = images.shape[-2:]
    rows, columns = slice(by, by + height), slice(by, by + width)
    padded = images.new_empty((*images.shape[:-2], height + 2 * by, width + 2 * by))
    padded[..., rows, columns] = images
    padded[..., :by, columns] = images[..., :1, :]
    padded[..., by + height :, columns] = images[..., -1:, :]
    padded[..., :by] = padded[..., by : by + 1]
    padded[..., by + width :] = padded[..., by + width - 1 : by + width]
    return padded
