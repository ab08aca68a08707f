"""Decides whether a run has reached its target return. All benchmarks with a target to reach use this rule.

An evaluation is the mean return of new episodes. An evaluation reaches the target if it is at least the target, and the
next evaluation is at least 0.9 of the target. A single lucky evaluation therefore does not count.
"""

from collections.abc import Sequence
from itertools import pairwise

# The largest drop of the successor below the target, as a share of the target's absolute value.
DROP = 0.1


def first_reached(returns: Sequence[float], target: float) -> int | None:
    """The number of the evaluation with which a run has reached `target`, counted from 0; None without one.

    returns: all evaluations of the run, in their order. The last one has no successor, so it never counts.
    """
    least = target - DROP * abs(target)
    pairs = enumerate(pairwise(returns))
    return next((number for number, (one, successor) in pairs if one >= target and successor >= least), None)
