"""The interface of behavior policies, which choose the actions of all environments at each step."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from numpy.typing import NDArray

from actor_service.policies.policy import OnnxPolicy


class BehaviorPolicy(ABC):
    """Chooses the actions of N environments.

    columns: further data on the last actions for the segments, [N, ...] by the name of the column. If it has "actions",
        segments hold these instead of the environments' actions: the drawn values before they are clipped or squashed.
        Each call overwrites the arrays.
    """

    columns: Mapping[str, NDArray[Any]] = {}
    needs: Collection[str] = ()
    """The policy outputs that this behavior policy reads: roles, or names of outputs without a role."""

    @abstractmethod
    def __call__(self, policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
        """The environments' actions [N, *action] for stacked observations. The next call overwrites the array."""
