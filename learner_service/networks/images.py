"""Convolutions for images: DQN's Atari network, and a small network for small images."""

from collections.abc import Sequence

from torch import Tensor, nn

from learner_service.kernels.linear import Linear

_FEATURES = 512
# The smallest image of which the three convolutions leave anything.
_SMALLEST = 36
_SMALL_CHANNELS, _SMALL_FEATURES = 16, 128


def image_layers(shape: Sequence[int], channels_last: bool) -> nn.Sequential:
    """The Nature CNN, or the small network for images below 36 x 36.

    shape: channels, height, width. forward: float32[B, *shape], or float32[B, height, width, channels] with
    `channels_last`, -> float32[B, features].
    """
    layers = nature_layers(shape) if min(shape[1:]) >= _SMALLEST else small_layers(shape)
    return nn.Sequential(ChannelsFirst(), *layers) if channels_last else layers


class ChannelsFirst(nn.Module):
    """Transposes images: float32[B, height, width, channels] -> float32[B, channels, height, width]."""

    def forward(self, images: Tensor) -> Tensor:
        """Return a view: the values stay where they are, which is how convolutions want them."""
        return images.permute(0, 3, 1, 2)


def nature_layers(shape: Sequence[int]) -> nn.Sequential:
    """Three convolutions and a linear layer: float32[B, *shape] -> float32[B, 512].

    They are those of Mnih et al., Nature 518, 2015, "Model architecture".

    shape: channels, height, width; [4, 84, 84] in the paper.
    """
    channels, height, width = shape
    for kernel, stride in ((8, 4), (4, 2), (3, 1)):
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 8, stride=4), nn.ReLU()),
        *(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3), nn.ReLU()),
        nn.Flatten(),
        *(Linear(64 * height * width, _FEATURES), nn.ReLU()),
    )


def small_layers(shape: Sequence[int]) -> nn.Sequential:
    """One convolution and a linear layer: float32[B, *shape] -> float32[B, 128].

    They are those of MinAtar's DQN (Young and Tian, arXiv 1903.03176, section 4). shape: channels, height, width.
    """
    channels, height, width = shape
    return nn.Sequential(
        *(nn.Conv2d(channels, _SMALL_CHANNELS, 3), nn.ReLU()),
        nn.Flatten(),
        *(Linear(_SMALL_CHANNELS * (height - 2) * (width - 2), _SMALL_FEATURES), nn.ReLU()),
    )
