"""Convolutions for images: DQN's Atari network, and a small network for small images."""

from collections.abc import Sequence

from torch import Tensor, nn

from learner_service.kernels.linear import Linear

# Units, kernel and stride of each convolution, then the units of the linear layer.
_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512
_SMALL = ((16, 3, 1),), 128
# The smallest image of which the three convolutions leave anything.
_SMALLEST = 36


class ChannelsFirst(nn.Module):
    """Transposes images: float32[B, height, width, channels] -> float32[B, channels, height, width]."""

    def forward(self, images: Tensor) -> Tensor:
        """Return a view: the values stay where they are, which is how convolutions want them."""
        return images.permute(0, 3, 1, 2)


def image_layers(shape: Sequence[int], channels_last: bool) -> nn.Sequential:
    """The Nature CNN (Mnih et al., Nature 518, 2015, "Model architecture"), with 512 features.

    Images below 36 x 36 get the network of MinAtar's DQN (Young and Tian, arXiv 1903.03176, section 4), with 128.

    shape: channels, height, width. forward: float32[B, *shape], or float32[B, height, width, channels] with
    `channels_last`, -> float32[B, features].
    """
    channels, height, width = shape
    convolutions, features = _NATURE if min(height, width) >= _SMALLEST else _SMALL
    layers: list[nn.Module] = [ChannelsFirst()] if channels_last else []
    for units, kernel, stride in convolutions:
        layers += [nn.Conv2d(channels, units, kernel, stride), nn.ReLU()]
        channels, height, width = units, (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return nn.Sequential(*layers, nn.Flatten(), Linear(channels * height * width, features), nn.ReLU())
