"""Samples rows of the store, uniformly or in proportion to their priorities."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from actorq.errors import ConflictError, InvalidInputError
from learner_service.replay.storage.columns import VALID
from learner_service.replay.storage.store import Inserted, ReplayStore
from learner_service.replay.sum_tree import SumTree

# After 32 rounds almost all draws are done, even if only a quarter of the rows is valid.
_REJECTION_ROUNDS = 32
_EPSILON = np.float32(1e-6)
# The weight of an old row beside that of the newest.
_OLD = 0.1


@dataclass(frozen=True)
class Sampled:
    """Drawn rows. Each slice of them is also a sample of the whole store.

    rows:        int64[B], valid rows of the store, with repetitions
    weights:     float32[B], importance weights in (0, 1]
    generations: int64[B], global index of the row's segment, to detect later whether it was overwritten
    """

    rows: NDArray[np.int64]
    weights: NDArray[np.float32]
    generations: NDArray[np.int64]


class Sampler(Protocol):
    """Draws valid rows of one store. Not thread-safe: the lock of the store protects its sampler."""

    def on_insert(self, inserted: Inserted) -> None:
        """Record the rows that an insert wrote and evicted. Call directly after every insert."""
        return

    def on_drop(self, dropped: tuple[tuple[int, int], ...]) -> None:
        """Record dropped row ranges. Call directly after every drop."""
        return

    @abstractmethod
    def sample(self, batch: int) -> Sampled:
        """Draw `batch` rows. Raises ConflictError when the store has no valid row."""

    def update(self, sampled: Sampled, priorities: NDArray[np.float32]) -> None:
        """Set priorities float32[B], usually absolute TD errors, if draws depend on them.

        Skips rows that were overwritten since the draw. Raises InvalidInputError, and changes nothing, when they are
        not finite or have another shape.
        """
        return

    def state(self) -> dict[str, float]:
        """The state for a checkpoint, by name. It excludes the generator and the store's files."""
        return {}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Restore what `state` returned. Ignores the state of a sampler of another kind or version."""
        return


class UniformSampler(Sampler):
    """Draws valid rows, all with the same probability or newer ones more often. Draws live rows and rejects the others.

    age_decay: rows after which a row's weight is 0.1; it is max(0.1, 1 - age / age_decay) with the age in rows
        (WarpSAC, arXiv:2608.24479). None: all weights are 1. Importance weights do not correct for this.
    """

    def __init__(self, store: ReplayStore, rng: np.random.Generator, age_decay: int | None = None) -> None:
        self._store = store
        self._rng = rng
        self._age_decay = age_decay

    def sample(self, batch: int) -> Sampled:
        """Draw `batch` rows, all weights 1. Raises ConflictError when the store has no valid row."""
        store = self._store
        _require_transitions(store)
        first, length = store.segments.extent()
        rows = np.empty(batch, np.int64)
        missing = np.arange(batch)
        for _ in range(_REJECTION_ROUNDS):
            drawn = (self._places(length, len(missing)) + first) % store.capacity
            rows[missing] = drawn
            missing = missing[store.flags[drawn] & VALID == 0]
            if not len(missing):
                break
        else:
            rows[missing] = self._rng.choice(np.flatnonzero(store.flags & VALID), size=len(missing))
        return Sampled(rows, np.ones(batch, np.float32), store.generations[rows])

    def _places(self, length: int, count: int) -> NDArray[np.int64]:
        """Draw `count` of `length` places; the last is the newest."""
        places = self._rng.integers(length, size=count)
        if self._age_decay is not None:
            # The weight is a constant for all rows and a triangle for the newest ones. Each part is drawn on its own.
            base = (1 - _OLD) * self._age_decay
            cut = max(0.0, 1 - length / base)
            triangle = base * (1 - _OLD) / 2 * (1 - cut**2)
            newer = self._rng.random(count) < triangle / (triangle + _OLD * length)
            # The inverse of the triangle's distribution function, cut off at the oldest row.
            ages = base * (1 - np.sqrt(1 - self._rng.random(int(newer.sum())) * (1 - cut**2)))
            places[newer] = length - 1 - np.minimum(ages.astype(np.int64), length - 1)
        return places


class PrioritizedSampler(Sampler):
    """Proportional prioritization (Schaul et al. 2016, arXiv:1511.05952).

    P(i) = p_i^alpha / sum_k p_k^alpha (equation 1) with p_i = |priority_i| + epsilon (section 3.3), drawn from equal
    strata (appendix B.2.1). Importance weights are w_i = (N P(i))^-beta, divided by the largest weight of the batch.
    Beta follows a schedule, because the bias of the sampling matters most at the end of a run (section 3.4). A new
    transition gets the largest priority so far (algorithm 1, line 6), so that it is soon replayed.
    """

    def __init__(
        self,
        store: ReplayStore,
        rng: np.random.Generator,
        alpha: float = 0.6,
        betas: tuple[float, float] = (0.4, 0.4),
        steps: int = 1,
    ) -> None:
        """alpha, betas: exponents in [0, 1]; beta moves from the first to the last in the first `steps` transitions."""
        self._alpha = alpha
        self._betas = betas
        self._steps = steps
        self._store = store
        self._rng = rng
        self._tree = SumTree(store.capacity)
        self._max_priority = self._restore()
        store.directory.raise_ceiling(float(self._max_priority))

    def on_insert(self, inserted: Inserted) -> None:
        """Give the new rows the largest priority so far, and the evicted rows no mass."""
        for start, stop in inserted.evicted:
            if not inserted.start <= start < stop <= inserted.stop:
                self._tree.set_range(start, stop, 0.0)
        rows = slice(inserted.start, inserted.stop)
        valid = self._candidates(rows)
        self._store.priorities[rows] = valid * self._max_priority
        self._tree.set_range(inserted.start, inserted.stop, valid * self._masses(self._max_priority))

    def on_drop(self, dropped: tuple[tuple[int, int], ...]) -> None:
        """Give the dropped rows no mass."""
        for start, stop in dropped:
            self._tree.set_range(start, stop, 0.0)

    def sample(self, batch: int) -> Sampled:
        """Draw one row from each of `batch` strata, shuffled. Raises ConflictError when there is no valid row."""
        store, tree = self._store, self._tree
        _require_transitions(store)
        uniforms = (self._rng.permutation(batch) + self._rng.random(batch)) / batch
        rows = tree.sample(uniforms)
        probabilities = tree.get(rows) / tree.total
        first, last = self._betas
        beta = first + (last - first) * min(1.0, store.total_transitions / self._steps)
        weights = (store.transitions * probabilities) ** -beta
        weights /= weights.max()
        return Sampled(rows, weights.astype(np.float32), store.generations[rows])

    def update(self, sampled: Sampled, priorities: NDArray[np.float32]) -> None:
        """Set |priorities| + epsilon in the tree and in the store's files. Skips overwritten rows."""
        if priorities.shape != sampled.rows.shape:
            raise InvalidInputError(f"replay: expected {len(sampled.rows)} priorities, got {list(priorities.shape)}")
        with np.errstate(over="ignore"):
            checked = np.asarray(priorities, np.float32)
        if not np.isfinite(checked).all():
            raise InvalidInputError("replay: priorities must be finite, got NaN or infinity; has the learner diverged?")
        store = self._store
        same = (store.generations[sampled.rows] == sampled.generations) & self._candidates(sampled.rows)
        rows = sampled.rows[same]
        if not len(rows):
            return
        given = np.abs(checked[same]) + _EPSILON
        store.directory.raise_ceiling(float(given.max()))
        store.priorities[rows] = given
        # The priorities are read back, so that tree and file agree on a row that was drawn twice.
        stored = store.priorities[rows]
        self._tree.set(rows, self._masses(stored))
        self._max_priority = max(self._max_priority, stored.max())

    def state(self) -> dict[str, float]:
        """The largest priority so far. Its row may be gone."""
        return {"max_priority": float(self._max_priority)}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Restore the largest priority, unless the store has a larger one."""
        self._max_priority = max(self._max_priority, np.float32(state.get("max_priority", 0.0)))
        self._store.directory.raise_ceiling(float(self._max_priority))

    def _candidates(self, rows: slice | NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these rows may be drawn."""
        valid: NDArray[np.bool_] = self._store.flags[rows] & VALID != 0
        return valid

    def _masses(self, priorities: NDArray[np.float32] | np.float32) -> NDArray[np.float64]:
        return np.power(priorities, self._alpha, dtype=np.float64)

    def _restore(self) -> np.float32:
        store = self._store
        valid = self._candidates(slice(None))
        # A kill between a segment's commit and its `on_insert` leaves zeros. Such rows count as new.
        ceiling = np.inf if store.directory.ceiling is None else store.directory.ceiling
        given = valid & np.isfinite(store.priorities) & (store.priorities > 0) & (store.priorities <= ceiling)
        largest = np.float32(store.priorities[given].max() if given.any() else 1.0)
        store.priorities[valid & ~given] = largest
        self._tree.set_range(0, store.capacity, np.where(valid, self._masses(store.priorities), 0.0))
        return largest


def _require_transitions(store: ReplayStore) -> None:
    if store.transitions == 0:
        raise ConflictError("replay: cannot sample before the first transition has been inserted")
