"""The acting loop for simulators: who is answered, by which policy, and what is stored."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from actor_service.counts import ActorCounts
from actor_service.external.acting import loop as loop_module
from actor_service.external.acting.evaluation import MarkedEpisodes
from actor_service.external.acting.exploration import RowExploration, row_exploration
from actor_service.external.acting.loop import SimulatorActing
from actor_service.external.acting.pace import PolicyPace
from actor_service.external.acting.segments import SegmentForm
from actor_service.external.acting.sizes import SizedLoader, SizedPolicy
from actor_service.external.explorer import WakingSlot
from actor_service.external.streams.door import Door
from actorq.domain.columns import LOG_PROBABILITIES
from actorq.domain.policy import Policy
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration
from actorq.domain.trajectory import Episode, Segment
from tests.actor_service.actor_policies import constant_policy, logits_policy, recurrent_policy
from tests.actor_service.external.simulators import DEADLINE_S, SPEC, Simulator, door, opening, step

LEFT, RIGHT = [1.0, 0.0], [0.0, 1.0]
make_door = door


@dataclass(eq=False)
class Recorded:
    """An exploration that records the threads of its calls."""

    inner: RowExploration
    threads: list[threading.Thread]
    needs: Any = ()
    columns: Any = ()

    def __call__(self, *given: Any) -> Any:
        self.threads.append(threading.current_thread())
        return self.inner(*given)


@dataclass(eq=False)
class Box:
    """Collects segments instead of an outbox."""

    has_room: bool = True
    segments: queue.SimpleQueue[Segment] = field(default_factory=queue.SimpleQueue)

    def put(self, stream: object, segment: Segment) -> None:
        self.segments.put(segment)

    def next(self) -> Segment:
        return self.segments.get(timeout=DEADLINE_S)


@dataclass(eq=False)
class Acting:
    """A running loop."""

    door: Door
    slot: WakingSlot
    box: Box
    loop: SimulatorActing
    load: SizedLoader
    thread: threading.Thread

    def policy(self, given: Policy, needs: Any = ()) -> SizedPolicy:
        return self.load(given, SPEC, 1, needs)


@contextmanager
def acting(
    exploration: Exploration | None = None,
    first: Policy | None = None,
    state_size: int = 0,
    transitions: int = 16,
    most_steps: int = 0,
    spec: EnvironmentSpec = SPEC,
    ready: bool = True,
    **limits: Any,
) -> Iterator[Acting]:
    """A loop on a thread of its own, by default with a policy that goes right, and without exploration."""
    at, counts = make_door(**limits), ActorCounts()
    slot, box, stop = WakingSlot(counts, at.wake), Box(), threading.Event()
    explore = row_exploration(spec, exploration or Exploration((0.0,), (0.0,)), np.random.default_rng(0), ())
    stored = tuple(name for name in explore.columns if name != "actions")
    states = (f"state_{state_size}",) if state_size else ()
    form = SegmentForm(spec, (*stored, *states), state_size, transitions, 2**20, usual=transitions)
    pace, marked = PolicyPace(most_steps, 1, 1_000.0), MarkedEpisodes()
    loop = SimulatorActing(at, slot, form, explore, marked, pace, box, counts)  # type: ignore[arg-type]
    thread = threading.Thread(target=loop.run, args=(stop,))
    running = Acting(at, slot, box, loop, SizedLoader(), thread)
    if ready:
        slot.put(running.policy(first or constant_policy(RIGHT), explore.needs))
    thread.start()
    try:
        yield running
    finally:
        stop.set()
        at.wake()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()


@pytest.fixture(autouse=True, params=["thread", "server"])
def answering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test runs with a loop that answers on its own thread, and with one that a server's thread helps."""

    def made(**limits: Any) -> Door:
        at = door(**limits)
        if request.param == "server":
            # The thread that sends a step is the server's, and helps at once.
            at.soon = lambda function: function()
        return at

    monkeypatch.setattr(f"{__name__}.make_door", made)
    found: str = request.param
    return found


def test_the_servers_thread_answers_while_batches_are_quick(monkeypatch: pytest.MonkeyPatch, answering: str) -> None:
    monkeypatch.setattr(loop_module, "_QUICK_S", 1e9)
    acted: list[threading.Thread] = []
    with acting() as running:
        monkeypatch.setattr(running.loop, "explore", Recorded(running.loop.explore, acted))
        simulator = Simulator(running.door)
        # The first batch is measured on the loop's own thread.
        for _ in range(50):
            simulator.play(step())
    assert len(acted) == 50
    assert threading.current_thread() is not acted[0]
    assert (threading.current_thread() in acted) == (answering == "server")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_on_any_thread_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "_QUICK_S", 1e9)

    def fail(*given: Any) -> Any:
        raise ArithmeticError("a fault")

    with acting() as running:
        simulator = Simulator(running.door)
        for _ in range(10):
            simulator.play(step())
        monkeypatch.setattr(Recorded, "__call__", fail)
        monkeypatch.setattr(running.loop, "explore", Recorded(running.loop.explore, []))
        simulator.offer(step())
        running.thread.join(DEADLINE_S)
        assert not running.thread.is_alive()
        # Nobody answers from now on.
        simulator.offer(step())
        assert simulator.replies.empty()


