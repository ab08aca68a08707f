"""The task that one policy for all agents cannot solve: its bounds, the runs of the benchmark, and its verdicts."""

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actorq.config.run_config import RunConfig
from actorq.process import parse_arguments
from benchmarks.environments import lift
from benchmarks.environments.lift import AGENTS, GROUPS, LEVELS, STEPS, Lift, pulls_at
from benchmarks.training.agents import groups
from benchmarks.training.agents.groups import BY_GROUP, IDENTITY, MEANINGS, ONE, SIDES, flags_of, targets
from sitegen.tables import agents as tables

CONDITIONS: dict[str, Any] = {"commit": "c", "changes": None, "machine": {}}
Act = Callable[[int, int], dict[str, int]]


def level_of(observations: dict[str, NDArray[np.float32]]) -> int:
    (level,) = {int(each.argmax()) for each in observations.values()}
    return level


def mean_return(act: Act, episodes: int) -> float:
    """act: maps a level and the number of a step to actions."""
    found = []
    for seed in range(episodes):
        environment = Lift()
        observations, _ = environment.reset(seed=seed)
        total = 0.0
        for step in range(STEPS):
            observations, rewards, terminated, truncated, _ = environment.step(act(level_of(observations), step))
            total += sum(rewards.values())
            assert not any(terminated.values())
            assert {*truncated.values()} == {step == STEPS - 1}
        assert environment.agents == []
        found.append(total)
    return float(np.mean(found))


def test_the_load_rises_only_if_one_side_pulls_and_the_other_holds() -> None:
    environment = Lift()
    for level, pulls in product(range(LEVELS), product((False, True), repeat=len(AGENTS))):
        environment.reset()
        environment._level = level
        observations, rewards, *_ = environment.step(dict(zip(AGENTS, map(int, pulls), strict=True)))
        if list(pulls) == pulls_at(level):
            expected, rewarded = (level + 1) % LEVELS, 1.0
        else:
            expected, rewarded = 0 if any(pulls) else level, 0.0
        assert level_of(observations) == expected
        assert rewards == dict.fromkeys(AGENTS, rewarded)
    assert sorted(agent for group in GROUPS.values() for agent in group) == sorted(AGENTS)


def test_the_best_team_lifts_in_each_step() -> None:
    def best(level: int, step: int) -> dict[str, int]:
        return dict(zip(AGENTS, map(int, pulls_at(level)), strict=True))

    assert mean_return(best, 3) == lift.best_return() == STEPS * len(AGENTS)


def test_the_bounds_are_those_of_played_episodes() -> None:
    rng = np.random.default_rng(1)

    def shared(pulls: Callable[[int], float]) -> Act:
        return lambda level, step: {agent: int(rng.random() < pulls(level)) for agent in AGENTS}

    # On even levels one of three agents must pull, on odd ones two: p (1 - p)^2 and p^2 (1 - p) have these maxima.
    likely = mean_return(shared(lambda level: 1 / 3 if level % 2 == 0 else 2 / 3), 3_000)
    assert likely == pytest.approx(lift.best_shared_return(), rel=0.03)
    random = mean_return(shared(lambda level: 0.5), 3_000)
    assert random == pytest.approx(lift.random_return(), rel=0.03)
    assert lift.random_return() < lift.best_shared_return() < 0.2 * lift.best_return()


def test_no_greedy_policy_for_all_agents_lifts_the_load() -> None:
    for pulls in product((0, 1), repeat=LEVELS):
        assert mean_return(lambda level, step: dict.fromkeys(AGENTS, pulls[level]), 1) == 0.0  # noqa: B023


@pytest.mark.parametrize("algorithm", groups.STEPS)
def test_only_the_policies_differ_between_the_sides(algorithm: str) -> None:
    def config(side: str) -> dict[str, Any]:
        (found,) = parse_arguments("actorq train", "", (RunConfig,), flags_of(algorithm, side, 1))
        return found.model_dump()

    one, identity, by_group = (config(side) for side in (ONE, IDENTITY, BY_GROUP))
    assert by_group["policies"] == {name: tuple(sorted(agents)) for name, agents in GROUPS.items()}
    assert (one["policies"], one["agents"]["identity"], one["scheme"]) == ({}, "none", "int8")
    assert identity == {**one, "agents": {**one["agents"], "identity": "one-hot"}}
    assert by_group == {**one, "policies": by_group["policies"]}


def runs_of(algorithm: str, side: str, *returns: float, scheme: str = "int8") -> list[dict[str, Any]]:
    return [
        {
            "task": algorithm,
            "algorithm": algorithm,
            "side": side,
            "seed": seed,
            "environment_steps": 1_000,
            "wall_clock_s": 5.0,
            "confirmed": {"mean_return": each, "episodes": 100, "scheme": scheme},
            "transitions_by_scheme": {scheme: 10},
            "conditions": CONDITIONS,
        }
        for seed, each in enumerate(returns, start=1)
    ]


def test_groups_reach_the_target_and_one_policy_stays_below_its_bound() -> None:
    good = [
        *runs_of("ppo", ONE, 0.0, 1.0, 14.0),
        *runs_of("ppo", IDENTITY, 1.0, 2.0, 3.0),
        *runs_of("ppo", BY_GROUP, 96.0, 90.0, 96.0),
    ]
    assert [(target.measured, target.met) for target in targets({"runs": good})] == [
        (90.0, True),
        (14.0, True),
        (9, True),
    ]
    bad = [*runs_of("ppo", ONE, 0.0, 1.0, 15.0), *runs_of("ppo", BY_GROUP, 96.0, 86.0, 96.0, scheme="fp32")]
    assert [target.met for target in targets({"runs": bad})] == [False, False, False]
    for target in targets({"runs": good}):
        assert any(re.fullmatch(meaning.pattern, target.name) for meaning in MEANINGS), target.name
    few = targets({"runs": runs_of("dqn", BY_GROUP, 96.0)})
    assert {target.refused for target in few} == {"fewer than 3 seeds give no verdict"}
    assert not any(
        f"{side}:" in target.name for target in targets({"runs": good}) for side in SIDES if side == IDENTITY
    )


def test_the_page_shows_returns_and_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [*runs_of("dqn", ONE, 0.0, 0.0), *runs_of("dqn", BY_GROUP, 96.0, 93.0)]
    monkeypatch.setattr(tables, "figures", lambda name: {"runs": runs})
    assert tables.agents_groups().splitlines()[2:] == [
        "|  | random actions |  | 12 |  |  |",
        "| dqn | one policy | 0, 0 | 14.2 | 1,000 | 5 |",
        "| dqn | policies by group | 96, 93 | 96 | 1,000 | 5 |",
    ]
