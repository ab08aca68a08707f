"""From environments with several agents to what algorithms learn from: agents, lives and episodes never mix.

The observations of `Coded` say agent, instance, episode and step, so each row of the learner can be traced.
"""

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from team_environments import AGENTS, CODED_STEPS, LIVES, coded_reward, codes_of, life_of

from actor_service.acting.collector import SegmentCollector
from actor_service.acting.turns import PolicyTurns
from actor_service.environments import make_environments
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actorq.domain.columns import PRESENT
from actorq.domain.policy import Policy
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Segment
from learner_service.replay import ObservationMoments, RateLimiter, ReplayBuffer, ReplayStore, Returns, UniformSampler
from learner_service.replay.n_step import assemble
from learner_service.replay.storage.columns import VALID
from learner_service.rollouts import PublishedVersions, RolloutQueue
from learner_service.rollouts.advantages import generalized_advantages
from tests.actor_service.actor_policies import random_policy, recurrent_policy
from tests.learner_service.replay.replay_segments import source

ENVIRONMENTS, LENGTH, SEGMENTS = 2, 5, 26
# Valid rows and environment steps of one episode.
ROWS = sum(last - first + 1 for lives in LIVES.values() for first, last, _ in lives)


def collected(policy: Policy | None = None, state_size: int = 0) -> tuple[EnvironmentSpec, list[Segment]]:
    """Segments of greedy actions in `Coded`."""
    environments = make_environments("team_environments:Coded", ENVIRONMENTS)
    slot = PolicySlot()
    slot.put(OnnxPolicy(policy or random_policy(4, 4), environments.spec.observations, environments.rows))
    collector = SegmentCollector(
        *(environments, PolicyTurns(slot), lambda policy, seen: policy(seen).argmax(axis=1), LENGTH, 5),
        state_size=state_size,
    )
    found = [collector.collect(threading.Event()) for _ in range(SEGMENTS)]
    done = [each for each in found if each is not None]
    for each in done:
        each.check(environments.spec)
    assert collector.environment_steps == sum(each.environment_steps(3) for each in done)
    return environments.spec, done


@pytest.fixture(scope="module")
def sent() -> tuple[EnvironmentSpec, list[Segment]]:
    return collected()


def stored(directory: Path, sent: tuple[EnvironmentSpec, list[Segment]]) -> ReplayStore:
    spec, segments = sent
    store = ReplayStore.open(directory, spec, 2_000, rows_per_segment=4)
    for each in segments:
        assert store.insert(each, source(each.sequence)) is not None
    return store


def traced(codes: NDArray[np.int64]) -> set[tuple[int, ...]]:
    rows = [tuple(each) for each in codes.tolist()]
    assert len({*rows}) == len(rows)
    return {*rows}


def test_budgets_count_environment_steps_and_rows_are_stored_once(
    tmp_path: Path, sent: tuple[EnvironmentSpec, list[Segment]]
) -> None:
    store = stored(tmp_path, sent)
    rows = traced(codes_of(store.observations[store.flags & VALID != 0]))
    steps = {(instance, episode, step) for _, instance, episode, step in rows}
    assert store.total_transitions == store.transitions == len(steps)
    # Each step of an environment has the rows of exactly the agents that take part.
    for instance, episode, step in steps:
        agents = {agent for agent, *rest in rows if tuple(rest) == (instance, episode, step)}
        assert agents == {agent for agent in range(3) if life_of(agent, step)}
    assert len(steps) == ENVIRONMENTS * SEGMENTS * LENGTH * CODED_STEPS / (CODED_STEPS + 1)
    store.close()


@pytest.mark.parametrize("n_step", [1, 3, 20])
def test_returns_of_several_steps_end_where_an_agent_leaves(
    tmp_path: Path, sent: tuple[EnvironmentSpec, list[Segment]], n_step: int
) -> None:
    store = stored(tmp_path, sent)
    rows = np.flatnonzero(store.flags & VALID)
    batch = assemble(store, rows, Returns(n_step, 1.0))
    before, after = codes_of(batch.observations), codes_of(batch.bootstrap_observations)
    newest = before[:, 2:].max(axis=0)
    for begun, ended, target, discount in zip(
        before.tolist(), after.tolist(), batch.returns, batch.bootstrap_discounts, strict=True
    ):
        agent, instance, episode, step = begun
        life = life_of(agent, step)
        assert life is not None
        _, last, terminal = life
        taken = ended[3] - step
        assert ended[:3] == [agent, instance, episode]
        assert target == pytest.approx(sum(coded_reward(agent, step + each) for each in range(taken)))
        whole = min(n_step, last + 1 - step)
        # Only the newest data may end earlier.
        assert taken == whole or episode == newest[0]
        assert discount == (0.0 if terminal and taken == last + 1 - step else 1.0)
    store.close()


