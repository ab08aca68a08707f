"""Tasks that need memory: what their environments show, the runs that the benchmark makes, and its verdicts."""

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from actorq.config.run_config import RunConfig
from actorq.process import parse_arguments
from benchmarks.environments.memory import DELAY, POSITIONS, SYMBOLS, Recall
from benchmarks.training.memory.__main__ import MEANINGS, targets
from benchmarks.training.memory.tasks import GRU, NONE, TASKS, Case, cases

ALL = list(cases())
CONDITIONS: dict[str, Any] = {"commit": "c", "changes": None, "machine": {}}


def made(environment: str) -> Any:
    return gymnasium.make(f"benchmarks.environments.memory:{environment}")


@pytest.mark.parametrize("whole", POSITIONS)
def test_only_positions_are_shown(whole: str) -> None:
    (task,) = (task for task in TASKS if task.like == whole)
    full, part = gymnasium.make(whole), made(task.environment)
    assert part.spec.max_episode_steps == full.spec.max_episode_steps  # type: ignore[union-attr]
    assert part.action_space == full.action_space
    shown = list(POSITIONS[whole])
    for seen, of_all in [(part.reset(seed=5)[0], full.reset(seed=5)[0])]:
        np.testing.assert_array_equal(seen, of_all[shown])
    full.action_space.seed(1)
    for _ in range(20):
        action = full.action_space.sample()
        (seen, reward, *ends, _), (of_all, expected, *other_ends, _) = part.step(action), full.step(action)
        np.testing.assert_array_equal(seen, of_all[shown])
        assert (reward, ends) == (expected, other_ends)
        if any(ends):
            break


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_each_environment_follows_the_interface(task: Any) -> None:
    check_env(made(task.environment).unwrapped, skip_render_check=True)


def test_the_symbol_of_the_first_step_is_asked_for_at_the_end() -> None:
    environment = Recall()
    wanted, rewards = set(), []
    for seed in range(20):
        first, _ = environment.reset(seed=seed)
        symbol = int(first[:SYMBOLS].argmax())
        wanted.add(symbol)
        for step in range(DELAY):
            seen, reward, terminated, truncated, _ = environment.step(np.int64(symbol))
            assert (reward, terminated, truncated) == (0.0, False, False)
            assert not seen[SYMBOLS]
            assert seen[SYMBOLS + 1] == (step == DELAY - 1)
        # The question shows no symbol.
        assert not seen[:SYMBOLS].any()
        answer = symbol if seed % 2 else (symbol + 1) % SYMBOLS
        rewards.append((seed % 2, *environment.step(np.int64(answer))[1:3]))
    assert wanted == set(range(SYMBOLS))
    assert set(rewards) == {(0, 0.0, True), (1, 1.0, True)}


def test_symbols_after_the_first_step_say_nothing_about_it() -> None:
    environment = Recall()
    same = []
    for seed in range(400):
        first, _ = environment.reset(seed=seed)
        seen = environment.step(np.int64(0))[0]
        same.append(bool(first[:SYMBOLS].argmax() == seen[:SYMBOLS].argmax()))
    assert np.mean(same) == pytest.approx(1 / SYMBOLS, abs=0.07)


# DQN and SAC are refused until they have memory.
@pytest.mark.parametrize("case", [case for case in ALL if case.algorithm == "ppo"], ids=lambda case: case.name)
def test_policies_with_and_without_memory_have_the_same_settings(case: Case) -> None:
    def config(memory: str) -> dict[str, Any]:
        flags = Case(case.task, case.algorithm, memory).flags(1)
        (found,) = parse_arguments("actorq train", "", (RunConfig,), flags)
        return {name: value for name, value in found.model_dump().items() if name != "memory"}

    assert config(GRU) == config(NONE)
    assert config(GRU)["scheme"] == "int8"


def test_each_task_has_memory_and_a_control_and_a_bound_between_them() -> None:
    assert len(ALL) == 2 * sum(len(task.steps) for task in TASKS)
    assert {case.algorithm for case in ALL if case.memory == GRU} == {"ppo", "dqn", "sac"}
    for task in TASKS:
        assert task.most <= task.least <= task.end


def runs_of(case: Case, *returns: float, scheme: str = "int8") -> list[dict[str, Any]]:
    return [
        {
            "task": case.name,
            "seed": seed,
            "confirmed": {"mean_return": each, "episodes": 100, "scheme": scheme},
            "transitions_by_scheme": {scheme: 10},
            "conditions": CONDITIONS,
        }
        for seed, each in enumerate(returns, start=1)
    ]


def test_every_seed_with_memory_reaches_the_bound_and_no_seed_without_it() -> None:
    (with_memory, without) = ALL[:2]
    good = [*runs_of(with_memory, 480.0, 500.0, 476.0), *runs_of(without, 40.0, 60.0, 149.0)]
    assert [(target.measured, target.met) for target in targets({"runs": good})] == [
        (476.0, True),
        (149.0, True),
        (6, True),
    ]
    bad = [*runs_of(with_memory, 480.0, 500.0, 470.0), *runs_of(without, 40.0, 60.0, 151.0, scheme="fp32")]
    assert [target.met for target in targets({"runs": bad})] == [False, False, False]
    for target in targets({"runs": good}):
        assert any(re.fullmatch(meaning.pattern, target.name) for meaning in MEANINGS), target.name


def test_fewer_than_three_seeds_give_no_verdict() -> None:
    found = targets({"runs": runs_of(ALL[0], 480.0, 500.0)})
    assert {target.refused for target in found} == {"fewer than 3 seeds give no verdict"}
