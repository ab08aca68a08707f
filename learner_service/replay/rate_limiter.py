"""Keeps the ratio of samples to inserts near a target, with an error buffer, as in Reverb."""

import threading
from collections.abc import Callable
from typing import Any

from actorq.errors import ConflictError, UserError


class RateLimiter:
    """Keeps samples / inserts near a ratio, by blocking the faster side (Cassirer et al. 2021, arXiv:2102.04736).

    Inserts and samples are counted in transitions. Let diff = inserts * samples_per_insert - samples - offset. Sampling
    n is allowed after min_size inserts, if diff - n >= min_size * samples_per_insert - error_buffer. Inserting n is
    allowed if diff + n * samples_per_insert <= min_size * samples_per_insert + error_buffer. An insert is admitted
    before its transitions arrive (`try_reserve`). It counts as outstanding until `insert` or `release`.

    The offset is 0 until transitions are lost. While min_size transitions are collected again (`await_inserts`), the
    offset is such that diff ends at min_size * samples_per_insert, as the first time. A run that resumes with another
    ratio or min_size keeps the difference between diff and min_size * samples_per_insert.

    A rule in addition to Reverb's prevents deadlocks, because segments and batches may be larger than the buffer. When
    nothing is outstanding and the demanded sample is not allowed, one insert of any size is admitted. The demanded
    sample is the smallest waiting one, or without any the last requested one.

    Proof. Suppose that neither side can move. Each reservation is used or released within a bounded time, because
    `Credits` leases reservations and the intake uses up those of received segments. Nothing is therefore outstanding in
    the end. The rule then admits an insert, a contradiction. There is no livelock, because each inserted transition
    raises diff by samples_per_insert > 0, and no sample lowers it meanwhile. The excess is bounded by the one insert
    that the rule admits, because diff was below the sampler's limit before.

    Thread-safe. Listeners are called without the lock, on the thread whose call made inserts possible.

    inserts, samples: transitions so far. Only the limiter changes them. starved_before: seconds of earlier lives.
    """

    def __init__(
        self, samples_per_insert: float, min_size_to_sample: int, error_buffer: float, clock: Callable[[], float]
    ) -> None:
        """error_buffer: in samples, at least 2 * max(1, samples_per_insert), as `RunConfig` checks.

        clock: monotonic seconds. Raises UserError when there are no samples, as for an algorithm without epochs.
        """
        if not 0 < samples_per_insert < float("inf"):
            raise UserError(f"rate limiter: samples_per_insert must be positive and finite, got {samples_per_insert}")
        self.samples_per_insert = samples_per_insert
        self.min_size_to_sample = min_size_to_sample
        self._min_diff = min_size_to_sample * samples_per_insert - error_buffer
        self._max_diff = min_size_to_sample * samples_per_insert + error_buffer
        self._clock = clock
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self.inserts = 0
        self.samples = 0
        self._outstanding = 0
        self._least_inserts = min_size_to_sample
        self._offset = 0.0
        self._held = False
        self._asked = 1
        self._waiting: list[int] = []
        self.starved_before = self._starved = 0.0
        self._starving_since = 0.0

    @classmethod
    def of_queue(cls, epochs: int, rollout_size: int, ahead: int, clock: Callable[[], float]) -> "RateLimiter":
        """A limiter for a queue that returns each insert once. Each insert allows `epochs` samples.

        It allows the samples of a rollout exactly when `rollout_size` inserts wait, and admits inserts up to `ahead`
        waiting ones, rounded up to an even number of at least 4.
        """
        half = max(2, -(-max(ahead, rollout_size) // 2))
        limiter = cls(epochs, half, epochs * half, clock)
        # The buffer allows the first rollout as early as all others.
        limiter.min_size_to_sample = limiter._least_inserts = rollout_size
        return limiter

    @property
    def samples_per_insert_realised(self) -> float:
        """Samples per insert so far; 0 before the first insert. Includes the first `min_size_to_sample` inserts."""
        with self._changed:
            return self.samples / self.inserts if self.inserts else 0.0

    @property
    def missing(self) -> int:
        """Number of inserts that are missing until sampling may start, or may continue after a loss of transitions."""
        with self._changed:
            return max(0, self._least_inserts - self.inserts)

    @property
    def starved_seconds(self) -> float:
        """Seconds during which some thread waited in `await_sample`, over restarts and including the present wait."""
        with self._changed:
            starved = self.starved_before + self._starved
            return starved + (self._clock() - self._starving_since if self._waiting else 0.0)

    def on_inserts_possible(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever inserts may have become possible. It should be quick, and call `try_reserve`."""
        with self._changed:
            self._listeners.append(callback)

    def try_reserve(self, n: int) -> bool:
        """Admit an insert of up to `n` transitions, or return False. Never waits."""
        with self._changed:
            if not self._insert_allowed(n):
                return False
            self._outstanding += n
            return True

    def insert(self, n_actual: int, n_reserved: int) -> None:
        """Count `n_actual` inserted transitions and end their reservation of `n_reserved`."""
        with self._changed:
            if not 0 <= n_reserved <= self._outstanding:
                raise ConflictError(
                    f"rate limiter: cannot give back {n_reserved} of {self._outstanding} reserved inserts"
                )
            self._outstanding -= n_reserved
            self.inserts += n_actual
            if self._waiting:
                self._changed.notify_all()
        self._announce()

    def withdraw(self, n: int) -> None:
        """Count `n` fewer inserts, because they are dropped and will not be sampled."""
        self.insert(-n, 0)

    def release(self, n_reserved: int) -> None:
        """End an unused reservation, for example after a broken stream."""
        self.insert(0, n_reserved)

    def hold_inserts(self, held: bool) -> None:
        """Admit no inserts while `held`, for example on a full disk. Reservations made before stay valid."""
        with self._changed:
            self._held = held
        self._announce()

    def await_inserts(self, inserts: int) -> None:
        """Allow no sampling before this total number of inserts, for example after a loss of transitions."""
        with self._changed:
            self._least_inserts = max(self._least_inserts, inserts)
            self._set_offset()

    def begin_with(self, inserts: int) -> None:
        """Allow sampling after this total of inserts, below min_size, because the replay has the rest already.

        diff is then min_size * samples_per_insert, as after the first min_size inserts of a run with an empty replay.
        """
        with self._changed:
            self._least_inserts = inserts
            self._offset = (inserts - self.min_size_to_sample) * self.samples_per_insert - self.samples

    def can_sample(self, n: int) -> bool:
        """Whether sampling `n` transitions is allowed now. A refusal makes `n` the demand for the extra insert rule."""
        with self._changed:
            allowed = self._sample_allowed(n)
            raised = not allowed and n != self._asked
            self._asked = n
        if raised:
            self._announce()
        return allowed

    def await_sample(self, n: int, timeout: float | None) -> bool:
        """Wait until sampling `n` transitions is allowed; False after `timeout` seconds. None waits without limit."""
        if self.can_sample(n):
            return True
        with self._changed:
            if not self._waiting:
                self._starving_since = self._clock()
            self._waiting.append(n)
        try:
            # The demand of this thread may have allowed inserts. Listeners must not run under the lock.
            self._announce()
            with self._changed:
                return self._changed.wait_for(lambda: self._sample_allowed(n), timeout)
        finally:
            with self._changed:
                self._waiting.remove(n)
                if not self._waiting:
                    self._starved += self._clock() - self._starving_since

    def sample(self, n: int) -> None:
        """Count `n` sampled transitions."""
        with self._changed:
            self._asked = n
            self.samples += n
        self._announce()

    def state_dict(self) -> dict[str, Any]:
        """Counts, `offset` and settings, for a checkpoint. Reservations end with their streams."""
        with self._changed:
            return {
                "inserts": self.inserts,
                "samples": self.samples,
                "offset": self._offset,
                "samples_per_insert": self.samples_per_insert,
                "min_size": self.min_size_to_sample,
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Older states have no offset and no settings."""
        with self._changed:
            self.inserts = state["inserts"]
            self.samples = state["samples"]
            ratio = state.get("samples_per_insert", self.samples_per_insert)
            min_size = state.get("min_size", self.min_size_to_sample)
            before, now = self.inserts - min_size, self.inserts - self.min_size_to_sample
            self._offset = state.get("offset", 0.0) + now * self.samples_per_insert - before * ratio
            self._set_offset()
            self._changed.notify_all()
        self._announce()

    def _set_offset(self) -> None:
        """While inserts are missing, set the offset so that neither side is ahead after the last missing insert."""
        if self.inserts < self._least_inserts:
            self._offset = (self._least_inserts - self.min_size_to_sample) * self.samples_per_insert - self.samples

    def _sample_allowed(self, n: int) -> bool:
        diff = self.inserts * self.samples_per_insert - self.samples - self._offset
        return self.inserts >= self._least_inserts and diff - n >= self._min_diff

    def _insert_allowed(self, n: int) -> bool:
        if self._held:
            return False
        inserts = self.inserts + self._outstanding + n
        if inserts * self.samples_per_insert - self.samples - self._offset <= self._max_diff:
            return True
        demand = min(self._waiting, default=self._asked)
        return self._outstanding == 0 and not self._sample_allowed(demand)

    def _announce(self) -> None:
        with self._changed:
            listeners = tuple(self._listeners) if self._insert_allowed(1) else ()
        for listener in listeners:
            listener()
