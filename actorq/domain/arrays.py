"""What arrays of actors may hold."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

# Largest absolute value of an observation, a reward and a drawn action. The squares of gradients, which Adam keeps in
# float32, stay finite (docs/decisions/0051-numbers-of-actors.md).
LARGEST_NUMBER = 1e9


def within_numbers(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers are from -LARGEST_NUMBER to LARGEST_NUMBER, bool of their shape; NaN is not."""
    return (numbers >= -LARGEST_NUMBER) & (numbers <= LARGEST_NUMBER)