def test_frame_stacks_begin_where_an_agent_comes_back(
    tmp_path: Path, sent: tuple[EnvironmentSpec, list[Segment]]
) -> None:
    spec, segments = sent
    stacked = EnvironmentSpec(**{**vars(spec), "frame_stack": 3})
    store = ReplayStore.open(tmp_path, stacked, 4_000, rows_per_segment=4)
    for one, each in zip([None, *segments], segments, strict=False):
        context = np.repeat(each.observations[:1], 2, axis=0) if one is None else one.observations[-3:-1]
        whole = each.with_columns(observations=np.concatenate((context, each.observations)))
        assert store.insert(whole, source(each.sequence)) is not None
    batch = assemble(store, np.flatnonzero(store.flags & VALID), Returns(1, 1.0))
    for stack in codes_of(batch.observations).tolist():
        agent, instance, episode, step = stack[-1]
        life = life_of(agent, step)
        assert life is not None
        assert stack == [[agent, instance, episode, max(life[0], step - back)] for back in (2, 1, 0)]
    store.close()


def test_the_normalizer_counts_only_agents_that_take_part(
    tmp_path: Path, sent: tuple[EnvironmentSpec, list[Segment]]
) -> None:
    store = stored(tmp_path, sent)
    used = store.observations[store.flags & VALID != 0].astype(np.float64)
    moments = ObservationMoments((4,))
    buffer = ReplayBuffer(
        store,
        UniformSampler(store, np.random.default_rng(0)),
        RateLimiter(1.0, 10, 1e6, lambda: 0.0),
        Returns(3, 0.9),
        moments,
    )
    found = buffer.observation_moments()
    assert found is not None
    assert moments.count == len(used)
    np.testing.assert_allclose(found[0], used.mean(axis=0))
    drawn, _ = buffer.draw(500)
    assert {tuple(each) for each in codes_of(drawn.observations).tolist()} <= traced(codes_of(used))
    buffer.close()


def test_trajectories_have_the_advantages_of_single_lives(
    tmp_path: Path, sent: tuple[EnvironmentSpec, list[Segment]]
) -> None:
    spec, segments = sent
    size = SEGMENTS * LENGTH * ENVIRONMENTS
    store = ReplayStore.open(tmp_path, spec, 2_000, ("log_probabilities",), rows_per_segment=4)
    queue = RolloutQueue(store, RateLimiter.of_queue(1, size, size, lambda: 0.0), size, PublishedVersions(2))
    for each in segments:
        told = each.with_columns(log_probabilities=np.zeros_like(each.rewards))
        count = each.steps * ENVIRONMENTS
        assert queue.limiter.try_reserve(count)
        assert queue.insert(told, source(each.sequence), count) is not None
    assert queue.limiter.inserts == size
    (steps,) = queue.next_rollout(timeout=0) or ()
    assert steps.rewards.shape == (SEGMENTS * LENGTH, ENVIRONMENTS * 3)
    values = np.zeros((len(steps.rewards) + 1, ENVIRONMENTS * 3), np.float32)
    targets = generalized_advantages(steps, values, 1.0, 1.0)
    codes = codes_of(steps.observations)
    for t, row in np.argwhere(steps.valid):
        agent, instance, episode, step = codes[t, row].tolist()
        life = life_of(agent, step)
        assert life is not None
        stop = min(life[1], step + len(steps.rewards) - 1 - t)
        expected = sum(coded_reward(agent, each) for each in range(step, stop + 1))
        assert targets.advantages[t, row] == pytest.approx(expected)
        assert codes[t + 1, row].tolist() == [agent, instance, episode, step + 1]
    assert not targets.advantages[~steps.valid].any()
    queue.close()


def test_each_row_says_whether_its_agent_is_present(sent: tuple[EnvironmentSpec, list[Segment]]) -> None:
    counts: Counter[str] = Counter()
    for segment in sent[1]:
        present = segment.columns[PRESENT].astype(np.bool_)
        assert present.shape == segment.valid.shape
        assert not (segment.valid & ~present).any()
        counts.update(AGENTS[row % 3] for _, row in np.argwhere(~present))
    assert counts["red"] == 0
    assert counts["green"] > 0
    assert counts["blue"] > 0


def test_the_state_of_a_memory_is_of_the_agents_own_observations() -> None:
    # The state sums up the observations since it was zero.
    _, segments = collected(recurrent_policy(1, choices=4), state_size=1)
    carried = 0
    for segment in segments:
        present = segment.columns[PRESENT].astype(np.bool_)[0]
        codes, ages = codes_of(segment.observations[0]), segment.ages
        for row, state in enumerate(segment.columns["state_1"].astype(np.float64)[:, 0]):
            *_, step = codes[row]
            life = life_of(row % 3, int(step))
            if not present[row] or ages[row] == 0:
                assert state == 0
                continue
            if life is None:
                # The last observation of an agent that has left.
                continue
            assert ages[row] == step - life[0]
            own = segment.observations[0, row].astype(np.float64)
            before = own[:3].sum() * ages[row] + sum(range(life[0], int(step))) / 32
            assert state == pytest.approx(before, rel=1e-5)
            carried += 1
    assert carried > 20
