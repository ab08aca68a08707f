"""The first step of every network, observations to float32, and the layers for observations that are not vectors."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec, check_images
from actorq.errors import UserError
from learner_service.kernels.convolution import Conv2d, fractions
from learner_service.kernels.linear import mlp
from learner_service.kernels.torch_private import is_traced
from learner_service.networks.by_group.layers import HiddenByGroup
from learner_service.networks.encoders import Encoders, Leaves, Observed, image_layers
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.own_layers import ByName, Example, own_layers


class Observations(nn.Module):
    """Observations as float32. Bytes of images are divided by 255, other numbers are normalized. Flattens if asked.

    forward: [B, *policy_observations] of the environment's dtype -> float32[B, inputs], or of the same shape. For
        observations of several arrays: the list of them, for `Encoders`. If a network computes with only one array, or
        only with numbers, that array or all numbers together. Images for our own convolutions stay bytes
        (learner_service/kernels/convolution.py).
    layers: the layers that read the result, unless they are an MLP.
    """

    def __init__(
        self, spec: EnvironmentSpec, normalizer: Normalizer | None = None, layers: nn.Module | None = None
    ) -> None:
        super().__init__()
        flatten = layers is None
        self.normalizer = None if spec.vector is None else normalizer
        self._leaves = Leaves(spec) if spec.leaves else None
        # Layers of the user get each array on its own.
        self._are_several = need_encoders(spec) or (not flatten and len(spec.encoded) > 1)
        self._numbers = [i for i, leaf in enumerate(spec.encoded) if leaf.kind == "numbers"]
        self._sizes = [spec.encoded[i].shape[0] for i in self._numbers]
        # A stack of images becomes one image with the channels of all of them.
        self._is_stack = spec.has_stacked_images
        self._is_stack_of_last = self._is_stack and spec.frame(spec.observations.shape).layout == "channels-last"
        # Decided once, so that the exported graph has no needless cast or reshape.
        self._bytes = spec.image is not None and spec.observations.dtype == "uint8"
        self._cast = spec.observations.dtype != "float32"
        # oneDNN's convolutions are fastest with channels last: an update of the Nature CNN is a quarter faster. The
        # exported graph is the same.
        is_first = spec.image is not None and spec.image.layout == "channels-first"
        self._layout = torch.channels_last if is_first else torch.preserve_format
        self._flatten = flatten and len(spec.policy_observations.shape) != 1
        self._reader_divides = layers is not None and any(isinstance(layer, Conv2d) for layer in layers.modules())

    def forward(self, observations: Observed) -> Any:
        """Return the input of the first layer."""
        if self._leaves is not None:
            return self._of_leaves(self._leaves.encoded(observations))
        assert isinstance(observations, Tensor)
        if self._is_stack:
            observations = observations.permute(0, 1, 4, 2, 3) if self._is_stack_of_last else observations
            observations = observations.flatten(1, 2)
        if self._bytes:
            x = self._of_bytes(observations)
        else:
            x = observations.to(torch.float32, memory_format=self._layout) if self._cast else observations
        if self.normalizer is not None:
            x = self.normalizer(x)
        return x.flatten(1) if self._flatten else x

    def _of_bytes(self, images: Tensor) -> Tensor:
        """Bytes, divided by 255 unless a convolution of this project reads them."""
        if is_traced():
            # A constant right before the first layer: in this form int8-static multiplies the bytes themselves.
            return images.to(torch.float32) / 255
        images = images.to(images.dtype, memory_format=self._layout)
        return images if self._reader_divides else fractions(images)

    def _of_leaves(self, found: list[Tensor]) -> Tensor | list[Tensor]:
        if self.normalizer is not None and self._numbers:
            numbers = self.normalizer(_joined([found[i] for i in self._numbers]))
            if not self._are_several:
                return numbers  # type: ignore[no-any-return]
            for i, part in zip(self._numbers, _split(numbers, self._sizes), strict=True):
                found[i] = part
        return found if self._are_several else _joined(found)


class FeatureNetwork(nn.Module):
    """A network whose own layers follow the user's layers, if there are any.

    layers: the user's layers, with the number of their features.
    inputs: number of values that the network's own layers get from `seen`.
    """

    def __init__(
        self, spec: EnvironmentSpec, normalizer: Normalizer | None = None, layers: tuple[nn.Module, int] | None = None
    ) -> None:
        super().__init__()
        self.observe = Observations(spec, normalizer, layers and layers[0])
        self.features, self.inputs = layers or (nn.Identity(), input_size(spec))

    def seen(self, observations: Tensor) -> Tensor:
        """The features of observations, float32[B, inputs]."""
        features: Tensor = self.features(self.observe(observations))
        return features


def has_images(spec: EnvironmentSpec) -> bool:
    """Whether the observations of a policy, or of critics for their spec, are or contain images."""
    return spec.image is not None or any(leaf.kind == "image" for leaf in spec.encoded)


def need_encoders(spec: EnvironmentSpec) -> bool:
    """Whether observations are several arrays, or a category: neither numbers nor an image alone."""
    kinds = [leaf.kind for leaf in spec.encoded]
    return bool(spec.leaves) and kinds != ["image"] and {*kinds} != {"numbers"}


def input_size(spec: EnvironmentSpec) -> int:
    """Numbers in one of a network's observations without encoders."""
    if not spec.leaves:
        return math.prod(spec.policy_observations.shape)
    return sum(math.prod(leaf.shape) for leaf in spec.encoded)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _split(joined: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    return (joined,) if len(sizes) == 1 else torch.split(joined, sizes, 1)


def hidden_layers(
    spec: EnvironmentSpec,
    hidden_sizes: Sequence[int],
    layers: tuple[nn.Module, int] | None,
    activation: type[nn.Module] = nn.ReLU,
) -> tuple[nn.Module, int]:
    """The layers before a head, with the number of their features.

    They are an MLP, the given `layers` instead, or an MLP after the encoders of several arrays. With groups of agents,
    an MLP for each group.
    """
    if spec.groups:
        return HiddenByGroup(spec, input_size(spec), hidden_sizes, activation), hidden_sizes[-1]
    if layers is None:
        return mlp((input_size(spec), *hidden_sizes), activation), hidden_sizes[-1]
    encoders, features = layers
    if not isinstance(encoders, Encoders):
        return layers
    return nn.Sequential(encoders, *mlp((features, *hidden_sizes), activation)), hidden_sizes[-1]


def feature_layers(config: RunConfig, spec: EnvironmentSpec) -> tuple[nn.Module, int] | None:
    """Layers for observations that a linear layer cannot process, with the number of their features; None if not
    needed.

    They are the user's layers (`config.network`), encoders of several arrays, or convolutions for images. Each call
    makes a new instance, because policy, critics and targets need their own. forward: float32[B, *policy_observations]
    -> float32[B, features]; for several arrays the list of them. Raises UserError when a user's function does not
    return such a module.
    """
    if config.network is not None:
        return _whole_network(config.network, spec)
    if need_encoders(spec) or _own_encoders(config, spec):
        check_images(spec)
        return _encoders(config, spec)
    if spec.image is not None:
        check_images(spec)
        return image_layers(spec.image)
    return None


def _encoders(config: RunConfig, spec: EnvironmentSpec) -> tuple[nn.Module, int]:
    """An encoder for each array: the user's encoder if there is one (`config.encoders`)."""
    by_name, own = {leaf.name: leaf for leaf in spec.encoded}, {}
    for name, path in _own_encoders(config, spec).items():
        leaf = by_name[name]
        example = Example({"": spec.seen_shape(leaf)}, leaf.kind == "category")
        own[name] = own_layers(f"encoders: {name}", path, leaf, example)
    encoders = Encoders(spec, own)
    return encoders, encoders.features


def _own_encoders(config: RunConfig, spec: EnvironmentSpec) -> dict[str, str]:
    """The user's encoders of the arrays that a network of this spec sees. Raises UserError for an unknown array."""
    all_names = [leaf.name for leaf in spec.for_critics.encoded]
    if unknown := sorted(config.encoders.keys() - {*all_names}):
        known = ", ".join(all_names) or "one array without a name, for which --network makes layers"
        raise UserError(f"encoders: {unknown[0]} is not an array of an observation; expected one of {known}")
    seen = {leaf.name for leaf in spec.encoded}
    return {name: path for name, path in config.encoders.items() if name in seen}


def _whole_network(path: str, spec: EnvironmentSpec) -> tuple[nn.Module, int]:
    """The user's layers for a whole observation."""
    if not spec.leaves:
        shape = spec.policy_observations.shape if spec.image is None else spec.image.shape
        return own_layers("network", path, spec, Example({"": shape}))
    shapes = {leaf.name: spec.seen_shape(leaf) for leaf in spec.encoded}
    categories = any(leaf.kind == "category" for leaf in spec.encoded)
    layers, features = own_layers("network", path, spec, Example(shapes, categories))
    return ByName(layers, tuple(shapes)), features
