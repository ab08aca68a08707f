"""DQN, SAC and TD3 with memory learn a task from their replay that no feed-forward policy can solve."""

from pathlib import Path
from typing import Any

import pytest

from tests.learner_service.algorithms.replayed_parts import Learning, run_of

DELAY, SEGMENTS, UPDATES = 5, 140, 4
MEMORY: dict[str, Any] = {"burn_in": 4, "sequence_length": 16}
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {"target_update_period": 20, "n_step": 3},
    "sac": {"target_rate": 0.02, "temperature": 0.02, "discount": 0.95},
    "td3": {"target_rate": 0.02, "discount": 0.95},
}


def share(name: str, directory: Path, kind: str) -> float:
    config = run_of(name, {"kind": kind, **MEMORY}, **SETTINGS[name])
    return Learning(name, config, directory, DELAY).share_of_right_answers(SEGMENTS, UPDATES)


@pytest.mark.parametrize(("name", "kind"), [("dqn", "gru"), ("dqn", "lstm"), ("sac", "gru"), ("td3", "gru")])
def test_a_cue_is_remembered(name: str, kind: str, tmp_path: Path) -> None:
    # A fifth of the actions is random, and half of them are wrong.
    assert share(name, tmp_path, kind) > 0.8


@pytest.mark.parametrize("name", SETTINGS)
def test_a_policy_without_memory_can_only_guess(name: str, tmp_path: Path) -> None:
    assert 0.35 < share(name, tmp_path, "none") < 0.65
