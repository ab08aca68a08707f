"""The acting loop in real environments, with policies that are swapped at chosen steps."""

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actor_service.acting.collector import SegmentCollector
from actor_service.acting.turns import PolicyTurns
from actor_service.counts import ActorCounts
from actor_service.environments import Environments, Step, describe_environment, make_environments
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actorq.domain.columns import GREEDY_ACTIONS
from actorq.domain.policy import Policy
from actorq.domain.spaces import ArraySpec
from actorq.domain.trajectory import Episode, PolicySpan, Segment
from actorq.watchdog import Watched
from tests.actor_service.actor_policies import all_in_float, constant_policy, random_policy

SPEC = describe_environment("CartPole-v1")
COUNT, LENGTH, SEED = 3, 8, 5
DEADLINE_S = 30.0


def load(policy: Policy) -> OnnxPolicy:
    return OnnxPolicy(policy, SPEC.observations, COUNT)


def greedy(policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
    actions: NDArray[Any] = policy(observations).argmax(axis=1)
    return actions


class Scripted:
    """Explores greedily, and does something at the n-th choice of actions, counted from 0."""

    def __init__(self, at: dict[int, Callable[[], None]]) -> None:
        self._at = at
        self._choices = 0

    def __call__(self, policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
        self._at.get(self._choices, lambda: None)()
        self._choices += 1
        return greedy(policy, observations)


@pytest.fixture
def slot() -> PolicySlot:
    return PolicySlot(clock=lambda: 10.0)


def collector(
    slot: PolicySlot, explore: Callable[[OnnxPolicy, NDArray[Any]], NDArray[Any]] = greedy
) -> SegmentCollector:
    return SegmentCollector(make_environments("CartPole-v1", COUNT), PolicyTurns(slot), explore, LENGTH, SEED)


def collect(collecting: SegmentCollector, stop: threading.Event | None = None) -> Segment:
    segment = collecting.collect(stop or threading.Event())
    assert segment is not None
    segment.check(SPEC)
    return segment


def test_segments_join_seamlessly_and_hold_what_the_environments_did(slot: PolicySlot) -> None:
    slot.put(load(random_policy(4, 2)))
    collecting = collector(slot)
    segments = [collect(collecting) for _ in range(10)]
    assert [segment.sequence for segment in segments] == list(range(1, 11))
    assert [segment.follows for segment in segments] == [False] + [True] * 9
    for one, next_one in pairwise(segments):
        np.testing.assert_array_equal(one.observations[-1], next_one.observations[0])

    plain, policy = make_environments("CartPole-v1", COUNT), load(random_policy(4, 2))
    observations = plain.reset(SEED)
    episodes: list[Episode] = []
    for segment in segments:
        for step in range(LENGTH):
            actions = greedy(policy, observations)
            np.testing.assert_array_equal(segment.observations[step], observations)
            np.testing.assert_array_equal(segment.actions[step], actions)
            taken = plain.step(actions)
            for column in ("rewards", "terminated", "truncated", "valid"):
                np.testing.assert_array_equal(getattr(segment, column)[step], getattr(taken, column))
            observations = taken.observations
            episodes += taken.episodes
    assert [episode for segment in segments for episode in segment.episodes] == episodes != []
    assert collecting.environment_steps == sum(segment.transitions for segment in segments) < 10 * LENGTH * COUNT


def test_spans_name_the_scheme_in_effect_not_the_requested_one(slot: PolicySlot) -> None:
    slot.put(load(all_in_float(random_policy(4, 2, version=7), "int8-weights")))
    assert collect(collector(slot)).spans == (PolicySpan(0, 7, "fp32"),)


def test_a_policy_that_comes_during_a_segment_acts_from_the_next_step(slot: PolicySlot) -> None:
    first, second = load(constant_policy([1.0, 0.0], version=1)), load(constant_policy([0.0, 1.0], version=2))
    slot.put(first)
    collecting = collector(slot, Scripted({2: lambda: slot.put(second)}))
    segment = collect(collecting)
    assert segment.spans == (PolicySpan(0, 1, "int8-weights"), PolicySpan(3, 2, "int8-weights"))
    np.testing.assert_array_equal(segment.actions, [[0] * COUNT] * 3 + [[1] * COUNT] * 5)
    assert list(segment.policy_versions()) == [1] * 3 + [2] * 5
    assert slot.pop_activations() == (10.0, 10.0)
    assert collect(collecting).spans == (PolicySpan(0, 2, "int8-weights"),)
    assert slot.pop_activations() == ()


def test_a_policy_that_comes_between_two_segments_acts_in_all_of_the_next(slot: PolicySlot) -> None:
    slot.put(load(constant_policy([1.0, 0.0], version=1)))
    collecting = collector(slot)
    collect(collecting)
    slot.put(load(constant_policy([1.0, 0.0], version=5)))
    assert collect(collecting).spans == (PolicySpan(0, 5, "int8-weights"),)


def test_stopping_gives_a_shorter_segment_that_the_next_one_joins(slot: PolicySlot) -> None:
    stop = threading.Event()
    slot.put(load(random_policy(4, 2)))
    collecting = collector(slot, Scripted({2: stop.set}))
    partial = collect(collecting, stop)
    assert (partial.steps, partial.sequence) == (3, 1)
    assert collecting.collect(stop) is None
    stop.clear()
    following = collect(collecting, stop)
    assert (following.steps, following.sequence, following.follows) == (LENGTH, 2, True)
    np.testing.assert_array_equal(partial.observations[-1], following.observations[0])


def test_it_waits_for_the_first_policy(slot: PolicySlot) -> None:
    collected: list[Segment] = []
    collecting = collector(slot)
    thread = threading.Thread(target=lambda: collected.append(collect(collecting)))
    thread.start()
    slot.put(load(constant_policy([1.0, 0.0], version=3)))
    thread.join(DEADLINE_S)
    assert collected[0].spans == (PolicySpan(0, 3, "int8-weights"),)


def test_it_does_not_wait_for_a_policy_when_it_should_stop(slot: PolicySlot) -> None:
    stop = threading.Event()
    collected: list[Segment | None] = []
    collecting = collector(slot)
    thread = threading.Thread(target=lambda: collected.append(collecting.collect(stop)))
    thread.start()
    stop.set()
    slot.close()
    thread.join(DEADLINE_S)
    assert collected == [None]


class Noisy:
    """Acts as its greedy actions say, and half the range beyond it in every other step."""

    def __init__(self) -> None:
        self.greedy_actions = np.zeros((COUNT, 1), np.float32)
        self.steps = 0

    def __call__(self, policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
        self.greedy_actions[:] = 0.01 * self.steps
        self.steps += 1
        actions: NDArray[Any] = self.greedy_actions + self.steps % 2
        return actions


def test_segments_have_greedy_actions_if_the_run_needs_them(slot: PolicySlot) -> None:
    environments = make_environments("Pendulum-v1", COUNT)
    spec, explore = environments.spec, Noisy()
    slot.put(OnnxPolicy(constant_policy([0.0], observation_size=3), spec.observations, COUNT))
    collecting = SegmentCollector(
        environments, PolicyTurns(slot), explore, LENGTH, SEED, columns={GREEDY_ACTIONS: explore.greedy_actions}
    )
    for first in (0, LENGTH):
        segment = collecting.collect(threading.Event())
        assert segment is not None
        segment.check(spec)
        expected = np.broadcast_to(0.01 * np.arange(first, first + LENGTH)[:, None, None], (LENGTH, COUNT, 1))
        np.testing.assert_allclose(segment.columns[GREEDY_ACTIONS].astype(float), expected, rtol=1e-6)
        np.testing.assert_allclose(segment.actions[::2].astype(float), expected[::2] + 1, rtol=1e-6)
    assert GREEDY_ACTIONS not in collect(collector_of_cartpoles(slot)).columns


def collector_of_cartpoles(slot: PolicySlot) -> SegmentCollector:
    slot.put(load(random_policy(4, 2)))
    return collector(slot)


FRAMES = "environment_doubles:Frames-v0"


def stacked(environments: Environments, depth: int) -> Environments:
    """The same environments, of which a policy sees the last `depth` observations."""
    environments.spec = replace(environments.spec, frame_stack=depth)
    return environments


class Seeing:
    """Chooses the actions of a table, row by row, and records the policy's input."""

    def __init__(self, actions: NDArray[Any]) -> None:
        self._actions = actions
        self.seen: list[NDArray[Any]] = []

    def __call__(self, policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
        self.seen.append(observations.copy())
        taken: NDArray[Any] = self._actions[len(self.seen) - 1]
        return taken


def expected_stacks(segment: Segment, depth: int) -> NDArray[Any]:
    """What a policy saw at each step of a segment, rebuilt from single frames and ages: [T, N, K, ...]."""
    count = segment.environments
    stacks = []
    ages = segment.ages.astype(int)
    for step in range(segment.steps):
        rows = [
            [segment.observations[depth - 1 + step - min(back, ages[index]), index] for back in reversed(range(depth))]
            for index in range(count)
        ]
        stacks.append(rows)
        ages = np.where(segment.valid[step], ages + 1, 0)
    return np.array(stacks)


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_a_policy_sees_stacks_and_segments_hold_single_frames(slot: PolicySlot, length: int) -> None:
    count, depth, steps = 3, 4, 40
    slot.put(OnnxPolicy(constant_policy([0.0] * 3, 4), ArraySpec((4,), "float32"), count))
    seeing = Seeing(np.zeros((steps, count), np.int64))
    environments = stacked(make_environments(FRAMES, count), depth)
    collecting = SegmentCollector(environments, PolicyTurns(slot), seeing, length, SEED)
    segments = [collecting.collect(threading.Event()) for _ in range(steps // length)]
    endings = 0
    for number, segment in enumerate(segments):
        assert segment is not None
        segment.check(environments.spec)
        assert segment.observations.shape == (depth - 1 + length + 1, count, 2, 2, 1)
        seen = np.array(seeing.seen[number * length : (number + 1) * length])
        np.testing.assert_array_equal(seen, expected_stacks(segment, depth))
        endings += len(segment.episodes)
    assert endings == 3 * count
    # Never more than one episode in a stack: the twenties say which.
    assert all((stack // 20 == stack[-1] // 20).all() for row in seeing.seen for stack in row)


def test_ages_are_those_of_the_episodes_and_stop_at_255(slot: PolicySlot) -> None:
    slot.put(OnnxPolicy(constant_policy([0.0] * 3, 2), ArraySpec((2,), "float32"), 1))
    environments = make_environments("MountainCar-v0", 1)
    collecting = SegmentCollector(environments, PolicyTurns(slot), lambda policy, seen: np.ones(1, np.int64), 50, SEED)
    ages = [int(collect_of(collecting).ages[0]) for _ in range(6)]
    # 200 steps and one that resets.
    assert ages == [0, 50, 100, 150, 200, 49]
    environments.lengths[:] = 300
    assert int(collect_of(collecting).ages[0]) == 255


def collect_of(collecting: SegmentCollector) -> Segment:
    segment = collecting.collect(threading.Event())
    assert segment is not None
    return segment


@pytest.mark.parametrize(
    ("name", "restarts", "resets"), [("Raising", 1, 0), ("NaNReward", 0, 1), ("InfiniteObservation", 0, 1)]
)
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("fatal", [4, 6, 7])
def test_a_step_in_which_an_environment_failed_is_dropped_and_no_other(
    slot: PolicySlot, name: str, restarts: int, resets: int, depth: int, fatal: int
) -> None:
    count = 2
    actions = np.zeros((100, count), np.int64)
    actions[fatal, 1] = 2
    slot.put(OnnxPolicy(constant_policy([0.0] * 3, 2), ArraySpec((2,), "float32"), count))
    seeing, counts = Seeing(actions), ActorCounts()
    environments = stacked(make_environments(f"environment_doubles:{name}-v0", count), depth)
    collecting = SegmentCollector(environments, PolicyTurns(slot), seeing, 4, SEED, counts)
    segments = [collect_of(collecting) for _ in range(3)]
    told = (counts.dropped_segments.value, counts.environment_restarts.value, counts.environment_resets.value)
    assert told == (0, restarts, resets)
    for number, segment in enumerate(segments):
        segment.check(environments.spec)
        seen = np.array(seeing.seen[number * 4 : (number + 1) * 4])
        if depth > 1:
            np.testing.assert_array_equal(seen, expected_stacks(segment, depth))
    assert [segment.sequence for segment in segments] == [1, 2, 3]
    assert [segment.follows for segment in segments] == [False, True, True]
    # 12 steps of both, of which one failed.
    valid = np.concatenate([segment.valid for segment in segments])
    assert np.argwhere(~valid).tolist() == [[fatal, 1]]
    assert collecting.environment_steps == 2 * 12 - 1
    # The episode is cut before the failed step, with its observation, if that step is in the same segment.
    truncated = np.concatenate([segment.truncated for segment in segments])[:11]
    assert np.argwhere(truncated).tolist() == ([] if fatal % 4 == 0 else [[fatal - 1, 1]])
    failed = segments[fatal // 4]
    at = depth - 1 + fatal % 4
    np.testing.assert_array_equal(failed.observations[at], [[fatal, 1], [fatal, 1]])
    np.testing.assert_array_equal(failed.observations[at + 1], [[fatal + 1, 1], [0, 1 if restarts else 2]])
    assert failed.rewards[fatal % 4].tolist() == [1.0, 0.0]


def test_a_segment_in_which_every_step_failed_is_dropped(slot: PolicySlot) -> None:
    actions = np.zeros((100, 2), np.int64)
    actions[4:6] = 2
    slot.put(OnnxPolicy(constant_policy([0.0] * 3, 2), ArraySpec((2,), "float32"), 2))
    counts = ActorCounts()
    environments = make_environments("environment_doubles:NaNReward-v0", 2)
    collecting = SegmentCollector(environments, PolicyTurns(slot), Seeing(actions), 2, SEED, counts)
    first, second, third, fourth = (collect_of(collecting) for _ in range(4))
    assert counts.dropped_segments.value == 1
    assert [segment.sequence for segment in (first, second, third, fourth)] == [1, 2, 3, 4]
    assert [segment.follows for segment in (first, second, third, fourth)] == [False, True, False, True]
    np.testing.assert_array_equal(third.ages, [0, 0])
    assert third.valid.all()


def test_a_call_to_the_environments_is_watched(slot: PolicySlot) -> None:
    slot.put(load(constant_policy([1.0, 0.0])))
    watched = Watched(clock=lambda: 3.0)
    inside: list[float | None] = []
    environments = make_environments("CartPole-v1", COUNT)
    step = environments.step

    def observed_step(actions: NDArray[Any]) -> Step:
        inside.append(watched.since)
        return step(actions)

    environments.step = observed_step  # type: ignore[method-assign]
    collect(SegmentCollector(environments, PolicyTurns(slot), greedy, LENGTH, SEED, watched=watched))
    assert inside == [3.0] * LENGTH
    assert watched.since is None


def test_an_environment_that_fails_in_every_segment_yields_its_good_steps(slot: PolicySlot) -> None:
    slot.put(OnnxPolicy(constant_policy([0.0] * 3, 2), ArraySpec((2,), "float32"), 2))
    counts = ActorCounts()
    environments = make_environments("environment_doubles:Fragile-v0", 2)
    collecting = SegmentCollector(environments, PolicyTurns(slot), greedy, 6, SEED, counts)
    for _ in range(20):
        np.testing.assert_array_equal(collect_of(collecting).valid[:, 0], [True, True, False] * 2)
    assert (counts.dropped_segments.value, counts.environment_restarts.value) == (0, 80)
