"""The convolutions of DQN's Atari network (Mnih et al., Nature 518, 2015, "Model architecture")."""

from collections.abc import Sequence

from torch import nn

from actorq.errors import UserError
from learner_service.kernels.linear import Linear

_FEATURES = 512
# The smallest height and width that leave an output after three convolutions.
_SMALLEST = 36


def nature_layers(shape: Sequence[int]) -> nn.Sequential:
    """Three convolutions and a linear layer: float32[B, *shape] -> float32[B, 512].

    shape: channels, height, width; [4, 84, 84] in the paper. Raises UserError when the image is too small.
    """
    channels, height, width = shape
    if min(height, width) < _SMALLEST:
        raise UserError(f"frames must be at least {_SMALLEST} x {_SMALLEST} for the Nature CNN, got {height} x {width}")
    for kernel, stride in ((8, 4), (4, 2), (3, 1)):
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 8, stride=4), nn.ReLU()),
        *(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3), nn.ReLU()),
        nn.Flatten(),
        *(Linear(64 * height * width, _FEATURES), nn.ReLU()),
    )
