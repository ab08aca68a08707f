"""Samples the starts of sequences, uniformly or in proportion to their priorities."""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from actorq.errors import ConflictError
from learner_service.replay.recurrent.starts import SegmentStarts
from learner_service.replay.samplers import PrioritizedSampler, Sampled
from learner_service.replay.storage.store import Inserted, ReplayStore


class SequenceSampler(PrioritizedSampler):
    """Draws starts of segments. Only ready starts have a mass; see `SegmentStarts`.

    A start has one priority (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
    Learning", section 2.3). An alpha of 0 draws all ready starts with the same probability.
    """

    def __init__(
        self,
        store: ReplayStore,
        rng: np.random.Generator,
        burn_in: int,
        alpha: float = 0.6,
        betas: tuple[float, float] = (0.4, 0.4),
        steps: int = 1,
    ) -> None:
        # Sequences cross segments, so all segments are checked before the first draw.
        store.segments.check(np.array([record.start for record in store.segments.live], np.int64))
        self.starts = SegmentStarts(store, burn_in)
        ready = [self.starts.add(record) for record in store.segments.live]
        super().__init__(store, rng, alpha, betas, steps)
        self._tree.set_range(0, store.capacity, 0.0)
        self._give_masses(list(chain.from_iterable(ready)))

    def on_insert(self, inserted: Inserted) -> None:
        """Give the starts of the new segment the largest priority so far, and a mass to all starts that are ready."""
        store = self._store
        self.on_drop((*inserted.evicted, (inserted.start, inserted.stop)))
        record = store.segments.live[-1]
        ready = self.starts.add(record)
        store.priorities[record.step_rows[0]] = self._max_priority
        self._give_masses(ready)

    def on_drop(self, dropped: tuple[tuple[int, int], ...]) -> None:
        """Forget the starts among the dropped rows."""
        super().on_drop(dropped)
        for start, stop in dropped:
            self.starts.forget(start, stop)

    def sample(self, batch: int) -> Sampled:
        """As in `PrioritizedSampler`. Raises ConflictError when no start is ready."""
        if not self._tree.total:
            raise ConflictError("replay: cannot sample before a sequence has a trained step")
        return super().sample(batch)

    def _candidates(self, rows: slice | NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.starts.lengths[rows] > 0

    def _give_masses(self, ready: list[NDArray[np.int64]]) -> None:
        if ready:
            rows = np.concatenate(ready)
            self._tree.set(rows, self._masses(self._store.priorities[rows]))
