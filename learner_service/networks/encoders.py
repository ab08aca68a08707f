"""Encoders for observations of several arrays: one for each kind of leaf (actorq.domain.leaves)."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from actorq.domain.leaves import Image, Leaf, places
from actorq.domain.spaces import EnvironmentSpec
from learner_service.kernels.convolution import Conv2d
from learner_service.kernels.linear import Linear, keep_fp32

# Logit or value of an illegal choice: far below all others.
NOT_ALLOWED = -1e8
# Number of features for the numbers in an observation of several arrays.
_NUMBERS_FEATURES = 64
# Most features of a category. The number of features follows a rule of fast.ai's library for tables.
_MOST_FEATURES = 64
# Units, kernel and stride of each convolution, then the units of the linear layer.
_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512
_SMALL = ((16, 3, 1),), 128
# The smallest image that is large enough for the three convolutions.
_SMALLEST = 36

Observed = Tensor | Mapping[str, Tensor]


class ChannelsFirst(nn.Module):
    """Transposes images: float32[B, height, width, channels] -> float32[B, channels, height, width]."""

    def forward(self, images: Tensor) -> Tensor:
        """Return a view. The values do not move, because convolutions are fastest with this memory order."""
        return images.permute(0, 3, 1, 2)


class ImageLayers(nn.Sequential):
    """Convolutions of an image, then a linear layer with a ReLU."""

    @property
    def convolutions(self) -> tuple[nn.Module, int]:
        """The layers before the linear layer, and the number of their features."""
        linear = self[-2]
        assert isinstance(linear, nn.Linear)
        return nn.Sequential(*list(self)[:-2]), linear.in_features


def image_layers(image: Image) -> tuple[nn.Module, int]:
    """The Nature CNN (Mnih et al., Nature 518, 2015, "Model architecture"), and the number of its features, 512.

    Images below 36 x 36 get the network of MinAtar's DQN (Young and Tian, arXiv 1903.03176, section 4), with 128.

    forward: float32[B, *image.shape] -> float32[B, features].
    """
    shape = image.channels, image.height, image.width
    convolutions, features = _NATURE if min(shape[1:]) >= _SMALLEST else _SMALL
    layers: list[nn.Module] = [ChannelsFirst()] if image.layout == "channels-last" else []
    for units, kernel, stride in convolutions:
        layer = Conv2d(shape, units, kernel, stride)
        layers += [layer, nn.ReLU()]
        shape = layer.output
    return ImageLayers(*layers, nn.Flatten(), Linear(math.prod(shape), features), nn.ReLU()), features


class Encoders(nn.Module):
    """An encoder for each leaf. Concatenates the features for the hidden layers.

    Numbers get their own linear layer, which stays in float like a first layer. Images get `image_layers`, and
    categories get an embedding.

    own: the user's encoders for leaves, by name, each with the number of its features.
    forward: the result of `Leaves.encoded` -> float32[B, features].
    """

    def __init__(self, spec: EnvironmentSpec, own: Mapping[str, tuple[nn.Module, int]] | None = None) -> None:
        super().__init__()
        made = [(own or {}).get(leaf.name) or _encoder(spec, leaf) for leaf in spec.encoded]
        self.each = nn.ModuleList([module for module, _ in made])
        self.features = sum(features for _, features in made)

    def forward(self, leaves: Tensor | Sequence[Tensor]) -> Tensor:
        """Return the features. A single leaf needs no list."""
        leaves = (leaves,) if isinstance(leaves, Tensor) else leaves
        found = [encode(leaf) for encode, leaf in zip(self.each, leaves, strict=True)]
        return found[0] if len(found) == 1 else torch.cat(found, 1)


def _encoder(spec: EnvironmentSpec, leaf: Leaf) -> tuple[nn.Module, int]:
    if leaf.kind == "image":
        return image_layers(spec.image_of(leaf))
    if leaf.kind == "category":
        features = min(_MOST_FEATURES, round(1.6 * leaf.categories**0.56))
        return nn.Embedding(leaf.categories, features), features
    return nn.Sequential(keep_fp32(Linear(leaf.shape[0], _NUMBERS_FEATURES)), nn.ReLU()), _NUMBERS_FEATURES


class Leaves:
    """Extracts the leaves from observations.

    Observations are packed, uint8[B, bytes] or stacks [B, K, bytes], or are results of `unpacked`. The exported graph
    has an input for each leaf, so all methods also accept the inputs by name.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec
        self._seen = {leaf: spec.policy_observations.seen(leaf) for leaf in spec.leaves}
        self._numbers, start = dict[Leaf, slice](), 0
        for leaf, each in self._seen.items():
            self._numbers[leaf] = slice(start, start := start + math.prod(each.shape))

    def unpacked(self, observations: Tensor) -> Tensor:
        """All leaves as numbers, float32[B, numbers], because updates with views of bytes cannot be recorded.

        All of them are float32, or whole numbers that float32 represents exactly.
        """
        found = [self._tensor(leaf, observations) for leaf in self._spec.leaves]
        return torch.cat([each.reshape(len(each), -1).to(torch.float32) for each in found], 1)

    def encoded(self, observations: Observed) -> list[Tensor]:
        """The leaves that the network computes with, as float32. Images are divided by 255, with stacks as channels.

        Categories are int32[B].
        """
        return [self._float(leaf, self._tensor(leaf, observations)) for leaf in self._spec.encoded]

    def mask(self, observations: Observed) -> Tensor:
        """The mask of legal choices, bool[B, choices]."""
        assert self._spec.mask is not None
        mask = self._tensor(self._spec.mask, observations)
        return mask if mask.dtype == torch.bool else mask > 0

    def _tensor(self, leaf: Leaf, observations: Observed) -> Tensor:
        seen = self._seen[leaf]
        if not isinstance(observations, Tensor):
            return observations[leaf.input]
        if observations.dtype == torch.float32:
            return _shaped(observations[:, self._numbers[leaf]], seen.shape)
        packed = observations[..., places(self._spec.leaves)[leaf.name]]
        if self._spec.frame_stack > 1 and leaf.kind != "image":
            packed = packed[:, -1]
        return _shaped(packed.view(getattr(torch, leaf.dtype)), seen.shape)

    def _float(self, leaf: Leaf, values: Tensor) -> Tensor:
        if leaf.kind == "category":
            return values if values.dtype == torch.int32 else values.to(torch.int32)
        if values.dtype != torch.float32:
            values = values.to(torch.float32)
        if leaf.kind != "image":
            return values
        if leaf.dtype == "uint8":
            # A constant right before the first layer: in this form int8-static multiplies the bytes themselves.
            values = values / 255
        if self._spec.frame_stack == 1:
            return values
        if self._spec.frame(leaf.shape).layout == "channels-last":
            values = values.permute(0, 1, 4, 2, 3)
        return values.flatten(1, 2)


def _shaped(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """float32[B, ..., numbers] -> [B, *shape]."""
    if len(shape) == 1:
        return values
    return values.reshape(-1, *shape) if shape else values.squeeze(-1)


class AllowedChoices:
    """Lowers the values of illegal choices to `NOT_ALLOWED`. No effect without a mask."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._leaves = Leaves(spec) if spec.mask is not None else None

    def __call__(self, values: Tensor, observations: Observed) -> Tensor:
        """values: float32[B, choices]."""
        if self._leaves is None:
            return values
        return torch.where(self._leaves.mask(observations), values, NOT_ALLOWED)
