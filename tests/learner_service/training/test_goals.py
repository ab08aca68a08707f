"""With goals, a run's returns have one step. If that is impossible, the learner gives one line."""

from dataclasses import replace
from typing import Any, cast

import pytest

from actorq.config.run_config import RunConfig
from actorq.domain.goals import Goal
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from learner_service.algorithms.base import Algorithm
from learner_service.training.buffers import check_one_step
from learner_service.training.training import with_goals

SPEC = EnvironmentSpec("Reach-v0", ArraySpec((6,), "float32"), ArraySpec((), "int64"), (2,), 50, goal=Goal(0, 2, 2))
CONTINUOUS = replace(SPEC, actions=ArraySpec((1,), "float32", (-1.0,), (1.0,)))


def _config(**changes: Any) -> RunConfig:
    return RunConfig.model_validate({"environment": "Reach-v0", **changes})


@pytest.mark.parametrize("algorithm", ["dqn", "d4pg", "td3", "sac", "xqc"])
def test_returns_have_one_step_with_goals_and_only_then(algorithm: str) -> None:
    config = _config(algorithm=algorithm)
    fitting = with_goals(config, CONTINUOUS)
    assert getattr(fitting, algorithm).n_step == 1
    assert with_goals(config, replace(SPEC, goal=None)) == config
    without = _config(algorithm=algorithm, hindsight={"copies": 0})
    assert with_goals(without, SPEC) == without


def test_multi_step_targets_of_rlx2_stay_off() -> None:
    config = _config(algorithm="td3", sparsity={"method": "rlx2"})
    assert config.multi_step_of(1) is not None
    assert with_goals(config, CONTINUOUS).multi_step_of(1) is None


def test_on_policy_algorithms_ignore_goals() -> None:
    config = _config(algorithm="ppo", environments_per_actor=2)
    assert with_goals(config, replace(SPEC, max_episode_steps=0)) == config
    assert config.copies_of(SPEC) == 0
    assert not any("hindsight" in name for name in config.further_columns(sampled=True))


def test_goals_need_a_time_limit() -> None:
    with pytest.raises(UserError, match=r"time limit.*hindsight"):
        with_goals(_config(), replace(SPEC, max_episode_steps=0))


def test_a_users_algorithm_with_longer_returns_is_refused() -> None:
    class Longer:
        n_step = 3

    with pytest.raises(UserError, match=r"n_step.* 1 .*hindsight.* 3"):
        check_one_step(_config(), SPEC, cast(Algorithm, Longer()))
    check_one_step(_config(hindsight={"copies": 0}), SPEC, cast(Algorithm, Longer()))


def test_memory_is_refused_with_hindsight() -> None:
    class Remembering:
        n_step = 1

    with pytest.raises(UserError, match=r"memory\.kind gru and hindsight exclude each other.*--hindsight\.copies 0"):
        check_one_step(_config(memory="gru"), SPEC, cast(Algorithm, Remembering()))
    check_one_step(_config(memory="gru", hindsight={"copies": 0}), SPEC, cast(Algorithm, Remembering()))
