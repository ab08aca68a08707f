"""Draws actions from the distribution that a policy outputs, with their log probabilities.

The environments wait for their actions at each step. All arrays are therefore made once, and most operations use
contiguous arrays of one dtype, which numpy starts fastest.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.acting.behavior import BehaviorPolicy
from actor_service.policies.policy import OnnxPolicy
from actorq.domain.columns import LOG_PROBABILITIES
from actorq.domain.signature import Role
from actorq.domain.spaces import EnvironmentSpec

# Up to this number of actions, a product with a triangular matrix is faster than a cumulative sum.
_FEW_ACTIONS = 64

# Number of rows that are drawn at once. One large draw costs as much as a draw of one row.
_ROWS = 128
# Number of counters that each chunk of rows reserves, far more than a chunk needs.
_COUNTERS_BITS = 64


class CountedDraws:
    """Rows of random numbers from a counter-based generator: Philox, Salmon et al., SC 2011.

    Row t depends only on the key and on t, not on earlier rows.
    """

    def __init__(
        self, key: int, rows: tuple[int, ...], dtype: type[np.floating[Any]], fill: Callable[..., object]
    ) -> None:
        """key: below 2^64. rows: shape of a row. fill: method of np.random.Generator that fills an array."""
        self._key = key
        self._fill = fill
        self._rows = np.zeros((_ROWS, *rows), dtype)
        self._chunk = -1

    def row(self, count: int) -> NDArray[Any]:
        """Row number `count`, from 0 on. A call for another chunk of rows overwrites the array."""
        chunk, row = divmod(count, _ROWS)
        if chunk != self._chunk:
            philox = np.random.Philox(counter=chunk << _COUNTERS_BITS, key=self._key)
            self._fill(np.random.Generator(philox), dtype=self._rows.dtype, out=self._rows)
            self._chunk = chunk
        drawn: NDArray[Any] = self._rows[row]
        return drawn


class CategoricalSampler(BehaviorPolicy):
    """Draws discrete actions from the softmax of a policy's logits, by the inverse of the distribution function.

    log mu(a) = logits[a] - log(sum(exp(logits))), computed in float64. It is never above 0.
    """

    needs = (Role.LOGITS,)

    def __init__(self, spec: EnvironmentSpec, environments: int, rng: np.random.Generator) -> None:
        count, choices = environments, spec.acting_size
        self._draws = CountedDraws(_key(rng), (count,), np.float64, np.random.Generator.random)
        self._steps = 0
        self._actions = np.zeros(count, np.int64)
        self._first = np.arange(count) * choices
        self._index = np.zeros(count, np.int64)
        # Logits; later logits minus the row's largest logit, so at most 0.
        self._logits, self._weights = np.zeros((count, choices)), np.zeros((count, choices))
        self._largest = np.zeros(count)
        # The product with this matrix sums the weights up to each action.
        self._up_to = np.triu(np.ones((choices, choices))) if choices <= _FEW_ACTIONS else None
        self._sums = np.zeros((count, choices))
        self._totals = self._sums[:, -1]
        self._limits, self._is_beyond = np.zeros(count), np.zeros((count, choices), np.bool_)
        self._one_a_row = self._largest[:, None], self._limits[:, None]
        self._log_totals, self._taken = np.zeros(count), np.zeros(count)
        self._told = np.zeros(count, np.float32)
        self.columns = {LOG_PROBABILITIES: self._told}

    def __call__(self, policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
        """Actions int64[N]."""
        return self.draw(policy(observations))

    def draw(self, told: NDArray[np.float32]) -> NDArray[np.int64]:
        """Actions int64[N] of logits float32[N, actions]. The next call overwrites the array."""
        actions, logits, sums, index = self._actions, self._logits, self._sums, self._index
        largest, limits = self._one_a_row
        np.copyto(logits, told)
        # The maximum, computed without a reduction along an axis, because numpy starts such a reduction slowly.
        logits.argmax(axis=1, out=actions)
        np.add(actions, self._first, out=index)
        logits.take(index, out=self._largest, mode="clip")
        np.subtract(logits, largest, out=logits)
        np.exp(logits, out=self._weights)
        if self._up_to is not None:
            np.dot(self._weights, self._up_to, out=sums)
        else:
            np.cumsum(self._weights, axis=1, out=sums)
        # Uniform numbers are below 1, so each limit is below the last sum of its row.
        np.multiply(self._draws.row(self._steps), self._totals, out=self._limits)
        self._steps += 1
        np.greater(sums, limits, out=self._is_beyond)
        self._is_beyond.argmax(axis=1, out=actions)
        np.add(actions, self._first, out=index)
        logits.take(index, out=self._taken, mode="clip")
        np.log(self._totals, out=self._log_totals)
        np.subtract(self._taken, self._log_totals, out=self._taken)
        np.copyto(self._told, self._taken, casting="same_kind")
        return actions


class GaussianSampler(BehaviorPolicy):
    """Draws continuous actions u = mean + exp(log_std) * noise, and clips or squashes them to their bounds.

    log mu(u) is the sum over components of the logarithms of normal densities. The density belongs to u and not to the
    environment's action. For tanh the two differ by the Jacobian determinant at u, which cancels in ratios of policies.

    squash: apply tanh to u instead of clipping it.
    """

    needs = (Role.MEAN, Role.LOG_STD)

    def __init__(self, spec: EnvironmentSpec, environments: int, squash: bool, rng: np.random.Generator) -> None:
        low, high = (bound.reshape(-1) for bound in spec.actions.bounds())
        self._squash = squash
        self._steps = 0
        shape = (environments, len(low))
        self._draws = CountedDraws(_key(rng), shape, np.float32, np.random.Generator.standard_normal)
        # The bounds are halved first, because their sum can overflow. Full arrays avoid slower broadcasting.
        self._middle, self._half, self._low, self._high = (
            np.ascontiguousarray(np.broadcast_to(each, shape))
            for each in (high / 2 + low / 2, high / 2 - low / 2, low, high)
        )
        self._actions, self._drawn, self._std, self._costs = (np.zeros(shape, np.float32) for _ in range(4))
        self._ones = np.ones(len(low), np.float32)
        self._normalization = np.float32(0.5 * math.log(2 * math.pi) * len(low))
        self._told = np.zeros(environments, np.float32)
        self._shaped = self._actions.reshape(environments, *spec.actions.shape)
        self.columns = {"actions": self._drawn.reshape(self._shaped.shape), LOG_PROBABILITIES: self._told}

    def __call__(self, policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
        """Actions float32[N, *action] within their bounds."""
        policy(observations)
        return self.draw(policy.outputs[Role.MEAN], policy.outputs[Role.LOG_STD])

    def draw(self, mean: NDArray[np.float32], log_std: NDArray[np.float32]) -> NDArray[np.float32]:
        """Actions float32[N, *action] from the mean and the log standard deviation, float32[N, components]."""
        drawn, costs = self._drawn, self._costs
        np.exp(log_std, out=self._std)
        np.multiply(self._draws.row(self._steps), self._std, out=drawn)
        np.add(drawn, mean, out=drawn)
        self._steps += 1
        # The noise is recomputed from the rounded sum, because the learner recomputes it in the same way.
        np.subtract(drawn, mean, out=costs)
        np.divide(costs, self._std, out=costs)
        np.multiply(costs, costs, out=costs)
        np.multiply(costs, 0.5, out=costs)
        np.add(costs, log_std, out=costs)
        np.dot(costs, self._ones, out=self._told)
        np.add(self._told, self._normalization, out=self._told)
        np.negative(self._told, out=self._told)
        actions = self._actions
        np.multiply(np.tanh(drawn, out=actions) if self._squash else drawn, self._half, out=actions)
        np.add(actions, self._middle, out=actions)
        np.maximum(actions, self._low, out=actions)
        np.minimum(actions, self._high, out=actions)
        return self._shaped


def _key(rng: np.random.Generator) -> int:
    return int(rng.integers(2**64, dtype=np.uint64))
