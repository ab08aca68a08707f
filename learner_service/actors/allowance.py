"""Limits the bytes that evaluators add to the run's log of evaluations."""

from collections.abc import Callable
from weakref import WeakKeyDictionary

from actorq.domain.trajectory import Evaluation
from actorq.errors import ExhaustedError
from learner_service.actors.members import Member

# Bytes per second, and the most that are saved: of one evaluator, and of all together. An honest one is far below.
_EACH = 2**14, 2**20
_ALL = 2**16, 2**22
# Of a line in the log, at most: without its episodes, and for each episode.
_LINE_BYTES, _EPISODE_BYTES = 1024, 48


class Allowance:
    """Bytes that may be written now: `rate` for each second, of which at most `most` are saved. It starts with all.

    A write that begins within the allowance may exceed it. The excess is paid before the next write. clock: monotonic
    seconds.
    """

    def __init__(self, rate: float, most: float, clock: Callable[[], float]) -> None:
        self._rate, self._most, self._clock = rate, most, clock
        self._saved, self._at = most, clock()

    @property
    def has_some(self) -> bool:
        """Whether a write may begin."""
        now = self._clock()
        self._saved, self._at = min(self._most, self._saved + self._rate * (now - self._at)), now
        return self._saved > 0

    def spend(self, nbytes: int) -> None:
        """Record a write."""
        self._saved -= nbytes


class EvaluationAllowance:
    """The allowances of all evaluators, each by itself and all together. Lives on the event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all = Allowance(*_ALL, clock)
        self._each: WeakKeyDictionary[Member, Allowance] = WeakKeyDictionary()

    def spend(self, member: Member, evaluation: Evaluation) -> None:
        """Record an evaluation. Raises ExhaustedError when too much was sent; the evaluator then sends it again."""
        own = self._each.setdefault(member, Allowance(*_EACH, self._clock))
        for allowance, who, rate in ((own, f"evaluator {member.name!r}", _EACH[0]), (self._all, "all", _ALL[0])):
            if not allowance.has_some:
                raise ExhaustedError(
                    f"evaluation: expected at most {rate} bytes per second by {who}, got more: send it again later"
                )
        for allowance in (own, self._all):
            allowance.spend(most_line_bytes(evaluation))


def most_line_bytes(evaluation: Evaluation) -> int:
    """The most bytes that an evaluation may have in the log."""
    return _LINE_BYTES + _EPISODE_BYTES * len(evaluation.returns)
