"""The trial of an environment measures what matters for a run."""

from typing import Any

import numpy as np
import pytest

from actor_service.environments import make_environments
from actor_service.environments.trial import play

STEPS = 300


def played(environment: str, steps: int = STEPS, seconds: float = 60.0) -> dict[str, Any]:
    environments = make_environments(environment, 1)
    try:
        return play(environments, steps, seconds, alive=lambda: None)
    finally:
        environments.close()


def test_episodes_rewards_and_ranges_of_cartpole() -> None:
    figures = played("CartPole-v1")
    assert figures["steps"] == STEPS
    assert figures["terminated"] == len(figures["returns"]) > 5
    # A reward of 1 for each step.
    assert figures["returns"] == figures["lengths"]
    assert figures["rewards"] == [1.0, 1.0]
    assert figures["observations"][0] < 0 < figures["observations"][1] < 10
    assert (figures["components"], figures["constant"], figures["faults"]) == (4, [], {})
    assert figures["repeats"]
    assert figures["seeds_differ"]


def test_actions_of_a_box_reach_both_of_its_halves() -> None:
    figures = played("Pendulum-v1")
    assert figures["truncated"] == 1
    assert figures["lengths"] == [200]
    assert figures["rewards"][0] < figures["rewards"][1] < 0


def test_failed_steps_are_counted_by_reason() -> None:
    figures = played("environment_doubles:NaNReward-v0")
    ((reason, count),) = figures["faults"].items()
    assert "NaN" in reason
    assert 50 < count < 150
    # The episode's number continues over resets, and seeds are ignored.
    assert not figures["repeats"]


def test_a_trial_ends_by_time_too() -> None:
    assert played("CartPole-v1", steps=10**9, seconds=0.05)["steps"] < 10**5


def test_the_launcher_gets_messages_between_slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    # A step has 0.4 s, and the time until the next step is equally long.
    clock = iter(np.arange(0.0, 1e6, 0.4))
    monkeypatch.setattr("actor_service.environments.trial.time.perf_counter", lambda: next(clock))
    told: list[int] = []
    environments = make_environments("CartPole-v1", 1)
    figures = play(environments, 50, 1e9, alive=lambda: told.append(1))
    environments.close()
    assert figures["seconds"] == pytest.approx(50 * 0.4)
    # Each of the three compared episodes has a second: two steps. One message for two steps.
    assert len(told) == (50 + 3 * 2) // 2
