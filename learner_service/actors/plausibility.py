"""Flags evaluations whose return is impossible, given the rewards and returns of the run's actors.

Status and log show a flagged evaluation. A flagged evaluation does not end the run as solved. The limits are far above
honest results, so no honest run is delayed (docs/decisions/0024-flagged-evaluations.md).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from actorq.domain.trajectory import Evaluation, Segment
from actorq.text import return_text

# A return may exceed the bound by a share of the bound, plus a multiple of the largest absolute reward. A policy may
# reach a rewarded goal before any exploring actor does.
_SLACK, _SLACK_REWARDS = 0.01, 10
# An honest return is at most this many spreads above the best exploring return (see `_above`).
_SPREADS = 8.0
# Above this many spreads, an evaluation needs a second confirmation. The largest value of an honest solved run was 1.4.
_SPREADS_ALONE = 2.0


class Plausibility:
    """Keeps the largest reward and the range of episode returns of all actors. Not thread-safe.

    step_limit: maximum steps of an episode; 0 without a limit.
    compares: whether actors and evaluations have the same rewards. With different rewards, nothing is flagged.
    agents: number of agents. Each gets a reward in a step, and the return is the sum.
    """

    def __init__(self, step_limit: int, compares: bool = True, agents: int = 1) -> None:
        self._step_limit, self._agents = step_limit, agents
        # The largest reward, and the largest absolute reward.
        self._rewards: tuple[float, float] | None = None
        self.exploring_returns: tuple[float, float] | None = None
        """The lowest and the highest return of an actor's episode; None before the first."""
        # False for a run whose checkpoint lacks this record. Then nothing is flagged.
        self._is_complete = compares

    def update(self, segment: Segment) -> None:
        """Update the record with a segment."""
        rewards = segment.rewards[segment.valid]
        if rewards.size:
            largest, lowest = float(rewards.max()), float(rewards.min())
            known, size = self._rewards or (largest, 0.0)
            self._rewards = max(known, largest), max(size, abs(largest), abs(lowest))
        for episode in segment.episodes:
            worst, best = self.exploring_returns or (episode.episode_return, episode.episode_return)
            self.exploring_returns = min(worst, episode.episode_return), max(best, episode.episode_return)

    def doubt(self, evaluation: Evaluation) -> str:
        """The reason why an evaluation is implausible, on one line; empty when it is plausible."""
        if not self._is_complete:
            return ""
        if self._rewards is None:
            return "no actor has sent data yet, so there is nothing to compare it with"
        if doubt := self._beyond_rewards(evaluation, *self._rewards):
            return doubt
        if self.exploring_returns is None or evaluation.mean_return <= _above(self.exploring_returns, _SPREADS):
            return ""
        lowest, highest = self.exploring_returns
        return (
            f"its return of {return_text(evaluation.mean_return)} is far above the returns of all actors' episodes, "
            f"{lowest:,.1f} to {highest:,.1f}"
        )

    def agrees(self, evaluation: Evaluation) -> bool:
        """Whether the actors' episodes confirm the evaluation: their best return is not far below it."""
        if not self._is_complete or self.exploring_returns is None:
            return not self._is_complete
        return evaluation.mean_return <= _above(self.exploring_returns, _SPREADS_ALONE)

    def state(self) -> dict[str, Any]:
        """The record, for a checkpoint."""
        return {"rewards": self._rewards, "returns": self.exploring_returns}

    def load_state(self, state: Mapping[str, Any] | None) -> None:
        """Restore what `state` returned; None for a checkpoint without a record."""
        if state is None:
            self._is_complete = False
            return
        self._rewards = state["rewards"] and tuple(map(float, state["rewards"]))
        self.exploring_returns = state["returns"] and tuple(map(float, state["returns"]))

    def _beyond_rewards(self, evaluation: Evaluation, largest: float, size: float) -> str:
        lengths = np.asarray(evaluation.lengths, np.float64)
        if self._step_limit and largest > 0:
            lengths = np.minimum(lengths, self._step_limit)
        # With a largest reward below 0, a single agent that takes part has the highest return.
        bound = float(lengths.mean()) * largest * (self._agents if largest > 0 else 1)
        if evaluation.mean_return <= bound + _SLACK * abs(bound) + _SLACK_REWARDS * size:
            return ""
        return (
            f"its return of {return_text(evaluation.mean_return)} is above {bound:,.1f}, the return with the largest "
            f"reward of any actor ({largest:g}) in each step"
        )


def _above(returns: tuple[float, float], spreads: float) -> float:
    """The return this many spreads above the highest. A spread is the range, or the magnitude of the highest."""
    lowest, highest = returns
    return highest + spreads * max(highest - lowest, abs(highest))
