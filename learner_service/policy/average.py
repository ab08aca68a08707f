"""The average of the policies that were published."""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PolicyAverage:
    """Exponential moving average of a policy's parameters over its published versions (Polyak and Juditsky 1992).

    A policy with a deterministic gait may fail after a few updates and be good again after a few more. The average of
    such policies does not fail (docs/decisions/0047-averaged-policies.md).

    weight: of the average before, from 0 to below 1; 0 for no average.
    names: the parameters to average. Others, such as statistics of observations, stay as they are.
    """

    def __init__(self, weight: float, names: Collection[str]) -> None:
        self._weight = weight
        self._names = frozenset(names)
        self._average: dict[str, NDArray[Any]] = {}

    def __call__(self, parameters: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The average, with the given parameters as its newest ones. Returns arrays that nobody changes later."""
        if not self._weight:
            return parameters
        averaged = dict(parameters)
        for name in self._names:
            new, before = parameters[name], self._average.get(name, parameters[name])
            averaged[name] = new + np.float32(self._weight) * (before - new)
        self._average = averaged
        return averaged
