"""The interface of explorers, which choose the actions of all environments at each step."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.policies.policy import OnnxPolicy


@dataclass(frozen=True)
class ActionColumns:
    """What segments hold about an explorer's last actions besides the actions; None for columns that they lack.

    Each call of the explorer overwrites the arrays.

    greedy: [N, *action], the policy's actions without noise; during random steps the random actions.
    drawn: [N, *action], the drawn values before they are clipped or squashed. Segments hold them as their actions.
    log_probabilities: float32[N], logarithm of the probability, or density, with which each action was drawn.
    """

    greedy: NDArray[Any] | None = None
    drawn: NDArray[np.float32] | None = None
    log_probabilities: NDArray[np.float32] | None = None


class Explorer(ABC):
    """Chooses the actions of N environments."""

    columns = ActionColumns()

    @abstractmethod
    def __call__(self, policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
        """The environments' actions [N, *action] for stacked observations. The next call overwrites the array."""
