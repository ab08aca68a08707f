"""Random lives of environments, cut into segments as in an actor, and the batches that a learner must get from them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from learner_service.replay import ReplayStore, Returns, SegmentSource


@dataclass(frozen=True)
class Transition:
    """What a learner must see of one step."""

    observation: NDArray[np.generic]
    total: float
    bootstrap_discount: float
    bootstrap_observation: NDArray[np.generic]


# How a segment comes after the one before: directly, after steps that the actor dropped, or after a lost segment.
LINKS = ("follows", "dropped", "lost")
_MISSING = 2


@dataclass(frozen=True)
class Placed:
    """A segment in the store: its first row, its first step, and the step at which the stored steps after it end."""

    row: int
    step: int
    end: int


@dataclass(frozen=True)
class Lives:
    """All steps of N environments, row by row. `first[t]`: the observations that begin an episode."""

    spec: EnvironmentSpec
    observations: NDArray[np.generic]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    first: NDArray[np.bool_]

    @classmethod
    def random(
        cls, rng: np.random.Generator, spec: EnvironmentSpec, steps: int, environments: int, end_rate: float
    ) -> "Lives":
        """Episodes that end at random, half of them by a time limit; the step after only resets."""
        shape = (steps, environments)
        terminated, truncated, valid = (np.zeros(shape, np.bool_) for _ in range(3))
        first = np.zeros((steps + 1, environments), np.bool_)
        first[0] = True
        for environment in range(environments):
            ended = False
            for step in range(steps):
                valid[step, environment] = not ended
                first[step + 1, environment] = ended
                ends = not ended and rng.random() < end_rate
                kind = terminated if rng.random() < 0.5 else truncated
                kind[step, environment] = ended = ends
        observations = rng.integers(256, size=(steps + 1, environments, *spec.observations.shape))
        rewards = rng.normal(scale=2.0, size=shape).astype(np.float32)
        dtype = spec.observations.dtype
        return cls(spec, observations.astype(dtype), rewards, terminated, truncated, valid, first)

    def segment(self, number: int, start: int, stop: int, follows: bool = False) -> Segment:
        """Steps [start, stop) as they travel: with frames before, those that there were, and ages."""
        context = [
            self.observations[row] if row >= 0 else np.full_like(self.observations[0], 77)
            for row in range(start - self.spec.frame_stack + 1, start)
        ]
        part = slice(start, stop)
        return Segment(
            sequence=number,
            spans=(PolicySpan(0, 1, "fp32"),),
            follows=follows,
            columns={
                "observations": np.stack([*context, *self.observations[start : stop + 1]]),
                "actions": np.zeros(self.rewards[part].shape, np.int64),
                "rewards": self.rewards[part],
                "terminated": self.terminated[part],
                "truncated": self.truncated[part],
                "valid": self.valid[part],
                "ages": np.array([min(255, self._age(start, n)) for n in range(self.valid.shape[1])], np.uint8),
            },
        )

    def transition(self, step: int, environment: int, end: int, returns: Returns) -> Transition:
        """The transition at a valid step, one step at a time, where all steps before step `end` are known."""
        observed, total, factor = self.stack(step, environment), 0.0, 1.0
        for _ in range(returns.n_step):
            reward, most = float(self.rewards[step, environment]), returns.clip_rewards or np.inf
            total += factor * min(max(reward, -most), most)
            factor *= returns.discount
            over, cut = self.terminated[step, environment], self.truncated[step, environment]
            step += 1
            if over or cut or step == end:
                break
        else:
            over = False
        return Transition(observed, total, 0.0 if over else factor, self.stack(step, environment))

    def stack(self, row: int, environment: int) -> NDArray[np.generic]:
        """A policy's input at a row: frames of its own episode only, the first frame repeated as often as needed."""
        frames = [self.observations[row, environment]]
        while len(frames) < self.spec.frame_stack:
            row -= not self.first[row, environment]
            frames.insert(0, self.observations[row, environment])
        return np.stack(frames) if self.spec.frame_stack > 1 else frames[0]

    def _age(self, row: int, environment: int) -> int:
        return row - max(first for first in range(row + 1) if self.first[first, environment])


def insert_all(store: ReplayStore, lives: Lives, lengths: list[int], links: list[str]) -> dict[int, Placed]:
    """Insert the segments of one actor. Returns the live ones by their index in the directory."""
    steps: list[tuple[int, int]] = []
    sequence = stop = 0
    for number, (length, link) in enumerate(zip(lengths, links, strict=True)):
        sequence += 1 + (link == "lost")
        start = stop + _MISSING * (link != "follows")
        stop = start + length
        steps.append((start, stop))
        segment = lives.segment(sequence, start, stop, follows=number > 0 and link != "dropped")
        store.insert(segment, SegmentSource.from_name("actor-0", 7, sequence))
    ends = [stop for _, stop in steps]
    for number in reversed(range(1, len(steps))):
        if links[number] == "follows":
            ends[number - 1] = ends[number]
    return {
        record.index: Placed(record.start, steps[record.index][0], ends[record.index]) for record in store.segments.live
    }


def steps_of(lengths: list[int]) -> int:
    """Steps of lives that suffice for segments of these lengths, however they are linked."""
    return sum(lengths) + _MISSING * len(lengths)