def test_slow_batches_leave_the_servers_thread_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "_QUICK_S", 0.0)
    acted: list[threading.Thread] = []
    with acting() as running:
        monkeypatch.setattr(running.loop, "explore", Recorded(running.loop.explore, acted))
        simulator = Simulator(running.door)
        for _ in range(3):
            simulator.play(step())
    assert threading.current_thread() not in acted
    assert len(acted) == 3


def test_each_step_gets_one_action_of_the_newest_policy_with_its_version() -> None:
    with acting() as running:
        simulator = Simulator(running.door, opening(3))
        three = np.zeros((3, 4), np.float32)
        answer = simulator.play(step(three))
        np.testing.assert_array_equal(answer.actions, [1, 1, 1])
        np.testing.assert_array_equal(answer.policy_versions, [1, 1, 1])
        assert answer.scheme == "int8-weights"
        assert not answer.evaluating.any()
        running.slot.put(running.policy(constant_policy(LEFT, version=2)))
        answer = simulator.play(step(three))
        np.testing.assert_array_equal(answer.actions, [0, 0, 0])
        np.testing.assert_array_equal(answer.policy_versions, [2, 2, 2])


def test_simulators_wait_for_the_first_policy() -> None:
    with acting(ready=False) as running:
        simulator = Simulator(running.door)
        simulator.offer(step())
        assert simulator.replies.empty()
        running.slot.put(running.policy(constant_policy(RIGHT)))
        assert simulator.answer().actions == [1]


@pytest.mark.parametrize("count", [1, 9, 130])
def test_a_stream_of_any_size_is_answered(count: int) -> None:
    with acting(transitions=1_000, max_environments=1_000) as running:
        simulator = Simulator(running.door, opening(count))
        answer = simulator.play(step(np.zeros((count, 4), np.float32)))
        np.testing.assert_array_equal(answer.actions, np.ones(count))


def test_a_frozen_simulator_stops_nobody() -> None:
    with acting(batch_wait_ms=20) as running:
        frozen, other = Simulator(running.door), Simulator(running.door)
        for _ in range(3):
            frozen.offer(step())
            other.play(step())
            frozen.answer()
        for _ in range(20):
            other.play(step())


def test_exploring_episodes_are_stored_with_the_acting_policies() -> None:
    with acting(transitions=4) as running:
        simulator = Simulator(running.door)
        for value in range(4):
            simulator.play(step(np.full((1, 4), value, np.float32), rewards=float(value)))
        running.slot.put(running.policy(constant_policy(LEFT, version=2)))
        simulator.play(step(np.full((1, 4), 4, np.float32), rewards=4.0, terminated=1, successes=[1]))
        segment = running.box.next()
        segment.check(SPEC)
        np.testing.assert_array_equal(segment.observations[:, 0, 0], [0, 1, 2, 3, 4])
        np.testing.assert_array_equal(segment.rewards[:, 0], [1, 2, 3, 4])
        np.testing.assert_array_equal(segment.terminated[:, 0], [0, 0, 0, 1])
        assert segment.episodes == (Episode(10.0, 4, 0, True),)
        assert [(span.first_step, span.version) for span in segment.spans] == [(0, 1)]
        assert running.loop.environment_steps == 4


def test_a_simulator_that_goes_away_cuts_its_episode() -> None:
    with acting() as running:
        simulator = Simulator(running.door, opening(2))
        two = np.zeros((2, 4), np.float32)
        for _ in range(3):
            simulator.play(step(two))
        simulator.play(step(two, terminated=[1, 0]))
        simulator.leave()
        segment = running.box.next()
        segment.check(SPEC)
        np.testing.assert_array_equal(segment.terminated[-1], [True, False])
        np.testing.assert_array_equal(segment.truncated[-1], [False, True])
        # The loop counts after it sends.
        Simulator(running.door).play(step())
        assert running.loop.counts.cut_episodes.value == 1


def test_a_policy_server_answers_greedily_and_stores_nothing() -> None:
    with acting(Exploration((1.0,), (0.0,)), transitions=2) as running:
        running.box.has_room = False
        server, trainer = Simulator(running.door, opening(explore=False)), Simulator(running.door)
        trainer.offer(step())
        for _ in range(20):
            assert server.play(step()).actions == [1]
        assert trainer.replies.empty(), "it explores although nobody can store its steps"
        running.box.has_room = True
        running.door.wake()
        trainer.answer()
        server.leave()
        assert running.box.segments.empty()


def test_streams_wait_for_a_newer_policy_after_the_steps_that_the_run_allows() -> None:
    with acting(most_steps=3) as running:
        simulator = Simulator(running.door)
        for _ in range(3):
            simulator.play(step())
        simulator.offer(step())
        # The learner may need these steps for the newer policy.
        assert running.box.next().steps == 3
        assert simulator.replies.empty()
        running.slot.put(running.policy(constant_policy(LEFT, version=2)))
        assert simulator.answer().policy_versions == [2]


