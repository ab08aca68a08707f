"""Chooses the observations that a policy's fidelity is measured with, so that a fast actor does not decide for all."""

import numpy as np
from numpy.typing import NDArray


def alike(senders: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
    """Ascending indexes of at most `size` rows: the same number for each actor, as far as its rows suffice.

    An actor's rows are evenly spaced. senders: the actor of each row, uint64[B].
    """
    if len(senders) <= size:
        return np.arange(len(senders))
    by_actor = np.argsort(senders, kind="stable")
    sorted_senders = senders[by_actor]
    starts = np.flatnonzero(np.append(True, sorted_senders[1:] != sorted_senders[:-1]))
    counts = np.diff(starts, append=len(senders))
    shares = np.zeros_like(counts)
    # From the fewest rows to the most, so that the others take what an actor leaves.
    for done, actor in enumerate(np.argsort(counts, kind="stable")):
        shares[actor] = min(counts[actor], size // (len(counts) - done))
        size -= shares[actor]
    places = np.arange(len(senders)) - np.repeat(starts, counts)
    share, count = np.repeat(shares, counts), np.repeat(counts, counts)
    # Every place at which the number of chosen rows rises.
    chosen = places * share // count != (places - 1) * share // count
    return np.sort(by_actor[chosen])
