"""The interface of behavior policies, which choose the actions of all environments at each step."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from numpy.typing import NDArray

from actor_service.policies.policy import OnnxPolicy


class BehaviorPolicy(ABC):
    """Chooses the actions of N environments.

    columns: what segments hold about the last actions besides the actions, [N, ...] by the name of the column. With
        "actions", segments hold these instead of the environments' actions: the drawn values before they are clipped or
        squashed. Each call overwrites the arrays.
    """

    columns: Mapping[str, NDArray[Any]] = {}
    needs: Collection[str] = ()
    """Roles of the policy's outputs that it reads, or names of outputs without a role."""

    @abstractmethod
    def __call__(self, policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
        """The environments' actions [N, *action] for stacked observations. The next call overwrites the array."""
