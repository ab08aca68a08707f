"""An actor whose rows encode their place, and the sequences that a replay of its segments must have."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import state_column
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from learner_service.batch import Batch
from learner_service.replay import Returns, SegmentSource, SequenceShape

STATE = state_column(2)
# Actor, environment, tick, episode, step of the episode.
CODED = EnvironmentSpec("Coded-v0", ArraySpec((5,), "float32"), ArraySpec((), "int64"), sizes=(7,))


@dataclass(frozen=True)
class Row:
    """What one environment has at one tick. The state counts the steps of its episode, and has its number."""

    observation: tuple[int, ...]
    action: int
    reward: float
    terminated: bool
    truncated: bool
    valid: bool

    @property
    def state(self) -> tuple[float, float]:
        """The state of a policy before this row: zero where an episode begins."""
        episode, step = self.observation[3:]
        return (float(episode), float(step)) if step else (0.0, 0.0)


@dataclass
class CodedActor:
    """Steps `environments` with next-step autoreset. Every row and every state tells where it belongs."""

    number: int
    environments: int
    rng: np.random.Generator
    end_rate: float = 0.15
    logs: list[list[Row]] = field(default_factory=list)
    starts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Tick of the first step, and number of steps, by sequence number of a segment."""

    def __post_init__(self) -> None:
        self.logs = [[] for _ in range(self.environments)]
        self._episodes = [1 + 1000 * environment for environment in range(self.environments)]
        self._steps = [0] * self.environments
        self._ended = [False] * self.environments
        self._tick = 0
        self._sequence = 0
        self._follows = False

    def source(self, sequence: int) -> SegmentSource:
        """The source of a segment."""
        return SegmentSource.from_name(f"actor-{self.number}", 1, sequence)

    def lose(self, steps: int) -> None:
        """Lose the next segment."""
        self.segment(steps)
        self._follows = False

    def segment(self, steps: int) -> Segment:
        """The next segment."""
        first = self._tick
        for _ in range(steps):
            for environment in range(self.environments):
                self._step(environment)
            self._tick += 1
        self._sequence += 1
        self.starts[self._sequence] = (first, steps)
        rows = [[log[tick] for log in self.logs] for tick in range(first, first + steps)]
        last = [self._observation(environment) for environment in range(self.environments)]
        segment = Segment(
            sequence=self._sequence,
            spans=(PolicySpan(0, 1, "fp32"),),
            columns={
                "observations": np.array([*[[row.observation for row in each] for each in rows], last], np.float32),
                "actions": np.array([[row.action for row in each] for each in rows], np.int64),
                "rewards": np.array([[row.reward for row in each] for each in rows], np.float32),
                "terminated": np.array([[row.terminated for row in each] for each in rows]),
                "truncated": np.array([[row.truncated for row in each] for each in rows]),
                "valid": np.array([[row.valid for row in each] for each in rows]),
                "ages": np.array([min(255, row.observation[4]) for row in rows[0]], np.uint8),
                STATE: np.array([row.state for row in rows[0]], np.float32),
            },
            follows=self._follows,
        )
        self._follows = True
        return segment

    def observation_at(self, environment: int, tick: int) -> tuple[int, ...]:
        """What the environment showed at a tick, at most the present one."""
        log = self.logs[environment]
        return log[tick].observation if tick < len(log) else self._observation(environment)

    def _observation(self, environment: int) -> tuple[int, ...]:
        return (self.number, environment, self._tick, self._episodes[environment], self._steps[environment])

    def _step(self, environment: int) -> None:
        observation = self._observation(environment)
        if self._ended[environment]:
            self.logs[environment].append(Row(observation, 0, 0.0, False, False, False))
            self._ended[environment], self._steps[environment] = False, 0
            self._episodes[environment] += 1
            return
        ends, time_limit = self.rng.random(2) < self.end_rate / 2
        action, reward = int(self.rng.integers(7)), float(self.rng.integers(100))
        self.logs[environment].append(Row(observation, action, reward, bool(ends), bool(time_limit and not ends), True))
        self._ended[environment] = bool(ends or time_limit)
        self._steps[environment] += 1


def assert_sequence(
    actors: list[CodedActor], batch: Batch, place: int, stops: int, shape: SequenceShape, returns: Returns
) -> None:
    """The sequence in row `place` of a batch is the one that its first observation names.

    stops: the tick after the last stored step that runs on from its start.
    """
    number, environment, first = (int(each) for each in batch.observations[place, 0, :3])
    actor = actors[number]
    log, state = actor.logs[environment], tuple(batch.states[place].tolist())
    assert any(first == tick for tick, _ in actor.starts.values()), "a sequence begins at a segment's start"
    for position in range(shape.steps + 1):
        tick = min(first + position, stops)
        observation = actor.observation_at(environment, tick)
        assert tuple(batch.observations[place, position].astype(int)) == observation
        if first + position > stops:
            continue
        if batch.begins[place, position]:
            state = (0.0, 0.0)
        assert state == ((float(observation[3]), float(observation[4])) if observation[4] else (0.0, 0.0)), (
            f"tick {tick}: the state is of another episode or step"
        )
        state = (float(observation[3]), float(observation[4] + 1))
    for step in range(shape.trained):
        tick = first + shape.burn_in + step
        trained = tick < stops and log[tick].valid
        assert batch.mask[place, step] == trained
        if not trained:
            assert batch.bootstrap_discounts[place, step] == 0
            continue
        window = _window(log, tick, stops, returns.n_step)
        rewards = np.array([row.reward for row in window]) @ returns.discount ** np.arange(len(window))
        assert batch.actions[place, step] == window[0].action
        np.testing.assert_allclose(batch.returns[place, step], rewards, rtol=1e-5)
        assert batch.bootstrap_steps[place, step] == shape.burn_in + step + len(window)
        discount = 0.0 if window[-1].terminated else returns.discount ** len(window)
        np.testing.assert_allclose(batch.bootstrap_discounts[place, step], discount, rtol=1e-6)
        if "between_discounts" in batch:
            expected = np.zeros(shape.tail)
            expected[: len(window) - 1] = returns.discount ** np.arange(1, len(window))
            np.testing.assert_allclose(batch.between_discounts[place, step], expected, rtol=1e-6)


def _window(log: list[Row], tick: int, stops: int, n_step: int) -> list[Row]:
    window = [log[tick]]
    while (
        len(window) < n_step
        and not (window[-1].terminated or window[-1].truncated)
        and tick + len(window) < stops
        and log[tick + len(window)].valid
    ):
        window.append(log[tick + len(window)])
    return window


def stop_of(actor: CodedActor, first: int, stored: set[int], lost: set[int]) -> int:
    """The tick after the last step that runs on from the segment that begins at tick `first`.

    stored: sequence numbers in the store. lost: those that never came.
    """
    sequence = next(number for number, (tick, _) in actor.starts.items() if tick == first)
    while sequence + 1 in stored and sequence not in lost:
        sequence += 1
    tick, steps = actor.starts[sequence]
    return tick + steps


def firsts(batch: Batch) -> NDArray[np.int64]:
    """Actor, environment and tick of the first observation of each sequence, int64[B, 3]."""
    named: NDArray[np.int64] = batch.observations[:, 0, :3].astype(np.int64)
    return named