def test_a_recurrent_policy_keeps_a_state_for_each_environment() -> None:
    with acting(first=recurrent_policy(1), state_size=1, transitions=4) as running:
        one, other = Simulator(running.door), Simulator(running.door)
        for value in range(3):
            one.play(step(np.full((1, 4), value, np.float32)))
            other.play(step(np.full((1, 4), 10 * value, np.float32)))
        one.play(step(terminated=1))
        for _ in range(9):
            one.play(step(np.ones((1, 4), np.float32)))
        # The second segment begins with the new episode, and the third one four actions later.
        states = [running.box.next().columns["state_1"].tolist() for _ in range(3)]
        assert states == [[[0.0]], [[0.0]], [[16.0]]]
        other.leave()
        np.testing.assert_array_equal(running.box.next().columns["state_1"], [[0.0]])


def test_drawn_actions_are_stored_with_their_log_probabilities() -> None:
    drawn = Exploration((), (), sampling="clipped")
    with acting(drawn, first=logits_policy([0.0, 1.0]), transitions=4) as running:
        simulator = Simulator(running.door)
        given = [int(simulator.play(step()).actions[0]) for _ in range(5)][:4]
        segment = running.box.next()
        segment.check(SPEC)
        np.testing.assert_array_equal(segment.actions[:, 0], given)
        expected = np.log(np.array([1.0, np.e]) / (1 + np.e))[given]
        found = segment.columns[LOG_PROBABILITIES][:, 0].astype(np.float32)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@contextmanager
def evaluating(running: Acting, policy: Policy, episodes: int) -> Iterator["queue.SimpleQueue[list[Episode]]"]:
    """An evaluation on another thread, once it has begun."""
    found: queue.SimpleQueue[list[Episode]] = queue.SimpleQueue()
    stop, marked, pinned = threading.Event(), running.loop.marked, running.policy(policy)
    thread = threading.Thread(target=lambda: found.put(marked.run(pinned, episodes, stop)))
    thread.start()
    while marked.policy is not pinned:
        thread.join(0.001)
    try:
        yield found
    finally:
        stop.set()
        marked.wake()
        thread.join(DEADLINE_S)


def episode(simulator: Simulator, length: int, reward: float = 1.0) -> bool:
    """Play a whole episode. Returns whether it was an evaluation."""
    marked = bool(simulator.play(step()).evaluating[0])
    for number in range(1, length + 1):
        simulator.play(step(rewards=reward, terminated=int(number == length)))
    return marked


def test_every_second_episode_is_an_evaluation_until_there_are_enough() -> None:
    with acting() as running:
        simulator = Simulator(running.door)
        assert not episode(simulator, 2)
        with evaluating(running, constant_policy(LEFT, version=7), 2) as found:
            marks = [episode(simulator, length) for length in (3, 4, 5, 6, 7)]
            assert marks == [True, False, True, False, False]
            assert found.get(timeout=DEADLINE_S) == [Episode(3.0, 3, 0), Episode(5.0, 5, 0)]
        assert running.loop.marked.steps == 8
        assert running.loop.environment_steps == running.loop.marked.explored == 2 + 4 + 6 + 7


def test_an_evaluation_acts_with_its_own_policy_and_is_no_training_data() -> None:
    with acting(transitions=100) as running:
        simulator = Simulator(running.door)
        with evaluating(running, constant_policy(LEFT, version=7), 1):
            answer = simulator.play(step())
            found = [values.tolist() for values in (answer.actions, answer.policy_versions, answer.evaluating)]
            assert found == [[0], [7], [True]]
            simulator.play(step(terminated=1))
        episode(simulator, 3)
        simulator.leave()
        segment = running.box.next()
        segment.check(SPEC)
        assert segment.episodes == (Episode(3.0, 3, 0),)
        # The first step only began the episode.
        assert (segment.steps, segment.transitions) == (4, 3)


def test_an_evaluation_in_a_stream_with_others_leaves_their_steps_valid() -> None:
    with acting(transitions=8) as running:
        simulator, two = Simulator(running.door, opening(2)), np.zeros((2, 4), np.float32)
        with evaluating(running, constant_policy(LEFT, version=7), 1):
            answer = simulator.play(step(two))
            np.testing.assert_array_equal(answer.evaluating, [True, False])
            np.testing.assert_array_equal(answer.actions, [0, 1])
            simulator.play(step(two))
            simulator.play(step(two, terminated=[1, 0]))
            simulator.play(step(two))
            simulator.play(step(two))
        segment = running.box.next()
        segment.check(SPEC)
        np.testing.assert_array_equal(segment.valid, [[0, 1], [0, 1], [0, 1], [1, 1]])
        assert not segment.episodes


def test_an_episode_of_an_evaluation_that_is_lost_is_replaced() -> None:
    with acting() as running:
        lost, other = Simulator(running.door), Simulator(running.door)
        with evaluating(running, constant_policy(LEFT, version=7), 1) as found:
            assert lost.play(step()).evaluating[0]
            assert not other.play(step()).evaluating[0]
            lost.leave()
            other.play(step(terminated=1))
            assert episode(other, 4)
            assert found.get(timeout=DEADLINE_S) == [Episode(4.0, 4, 0)]
