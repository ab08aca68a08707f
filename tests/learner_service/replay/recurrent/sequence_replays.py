"""Replays of coded actors."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from learner_service.replay import RateLimiter, ReplayStore, Returns, SequenceReplay, SequenceSampler, SequenceShape
from tests.learner_service.replay.recurrent.coded_actor import (
    CODED,
    STATE,
    CodedActor,
    assert_sequence,
    firsts,
    stop_of,
)

RETURNS = Returns(n_step=3, discount=0.9, windows=True)
SHAPE = SequenceShape(burn_in=5, trained=7, tail=2, state_size=2)


@dataclass
class Coded:
    """A replay and the actors that fill it. alpha: priority exponent; 0 for uniform draws."""

    directory: Path
    capacity: int = 4000
    shape: SequenceShape = SHAPE
    returns: Returns = RETURNS
    alpha: float = 0.0
    min_size: int = 1
    actors: list[CodedActor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lost: dict[int, set[int]] = {}
        self.open()

    def open(self) -> None:
        """Open the replay, or open it again."""
        store = ReplayStore.open(self.directory, CODED, self.capacity, (STATE,), rows_per_segment=4)
        self.sampler = SequenceSampler(store, np.random.default_rng(0), self.shape.burn_in, self.alpha, (0.5, 0.5))
        limiter = RateLimiter(1.0, self.min_size, 1e9, lambda: 0.0)
        self.replay = SequenceReplay(store, self.sampler, limiter, self.returns, self.shape)
        self.store = store

    def close(self) -> None:
        self.replay.close()

    def actor(self, environments: int, end_rate: float = 0.15) -> CodedActor:
        """A new actor."""
        number = len(self.actors)
        actor = CodedActor(number, environments, np.random.default_rng(number), end_rate)
        self.actors.append(actor)
        self.lost[number] = set()
        return actor

    def insert(self, actor: CodedActor, steps: int) -> None:
        """Insert the actor's next segment."""
        segment = actor.segment(steps)
        segment.check(CODED)
        size = segment.steps * segment.environments
        self.replay.limiter.try_reserve(size)
        self.replay.insert(segment, actor.source(segment.sequence), size)

    def lose(self, actor: CodedActor, steps: int) -> None:
        """Lose the actor's next segment, so that the one after it does not follow."""
        actor.lose(steps)
        self.lost[actor.number].add(max(actor.starts))

    def stored(self, actor: CodedActor) -> set[int]:
        """Sequence numbers of its stored segments."""
        return {
            record.source.sequence
            for record in self.store.segments.live
            if record.source.actor_key == actor.source(1).actor_key
        }

    def stop(self, number: int, first: int) -> int:
        """The tick after the last step that runs on from a start."""
        actor = self.actors[number]
        return stop_of(actor, first, self.stored(actor), self.lost[number])

    def check(self, size: int = 64) -> set[tuple[int, int, int]]:
        """Draw sequences and compare all of them with the actors. Returns the drawn starts."""
        batch, _ = self.replay.draw(size)
        named = [tuple(each) for each in firsts(batch).tolist()]
        for place, (number, _, first) in enumerate(named):
            assert_sequence(self.actors, batch, place, self.stop(number, first), self.shape, self.returns)
        return {(number, environment, first) for number, environment, first in named}

    def ready(self) -> set[tuple[int, int, int]]:
        """All starts with a trained step."""
        return {
            (actor.number, environment, actor.starts[sequence][0])
            for actor in self.actors
            for sequence in self.stored(actor)
            for environment in range(actor.environments)
            if self.stop(actor.number, actor.starts[sequence][0]) > actor.starts[sequence][0] + self.shape.burn_in
        }
