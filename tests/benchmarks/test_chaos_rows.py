"""The chaos run with several agents finds rows of other agents, lives and episodes."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actor_service.acting.collector import SegmentCollector
from actor_service.acting.turns import PolicyTurns
from actor_service.environments import make_environments
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actorq.domain.environments import EnvironmentArguments
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Segment
from benchmarks.faults.chaos import __main__ as chaos
from benchmarks.faults.chaos.environment import codes_of
from benchmarks.faults.chaos.kind import TEAM
from benchmarks.faults.chaos.ledger import Ledger, judge
from benchmarks.faults.chaos.rows import RowVerdict, judge_rows, judge_segment, row_targets
from benchmarks.faults.chaos.team import AGENTS, GROUPS, LIVES, STEPS, CodedTeam, acting_at, places_of
from benchmarks.harness import run_benchmark
from learner_service.replay import ReplayStore
from learner_service.replay.storage.columns import TERMINATED, TRUNCATED, VALID
from sitegen.tables import faults
from tests.actor_service.actor_policies import random_policy
from tests.learner_service.replay.replay_segments import source

ENVIRONMENTS, LENGTH, SEGMENTS = 2, 10, 10
Rows = tuple[NDArray[Any], NDArray[np.uint8]]


@pytest.fixture(scope="module", params=[(), tuple((name, tuple(agents)) for name, agents in GROUPS.items())], ids=len)
def sent(request: pytest.FixtureRequest) -> tuple[EnvironmentSpec, list[Segment]]:
    environments = make_environments(TEAM, ENVIRONMENTS, arguments=EnvironmentArguments(agent_groups=request.param))
    slot = PolicySlot()
    observed = environments.spec.observations
    slot.put(OnnxPolicy(random_policy(observed.shape[0], 2), observed, environments.rows))
    collector = SegmentCollector(
        environments, PolicyTurns(slot), lambda policy, seen: policy(seen).argmax(axis=1), LENGTH, 5
    )
    found = [collector.collect(threading.Event()) for _ in range(SEGMENTS)]
    return environments.spec, [each for each in found if each is not None]


def flags_of(segment: Segment) -> NDArray[np.uint8]:
    bits = segment.valid * VALID + segment.terminated * TERMINATED + segment.truncated * TRUNCATED
    return np.asarray(bits, np.uint8)


def whole(sent: tuple[EnvironmentSpec, list[Segment]]) -> Rows:
    """The observations and flags of all segments as one."""
    segments = sent[1]
    observations = np.concatenate([*(each.observations[:-1] for each in segments), segments[-1].observations[-1:]])
    return observations, np.concatenate([flags_of(each) for each in segments])


def test_agents_follow_their_lives_and_each_observation_has_its_place() -> None:
    team, codes = CodedTeam(), []
    for episode in range(2):
        observations, _ = team.reset(seed=episode)
        for step in range(STEPS):
            assert [AGENTS.index(agent) for agent in team.agents] == acting_at(step)
            for agent in team.agents:
                places = places_of(codes_of(observations[agent]))
                assert (AGENTS[int(places.agents)], int(places.episodes), int(places.steps)) == (agent, episode, step)
                codes.append(int(codes_of(observations[agent])))
            observations, rewards, terminated, truncated, _ = team.step(dict.fromkeys(team.agents, 0))
            assert {*rewards.values()} <= {0.0, 1.0}
            leaving = {agent for agent in rewards for life in LIVES[agent] if life.last == step}
            assert {agent for agent in rewards if terminated[agent] or truncated[agent]} == leaving
        assert not team.agents
    assert len({*codes}) == len(codes)


def test_an_actors_rows_are_no_fault(sent: tuple[EnvironmentSpec, list[Segment]]) -> None:
    found = judge_segment(*whole(sent))
    steps = ENVIRONMENTS * SEGMENTS * LENGTH
    # An environment resets in the step after an episode.
    assert found.steps == steps - ENVIRONMENTS * (SEGMENTS * LENGTH // (STEPS + 1))
    assert found.rows + found.absent == steps * len(AGENTS)
    assert found == RowVerdict(found.steps, found.rows, absent=found.absent)
    assert all(target.met for target in row_targets(found))


@pytest.mark.parametrize(
    ("fault", "counts"),
    [
        ("two agents exchange their rows", ("other_agent", "wrong_team")),
        ("a step is missing", ("other_successor",)),
        ("another environment follows", ("other_successor", "wrong_team")),
        ("an end is missing", ("wrong_end",)),
        ("a terminal end counts as a time limit", ("wrong_end",)),
        ("a row is missing", ("wrong_team",)),
        ("an absent agent has a row", ("other_agent", "wrong_team")),
    ],
)
def test_each_fault_is_found(fault: str, counts: tuple[str, ...], sent: tuple[EnvironmentSpec, list[Segment]]) -> None:
    observations, flags = (each.copy() for each in whole(sent))
    match fault:
        case "two agents exchange their rows":
            observations[:, [0, 1]], flags[:, [0, 1]] = observations[:, [1, 0]], flags[:, [1, 0]]
        case "a step is missing":
            observations, flags = np.delete(observations, 5, axis=0), np.delete(flags, 5, axis=0)
        case "another environment follows":
            observations[5:, 0] = observations[5:, 3]
        case "an end is missing":
            flags[7, 1] &= ~np.uint8(TERMINATED)
        case "a terminal end counts as a time limit":
            flags[7, 1] ^= np.uint8(TERMINATED | TRUNCATED)
        case "a row is missing":
            flags[5, 0] = 0
        case "an absent agent has a row":
            flags[0, 2] |= VALID
    found = judge_segment(observations, flags)
    assert all(getattr(found, name) > 0 for name in counts), found
    assert not all(target.met for target in row_targets(found))


def test_a_row_of_another_group_is_found(sent: tuple[EnvironmentSpec, list[Segment]]) -> None:
    observations, flags = (each.copy() for each in whole(sent))
    bits = len(sent[0].groups)
    observations[3, 1, :bits] = 1 - observations[3, 1, :bits]
    found = judge_segment(observations, flags)
    assert found.other_group == (bits > 0)
    assert all(target.met for target in row_targets(found)) == (not bits)


def test_ledgers_and_replay_have_the_same_rows(tmp_path: Path, sent: tuple[EnvironmentSpec, list[Segment]]) -> None:
    spec, segments = sent
    ledgers = tmp_path / "ledgers"
    ledgers.mkdir()
    ledger = Ledger(ledgers / "1.ledger")
    store = ReplayStore.open(tmp_path / "replay", spec, 2_000, rows_per_segment=4)
    for each in segments:
        ledger.made(each)
        assert store.insert(each, source(each.sequence)) is not None
    ledger.acknowledged(segments[-1].sequence)
    found = judge_rows(store)
    verdict = judge(ledgers, codes_of(store.observations[np.flatnonzero(store.flags & VALID)]))
    store.close()
    assert found == judge_segment(*whole(sent))
    assert (verdict.lost, verdict.twice, verdict.unknown) == (0, 0, 0)
    assert verdict.stored == found.rows


def test_the_page_shows_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = RowVerdict(steps=100, rows=200, wrong_end=3, absent=50)
    # Results of one policy may be older than the count of other groups.
    older = {name: count for name, count in vars(rows).items() if name != "other_group"}
    results = {"chaos_agents": older, "chaos_groups": vars(rows)}
    monkeypatch.setattr(faults, "figures", lambda name: {"rows": results[name]})
    assert faults.chaos_rows().splitlines()[2:] == [
        "| one policy | 100 | 200 | 0 |  | 0 | 3 | 0 | 50 |",
        "| two groups | 100 | 200 | 0 | 0 | 0 | 3 | 0 | 50 |",
    ]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--agents", "--memory", "gru"), "--agents: expected --memory none"),
        (("--groups",), "--groups: expected --agents"),
    ],
)
def test_checks_that_do_not_fit_are_refused(flags: tuple[str, ...], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["chaos", *flags])
    with pytest.raises(SystemExit, match=text):
        run_benchmark("", chaos._flags, chaos._measure)
